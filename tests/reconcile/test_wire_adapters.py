"""The uid that the reconciler takes for that of SlurmUser."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurmwrap.config.config_defaults import SiteSection
from slurmwrap.config.load_config import Config
from slurmwrap.errors import UsageError
from slurmwrap.reconcile.wire_adapters import _find_slurm_uid


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
