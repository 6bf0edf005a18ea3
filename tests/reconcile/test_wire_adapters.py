"""The uid that the reconciler takes for that of SlurmUser, and whose address notify.url is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from slurmwrap.config.config_defaults import SiteSection
from slurmwrap.config.load_config import Config
from slurmwrap.errors import UsageError
from slurmwrap.reconcile.wire_adapters import _find_slurm_uid, _has_own_url


class ConfiguredSlurm:
    """A Slurm with only a configuration."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values

    def config(self) -> Mapping[str, str]:
        return self.values


def find_uid(user: str, **values: str) -> int:
    config = Config(site=SiteSection(slurm_user=user))
    return _find_slurm_uid(config, ConfiguredSlurm(values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("user", "values", "uid"),
    [
        ("", {"SlurmUser": "slurm(64030)"}, 64030),
        ("", {"SlurmUser": "slurm"}, 0),
        ("", {}, 0),  # root, so that no other user's seal is taken for Slurm's
        ("root", {"SlurmUser": "slurm(64030)"}, 0),
    ],
)
def test_the_uid_of_slurm_is_configured_or_as_slurm_prints_it_and_else_that_of_root(
    user: str, values: dict[str, str], uid: int
) -> None:
    assert find_uid(user, **values) == uid


def test_a_configured_user_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"site\.slurm_user: there is no user 'no-such-user'"):
        find_uid("no-such-user")


def test_the_address_is_a_users_own_only_if_their_file_or_a_variable_sets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, user = tmp_path / "site.toml", tmp_path / ".config/slurmwrap/config.toml"
    user.parent.mkdir(parents=True)
    site.write_text('[notify]\nurl = "https://example.org/a"\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURMWRAP_CONFIG", str(site))
    for name in ("XDG_CONFIG_HOME", "SLURMWRAP_NOTIFY_URL"):
        monkeypatch.delenv(name, raising=False)
    user.write_text("[notify]\nper_hour = 3\n")
    assert not _has_own_url()
    user.write_text('[notify]\nurl = "https://example.org/b"\n')
    assert _has_own_url()
    user.unlink()
    monkeypatch.setenv("SLURMWRAP_NOTIFY_URL", "https://example.org/c")
    assert _has_own_url()
