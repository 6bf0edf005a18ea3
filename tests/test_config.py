"""Configuration: what wins, and what a wrong key gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.config import Config, Placement, Prerun, Site, load, user_state_dir
from slurmwrap.errors import ConfigError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def environ(tmp_path: Path, site: str = "", user: str = "", **variables: str) -> dict[str, str]:
    found = {"HOME": str(tmp_path / "home"), "SLURMWRAP_CONFIG": str(tmp_path / "absent.toml"), **variables}
    if site:
        found["SLURMWRAP_CONFIG"] = str(write(tmp_path / "site.toml", site))
    if user:
        write(tmp_path / "home/.config/slurmwrap/config.toml", user)
    return found


def test_without_any_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load(environ(tmp_path)) == Config()


def test_user_wins_over_site_and_a_variable_over_both(tmp_path: Path) -> None:
    site = '[prerun]\npartition = "debug"\ngrace_s = 60\nsteps = 5\n[site]\nspool = "/s"\n'
    user = "[prerun]\ngrace_s = 120\nsteps = 7\n"
    found = load(environ(tmp_path, site, user, SLURMWRAP_PRERUN_STEPS="9"))
    assert found == Config(prerun=Prerun(partition="debug", grace_s=120, steps=9), site=Site(spool="/s"))


def test_a_variable_can_switch_a_flag_off(tmp_path: Path) -> None:
    assert load(environ(tmp_path, SLURMWRAP_PLACEMENT_ENABLED="no")).placement == Placement(enabled=False)


def test_rules_are_advise_until_switched_on(tmp_path: Path) -> None:
    found = load(environ(tmp_path, '[rules]\ndrain = "act"\n'))
    assert (found.mode_of("drain"), found.mode_of("retry")) == ("act", "advise")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[prerum]\n", "unknown key 'prerum'; did you mean 'prerun'?"),
        ("[prerun]\ngrace = 5\n", "prerun.grace: unknown key; did you mean 'grace_s'?"),
        ('[prerun]\ngrace_s = "soon"\n', "prerun.grace_s: 'soon' is not a whole number"),
        ("[prerun]\ngrace_s = true\n", "prerun.grace_s: 'True' is not a whole number"),
        ('[placement]\nenabled = "maybe"\n', "placement.enabled: 'maybe' is not true or false"),
        ("prerun = 3\n", "prerun must be a table"),
        ('[rules]\ndrian = "act"\n', "rules.drian: unknown rule; did you mean 'drain'?"),
        ('[rules]\ndrain = "always"\n', "rules.drain must be one of observe, advise, act, not 'always'"),
        ("[prerun\n", "Expected ']'"),
    ],
)
def test_a_wrong_key_or_value_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    variables = environ(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(variables)
    assert variables["SLURMWRAP_CONFIG"] in str(caught.value)
    assert message in str(caught.value)


def test_state_lies_where_xdg_says(tmp_path: Path) -> None:
    assert user_state_dir({"HOME": "/home/a"}) == Path("/home/a/.local/state/slurmwrap")
    assert user_state_dir({"HOME": "/home/a", "XDG_STATE_HOME": "/x"}) == Path("/x/slurmwrap")
