"""slurmwrap config: show, template and check, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from in_process import Runner
from typer.testing import Result

from slurmwrap.cli.slurmwrap import app
from slurmwrap.config.load_config import Config, load
from slurmwrap.errors import ConfigError, UsageError


def run(home: Path, *words: str, **environ: str) -> Result:
    base = {"HOME": str(home), "SLURMWRAP_CONFIG": str(home / "site.toml"), "COLUMNS": "80"}
    return Runner().invoke(app, ["config", *words], env={**base, **environ})


def write_site_file(home: Path, text: str) -> Path:
    path = home / "site.toml"
    path.write_text(text)
    return path


def test_show_changed_lists_the_set_keys_with_their_origin(tmp_path: Path) -> None:
    write_site_file(tmp_path, "slurm_timeout_s = 5\n[prerun]\ngrace_s = 600\n")
    user_file = tmp_path / ".config/slurmwrap/config.toml"
    user_file.parent.mkdir(parents=True)
    user_file.write_text("[prerun]\ngrace_s = 60\n")
    done = run(tmp_path, "show", "--changed", SLURMWRAP_RULES_DRAIN="act")
    assert done.output.splitlines() == [
        "slurm_timeout_s = 5.0           ~/site.toml:1",
        "",
        "[prerun]",
        "grace_s         = 60            ~/.config/slurmwrap/config.toml:2",
        "",
        "[rules]",
        'drain           = "act"         SLURMWRAP_RULES_DRAIN',
        "note: prerun.grace_s is far below prerun.time_limit_s: "
        "jobs start before their pre-run can have found anything",
    ]


def test_show_changed_without_settings_says_that_the_defaults_hold(tmp_path: Path) -> None:
    assert run(tmp_path, "show", "--changed").output == "Nothing is set: the defaults hold.\n"


def test_show_of_one_key_prints_its_documentation_and_origins(tmp_path: Path) -> None:
    write_site_file(tmp_path, "[prerun]\nsteps = 5\n")
    assert run(tmp_path, "show", "prerun.steps").output.splitlines() == [
        "prerun.steps = 5",
        "",
        "A pre-run passes after this many steps. In a user's own file it applies to their",
        "own submissions.",
        "",
        "  allowed   a whole number from 1 to 1000000",
        "  unit      optimizer steps",
        "  default   3",
        "  variable  SLURMWRAP_PRERUN_STEPS",
        "  section   [prerun] The pre-run of a job on one GPU (docs/prerun.md).",
        "  set by    ~/site.toml:2: 5",
        "            default: 3",
    ]


def test_an_unknown_section_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    done = run(tmp_path, "show", "nodez")
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == "there is no section and no key 'nodez'; did you mean 'nodes'?"


def test_json_has_value_origin_and_documentation_of_a_key(tmp_path: Path) -> None:
    path = write_site_file(tmp_path, "[prerun]\nsteps = 5\n")
    done = run(tmp_path, "show", "prerun.steps", "--json")
    assert json.loads(done.output) == {
        "kind": "slurmwrap.config",
        "schema": 1,
        "settings": [
            {
                "key": "prerun.steps",
                "value": 5,
                "origin": f"{path}:2",
                "kind": "site",
                "default": 3,
                "unit": "optimizer steps",
                "allowed": "a whole number from 1 to 1000000",
                "variable": "SLURMWRAP_PRERUN_STEPS",
                "text": "A pre-run passes after this many steps.",
                "reader": "gsub",
                "said": [
                    {"origin": "default", "kind": "default", "value": 3},
                    {"origin": f"{path}:2", "kind": "site", "value": 5},
                ],
            }
        ],
        "remarks": [],
    }


def test_the_template_is_a_valid_configuration_of_the_defaults(tmp_path: Path) -> None:
    path = write_site_file(tmp_path, run(tmp_path, "template").output)
    assert run(tmp_path, "check", str(path)).output == f"{path}: fine\n"
    assert load({"SLURMWRAP_CONFIG": str(path), "HOME": str(tmp_path)}) == Config()


def test_check_reports_every_error_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    path.write_text('[prerun]\nsteps = 0\n[nodes]\nwindow_dayz = 3\n"\\u001b[2J" = 1\n')
    done = run(tmp_path, "check", str(path))
    assert done.exit_code == ConfigError.exit_code
    assert done.output.splitlines() == [
        f"{path}:2: prerun.steps must be from 1 to 1e+06, not 0",
        f"{path}:4: nodes.window_dayz: unknown key; did you mean 'window_days'?",
        f"{path}:5: nodes.\\x1b[2J: unknown key; `slurmwrap config show` lists the keys",
    ]
