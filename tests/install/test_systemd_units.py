"""The systemd units, checked by systemd's own tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slurmwrap.fast_dataclasses import replace
from slurmwrap.install.install_target import InstallTarget
from slurmwrap.install.systemd_units import ENABLED, rendered

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
WANTED = InstallTarget(
    slurm_conf="/opt/slurm/etc/slurm.conf", cluster="c", slurm_user="root", spool="/shared/a b/spool",
    published="/shared/100%/published", command="/bin/true",
)  # fmt: skip
CONFIGURED = {"metrics": {"textfile": "/var/lib/prometheus/slurmwrap.prom"}, "report": {"directory": "/srv/reports"}}


def write_units(directory: Path) -> list[Path]:
    for name, text in rendered(WANTED, CONFIGURED):
        (directory / name).write_text(text)
    return sorted(directory.iterdir())


def test_systemd_analyze_verify_accepts_the_units(tmp_path: Path) -> None:
    units = write_units(tmp_path)
    assert {*ENABLED, "slurmwrap-report.service", "slurmwrap-watchdog.service"} == {unit.name for unit in units}
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)],
        capture_output=True, text=True, env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}, timeout=60,
    )  # fmt: skip
    assert not [line for line in checked.stderr.splitlines() if str(tmp_path) in line or "slurmwrap" in line]


def test_units_may_write_their_own_and_the_configured_directories(tmp_path: Path) -> None:
    (line,) = [line for line in (dict(rendered(WANTED, CONFIGURED))["slurmwrap-report.service"]).splitlines()
               if line.startswith("ReadWritePaths=")]  # fmt: skip
    assert line == (
        "ReadWritePaths=-/shared/a\\x20b/spool -/shared/100%%/published -/var/lib/slurmwrap -/var/lib/prometheus "
        "-/srv/reports"
    )


def test_the_sites_slurm_directory_is_on_the_path_of_the_services() -> None:
    assert "Environment=PATH" not in "".join(dict(rendered(WANTED, {})).values())
    for name, text in rendered(replace(WANTED, slurm_bin="/opt/slurm 24/bin"), {}):
        named = [line for line in text.splitlines() if line.startswith("Environment=PATH=")]
        path = "/opt/slurm\\x2024/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        assert named == ([f"Environment=PATH={path}"] if name.endswith(".service") else [])


def test_systemd_analyze_security_rates_the_services_below_the_threshold(tmp_path: Path) -> None:
    services = [str(unit) for unit in write_units(tmp_path) if unit.suffix == ".service"]
    checked = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=60", *services],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if "unrecognized option" in checked.stderr:
        pytest.skip("this systemd-analyze knows no --offline")
    assert checked.returncode == 0, checked.stdout[-500:]


def test_only_the_reconciler_of_slurm_user_gets_capabilities_and_only_on_request() -> None:
    slurm = replace(WANTED, slurm_user="slurm")
    for wanted, lines in (
        (slurm, []),
        (replace(slurm, become_users=True), ["AmbientCapabilities=CAP_SETUID CAP_SETGID"]),
    ):
        units = dict(rendered(wanted, {}))
        assert [line for unit in units.values() for line in unit.splitlines() if line.startswith("Ambient")] == lines
        assert "CapabilityBoundingSet=\n" in units["slurmwrap-report.service"]
