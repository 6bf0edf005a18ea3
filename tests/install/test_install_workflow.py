"""Observations of test jobs that the reconciler has already moved to its database."""

from __future__ import annotations

from pathlib import Path

from slurmwrap.config.config_defaults import Config, SiteSection
from slurmwrap.install.install_target import resolve_install_target
from slurmwrap.install.install_workflow import _stored
from slurmwrap.model.observation import Context, Observation
from slurmwrap.store.database import Database


def test_observations_of_the_job_are_read_from_the_sites_database(tmp_path: Path) -> None:
    one = Observation(
        nonce="a1b2", cluster="lab", job_id=81, context=Context.EPILOG, at=4_621.5, node="n3", uid=0, facts={}
    )
    assert _stored(str(tmp_path), "lab", 81) == ()
    with Database.open(tmp_path / "site.db") as store:
        store.ingest(one)
    assert [_stored(str(tmp_path), "lab", job_id) for job_id in (81, 82)] == [(one,), ()]


def test_a_damaged_database_has_no_observations(tmp_path: Path) -> None:
    (tmp_path / "site.db").write_bytes(b"not a database" * 1000)
    assert _stored(str(tmp_path), "lab", 81) == ()


def test_a_changed_path_of_dcgmi_reaches_an_installation_that_has_none() -> None:
    given = {"slurm_conf": "/etc/slurm/slurm.conf", "cluster": "lab", "slurm_user": "slurm"}
    for before, path in (({}, ""), ({"dcgmi": ""}, "/usr/bin/dcgmi"), ({"dcgmi": "/usr/bin/dcgmi"}, "")):
        config = Config(site=SiteSection(dcgmi=path))
        assert resolve_install_target(given, before, {}, config, "/shared").hooks.dcgmi == path
