"""Exactly the existing keys are documented, and page and template are up to date."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from configuration_page import PAGE, with_keys
from in_process import Runner

from slurmwrap.cli.slurmwrap import app
from slurmwrap.config.config_check import find_mistakes, find_remarks
from slurmwrap.config.config_errors import find_key_lines, list_sections, locate_key
from slurmwrap.config.config_keys import (
    SECTIONS,
    Key,
    KeyReader,
    format_toml,
    get_value,
    hide_secret,
    list_keys,
    make_template,
)
from slurmwrap.config.key_origins import KeySetting, KeySource, find_unknown_variables, list_settings
from slurmwrap.config.load_config import BOUNDS, CHOICES, RULES, Config, merge
from slurmwrap.errors import ConfigError


def list_key_names() -> set[str]:
    return {f"{section}.{name}" for section, names in list_sections().items() for name in names} | {"slurm_timeout_s"}


def test_exactly_the_existing_keys_are_documented() -> None:
    assert {key.name for key in list_keys()} == list_key_names()
    assert set(SECTIONS) == {key.section for key in list_keys()}


def test_bounds_and_choices_belong_to_existing_keys() -> None:
    assert set(BOUNDS) - list_key_names() == set()
    assert set(CHOICES) - list_key_names() == set()


def test_every_number_has_bounds_and_a_unit() -> None:
    numbers = [key for key in list_keys() if isinstance(key.default, int | float) and not isinstance(key.default, bool)]
    assert [key.name for key in numbers if key.name not in BOUNDS] == []
    assert [key.name for key in numbers if not key.unit] == []


def test_every_key_is_described_by_a_sentence() -> None:
    assert [key.name for key in list_keys() if not re.fullmatch(r"\S.*[^ ]\.(\.\.)?|\S.*, \.\.\.", key.text)] == []


def test_a_key_has_default_unit_text_and_reader() -> None:
    found = next(key for key in list_keys() if key.name == "prerun.steps")
    assert found == Key(
        name="prerun.steps",
        default=3,
        unit="optimizer steps",
        text="A pre-run passes after this many steps.",
        reader=KeyReader.GSUB,
    )
    assert (found.variable, found.allowed) == ("SLURMWRAP_PRERUN_STEPS", "a whole number from 1 to 1000000")


def test_the_configuration_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_keys(page) == page, ".venv/bin/python .ci/configuration_page.py writes it anew"


def test_the_template_loads_as_the_default_configuration() -> None:
    assert merge(Config(), tomllib.loads(make_template())) == Config()
    assert find_mistakes("config.toml", make_template()) == ()


def test_the_template_with_every_key_uncommented_is_the_default() -> None:
    switched_on = re.sub(r"(?m)^#(?=\w+ = )", "", make_template())
    assert set(find_key_lines(switched_on)) >= list_key_names()
    whole = merge(Config(), tomllib.loads(switched_on))
    assert whole == merge(Config(), {"rules": dict.fromkeys(RULES, "advise")})


@pytest.mark.parametrize(
    ("value", "written"),
    [(True, "true"), (("a", 'b"'), '["a", "b\\""]'), ("x\n\x1b", '"x\\n\\u001b"'), (1e9, "1000000000"), (0.5, "0.5")],
)
def test_values_are_formatted_as_valid_toml(value: object, written: str) -> None:
    assert format_toml(value) == written
    assert tomllib.loads(f"x = {written}")["x"] == (list(value) if isinstance(value, tuple) else value)


TRICKY_TOML = """# [prerun]
title = '''
[prerun]
steps = 3
'''
[prerun] # here
"steps" = 4
nodes.x = [
  1, # one

  2]
"""


def test_line_numbers_of_keys_ignore_strings_and_comments() -> None:
    wanted = {"title": 2, "prerun": 6, "prerun.steps": 7, "prerun.nodes": 8, "prerun.nodes.x": 8}
    assert find_key_lines(TRICKY_TOML) == wanted
    assert locate_key("f", TRICKY_TOML, "prerun.steps") == "f:7"
    assert locate_key("f", TRICKY_TOML, "prerun.absent") == "f:6"
    assert locate_key("f", TRICKY_TOML, "absent") == "f"


def test_all_mistakes_of_a_file_are_reported_at_once() -> None:
    text = '[prerun]\nsteps = 0\nx = 1\n[retry]\ndefault = "perhaps"\n[later]\na = 1\nb = 2\n'
    assert find_mistakes("f", text) == (
        "f:2: prerun.steps must be from 1 to 1e+06, not 0",
        "f:3: prerun.x: unknown key; `slurmwrap config show` lists the keys",
        "f:5: retry.default: 'perhaps' is not true or false",
        "f:6: unknown key 'later'; `slurmwrap config show` lists the keys",
    )
    assert find_mistakes("f", "[a\n") == ("f: Expected ']' at the end of a table declaration (at line 1, column 3)",)
    assert find_mistakes("f", "prerun = 3\n") == ("f:1: prerun must be a table; write [prerun] and its keys below it",)


def test_valid_but_inconsistent_settings_give_remarks() -> None:
    assert find_remarks(Config()) == ()
    odd = merge(Config(), {"nodes": {"lemon_ratio": 1}, "report": {"to": "a@b"}, "site": {"state_dir": "/s"}})
    assert find_remarks(odd) == (
        "nodes.lemon_ratio is below nodes.suspect_ratio: a node is a lemon before it is suspect",
        "report.to names a recipient, but mail.server is empty: no mail is sent",
        "site.spool is empty: nothing arrives from nodes, and runs are judged by Slurm's records alone",
    )


def test_each_setting_has_its_sources(tmp_path: Path) -> None:
    site, user = tmp_path / "site.toml", tmp_path / "home/.config/slurmwrap/config.toml"
    site.write_text("\n[prerun]\nsteps = 5\n")
    user.parent.mkdir(parents=True)
    user.write_text("[prerun]\nsteps = 6\n[rules]\ndrain='act'\n")
    environ = {"SLURMWRAP_CONFIG": str(site), "HOME": str(tmp_path / "home"), "SLURMWRAP_PRERUN_STEPS": "7"}
    found = {one.key.name: one for one in list_settings(environ)}
    default = KeySource(origin="default", kind="default", value=3)
    assert found["prerun.steps"].said == (
        default,
        KeySource(origin=f"{site}:3", kind="site", value=5),
        KeySource(origin=f"{user}:2", kind="user", value=6),
        KeySource(origin="SLURMWRAP_PRERUN_STEPS", kind="variable", value=7),
    )
    assert found["rules.drain"].held == KeySource(origin=f"{user}:4", kind="user", value="act")
    assert [name for name, one in found.items() if one.changed] == ["prerun.steps", "rules.drain"]
    assert isinstance(found["nodes.prior"], KeySetting) and found["nodes.prior"].held.value == get_value(
        Config(), "nodes.prior"
    )


def test_unknown_variables_are_reported_except_those_of_pre_runs() -> None:
    inside = {"SLURMWRAP_TRIAL_DIR": "/x", "SLURMWRAP_PRERUN": "1", "SLURMWRAP_RELEASE_AT": "1", "SLURMWRAP_CONFIG": ""}
    assert find_unknown_variables({**inside, "SLURMWRAP_PRERUN_STEP": "3", "SLURMWRAP_NODES_PRIOR": "1"}) == (
        "SLURMWRAP_PRERUN_STEP is no key's variable; did you mean SLURMWRAP_PRERUN_STEPS?",
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://hooks.slack.com/services/T0/qwertzuiop", "https://hooks.slack.com/…"),
        ("https://ada:qwertzuiop@example.org:8443/x?sig=qwertzuiop", "https://example.org/…"),
        ("hooks.slack.com/services/qwertzuiop", "…"),
        ("https://[qwertzuiop", "…"),
        ("/etc/slurmwrap/notify.url", "/etc/slurmwrap/notify.url"),
        ("", ""),
    ],
)
def test_a_secret_address_is_never_shown(value: str, shown: str, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(f'[notify]\nurl = "{value}"\n')
    environ = {"SLURMWRAP_CONFIG": str(file), "HOME": str(tmp_path)}
    for words in (("show",), ("show", "notify.url"), ("show", "--json"), ("check", str(file))):
        done = Runner().invoke(app, ["config", *words], env=environ)
        assert done.exit_code == 0 and "qwertz" not in done.stdout + done.stderr
    assert hide_secret("notify.url", value) == shown
    with pytest.raises(ConfigError) as raised:
        merge(Config(), {"notify": {"url": [value or "x"]}})
    assert str(raised.value) == "notify.url: its value is not text"
