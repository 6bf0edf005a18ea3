"""Whether `slurmwrap reconcile` works for the site or only for its caller."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmwrap.cli import reconcile
from slurmwrap.config.load_config import Config, SiteSection

NOBODY = 65534


@pytest.mark.parametrize(
    ("uid", "slurm_user", "owner", "site"),
    [
        (0, "nobody", 0, True),
        (NOBODY, "nobody", 0, True),
        (NOBODY, "root", NOBODY, True),
        (NOBODY, "root", 0, False),
    ],
)
def test_root_slurm_user_and_the_owner_of_the_state_reconcile_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, slurm_user: str, owner: int, site: bool
) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, owner, owner)
    elif owner != os.geteuid():
        pytest.skip("only root can give the directory to another user")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    config = Config(site=SiteSection(state_dir=str(tmp_path), slurm_user=slurm_user))
    assert reconcile._is_site(config) is site


def test_without_a_site_only_the_users_jobs_are_reconciled() -> None:
    assert reconcile._is_site(Config()) is False
