"""Configuration: precedence of its sources, and errors for wrong keys."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.config.load_config import Config, Placement, Prerun, SiteSection, Submit, find_user_state_dir, load
from slurmwrap.errors import ConfigError


def write_file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def make_environment(tmp_path: Path, site: str = "", user: str = "", **variables: str) -> dict[str, str]:
    found = {"HOME": str(tmp_path / "home"), "SLURMWRAP_CONFIG": str(tmp_path / "absent.toml"), **variables}
    if site:
        found["SLURMWRAP_CONFIG"] = str(write_file(tmp_path / "site.toml", site))
    if user:
        write_file(tmp_path / "home/.config/slurmwrap/config.toml", user)
    return found


def test_without_files_the_defaults_apply(tmp_path: Path) -> None:
    assert load(make_environment(tmp_path)) == Config()


def test_the_user_file_overrides_the_site_file_and_variables_override_both(tmp_path: Path) -> None:
    site = '[prerun]\npartition = "debug"\ngrace_s = 60\nsteps = 5\n[site]\nspool = "/s"\n'
    user = "[prerun]\ngrace_s = 120\nsteps = 7\n"
    found = load(make_environment(tmp_path, site, user, SLURMWRAP_PRERUN_STEPS="9"))
    assert found == Config(prerun=Prerun(partition="debug", grace_s=120, steps=9), site=SiteSection(spool="/s"))


def test_a_variable_can_switch_a_flag_off(tmp_path: Path) -> None:
    assert load(make_environment(tmp_path, SLURMWRAP_PLACEMENT_ENABLED="no")).placement == Placement(enabled=False)


def test_a_list_is_an_array_in_a_file_and_comma_separated_in_a_variable(tmp_path: Path) -> None:
    site = '[submit]\npass_partitions = ["interactive*", "jupyter"]\n'
    assert load(make_environment(tmp_path, site)).submit == Submit(pass_partitions=("interactive*", "jupyter"))
    found = load(make_environment(tmp_path, site, SLURMWRAP_SUBMIT_PASS_PARTITIONS="a*, b ,")).submit
    assert found == Submit(pass_partitions=("a*", "b"))
    assert load(make_environment(tmp_path, site, SLURMWRAP_SUBMIT_PASS_PARTITIONS="")).submit == Submit()


def test_rules_and_the_slurm_timeout_have_variables(tmp_path: Path) -> None:
    found = load(make_environment(tmp_path, SLURMWRAP_RULES_DRAIN="act", SLURMWRAP_SLURM_TIMEOUT_S="2.5"))
    assert found == Config(rules={"drain": "act"}, slurm_timeout_s=2.5)


def test_the_mode_of_a_rule_is_advise_by_default(tmp_path: Path) -> None:
    found = load(make_environment(tmp_path, '[rules]\ndrain = "act"\n'))
    assert (found.mode_of("drain"), found.mode_of("retry")) == ("act", "advise")


def test_an_error_for_a_wrong_key_or_value_names_file_and_key(tmp_path: Path) -> None:
    wanted = [
        ("[prerum]\n", ":1: unknown key 'prerum'; did you mean 'prerun'?"),
        (
            "\n# x\n[prerun]\nsteps = 4\nwindow_days = 3\n",
            ":5: prerun.window_days: unknown key; did you mean 'nodes.window_days'?",
        ),
        ("grace_s = 5\n", ":1: unknown key 'grace_s'; did you mean 'prerun.grace_s'?"),
        ("[nodes]\nslurm_timeout_s = 5\n", "did you mean 'slurm_timeout_s', which belongs above the first [section]?"),
        ("[x]\n", "unknown key 'x'; `slurmwrap config show` lists the keys"),
        ('[log]\nto = "syslog"\n', ":2: log.to must be one of auto, stderr, journal, not 'syslog'"),
        ("[prerun]\ngrace = 5\n", "prerun.grace: unknown key; did you mean 'grace_s'?"),
        ('[prerun]\ngrace_s = "soon"\n', "prerun.grace_s: 'soon' is not a whole number"),
        ("[prerun]\ngrace_s = true\n", "prerun.grace_s: 'True' is not a whole number"),
        ('[placement]\nenabled = "maybe"\n', "placement.enabled: 'maybe' is not true or false"),
        ("prerun = 3\n", "prerun must be a table"),
        ('[rules]\ndrian = "act"\n', "rules.drian: unknown rule; did you mean 'drain'?"),
        ('[rules]\ndrain = "always"\n', "rules.drain must be one of observe, advise, act, not 'always'"),
        ("[prerun\n", "Expected ']'"),
        ('rules = "act"\n', "rules must be a table"),
        ('[prerun]\nmode = "gated"\n', "prerun.mode must be one of auto, wait, gate, off, only, not 'gated'"),
        ("[prerun]\ngrace_s = -1\n", "prerun.grace_s must be from 1 to"),
        ("[prerun]\nsteps = 0\n", "prerun.steps must be from 1 to"),
        ("[prerun]\nsteps = 2.5\n", "prerun.steps: '2.5' is not a whole number"),
        ("[tuning]\nmemory_margin = 0.5\n", "tuning.memory_margin must be from 1 to 100, not 0.5"),
        ("[tuning]\nmemory_margin = nan\n", "tuning.memory_margin must be from 1 to 100, not nan"),
        ("[placement]\nexclude_cap = 10\n", "placement.exclude_cap must be from 0 to 1, not 10"),
        ('[site]\nspool = ["/a"]\n', "site.spool: '['/a']' is not text"),
        ("[submit]\npass_users = [1]\n", "submit.pass_users: '[1]' is not a list of texts"),
        ("[submit]\npass_users = 1\n", "submit.pass_users: '1' is not a list of texts"),
        ("[submit]\narray_threshold = -1\n", "submit.array_threshold must be from 0 to 4e+06, not -1"),
        ("slurm_timeout_s = 0\n", "slurm_timeout_s must be from 0.1 to 600, not 0"),
    ]
    wrong = []
    for text, message in wanted:
        variables = make_environment(tmp_path, text)
        with pytest.raises(ConfigError) as caught:
            load(variables)
        if variables["SLURMWRAP_CONFIG"] not in str(caught.value) or message not in str(caught.value):
            wrong.append((text, str(caught.value)))
    assert wrong == []


def test_an_error_for_a_wrong_variable_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(make_environment(tmp_path, SLURMWRAP_PRERUN_STEPS="many"))
    assert str(caught.value) == "SLURMWRAP_PRERUN_STEPS: prerun.steps: 'many' is not a whole number"


@pytest.mark.skipif(os.geteuid() != 0, reason="files of other users need root")
@pytest.mark.parametrize(
    ("owner", "mode", "why"),
    [
        ((0, 0), 0o666, "others may write it (mode 0666)"),
        ((0, 65534), 0o664, "others may write it (mode 0664)"),
        ((65534, 65534), 0o644, "it belongs to uid 65534"),
        ((0, 0), 0o664, ""),
        ((0, 65534), 0o640, ""),
    ],
)
def test_root_refuses_a_file_that_other_users_may_write(
    tmp_path: Path, owner: tuple[int, int], mode: int, why: str
) -> None:
    variables = make_environment(tmp_path, "[prerun]\nsteps = 4\n")
    file = Path(variables["SLURMWRAP_CONFIG"])
    os.chown(file, *owner)
    file.chmod(mode)
    if not why:
        assert load(variables) == Config(prerun=Prerun(steps=4))
        return
    with pytest.raises(ConfigError) as caught:
        load(variables)
    assert str(caught.value) == f"{file}: {why}, but root and SlurmUser act on its contents"
    assert caught.value.hint == f"check that no one changed it, then: chown root: {file}; chmod 644 {file}"


@pytest.mark.skipif(os.geteuid() != 0, reason="running as another user needs root")
@pytest.mark.parametrize(("state_of", "refused"), [(65534, True), (0, False)])
def test_slurm_user_refuses_a_writable_file_and_other_users_accept_it(
    open_dir: Path, state_of: int, refused: bool
) -> None:
    """SlurmUser is recognized as the owner of the state directory."""
    state, file = open_dir / "state", open_dir / "config.toml"
    state.mkdir()
    os.chown(state, state_of, state_of)
    file.write_text(f'[site]\nstate_dir = "{state}"\n')
    file.chmod(0o666)
    run = "from slurmwrap.config.load_config import load; print(load().site.state_dir)"
    done = subprocess.run(
        [sys.executable, "-c", run],
        env={"SLURMWRAP_CONFIG": str(file), "HOME": "/nonexistent"},
        cwd=Path(__file__).parents[2],
        user=65534,
        capture_output=True,
        text=True,
        timeout=allow(60),
    )
    if refused:
        assert done.stderr.splitlines()[-1].endswith(
            "others may write it (mode 0666), but root and SlurmUser act on its contents"
        )
    else:
        assert (done.stdout, done.stderr) == (f"{state}\n", "")


def test_the_state_directory_follows_xdg_state_home(tmp_path: Path) -> None:
    assert find_user_state_dir({"HOME": "/home/a"}) == Path("/home/a/.local/state/slurmwrap")
    assert find_user_state_dir({"HOME": "/home/a", "XDG_STATE_HOME": "/x"}) == Path("/x/slurmwrap")


def test_relative_directories_in_the_environment_are_ignored() -> None:
    assert find_user_state_dir({"HOME": "/home/a", "XDG_STATE_HOME": "x"}) == Path("/home/a/.local/state/slurmwrap")
    assert find_user_state_dir({"HOME": "home"}) == find_user_state_dir({})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: HOME of another user")
def test_root_uses_no_state_directory_in_another_users_home(tmp_path: Path) -> None:
    assert find_user_state_dir({"HOME": str(tmp_path)}) == tmp_path / ".local/state/slurmwrap"
    os.chown(tmp_path, 65534, 65534)
    assert find_user_state_dir({"HOME": str(tmp_path)}) == find_user_state_dir({})
    assert find_user_state_dir({"XDG_STATE_HOME": str(tmp_path)}) == find_user_state_dir({})


def test_without_home_the_password_database_gives_the_home_directory() -> None:
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert find_user_state_dir({}) == Path(home) / ".local/state/slurmwrap"
