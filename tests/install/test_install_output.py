"""The text that `slurmwrap hooks` prints for its plans."""

from __future__ import annotations

from pathlib import Path

from slurmwrap.install.install_output import format_uninstall_plan
from slurmwrap.install.uninstall import UninstallResult
from slurmwrap.report.job_report.job_report_text import plain

REMOVAL = UninstallResult(
    changes=(),
    files=(Path("/etc/slurm/prolog.d/slurmwrap"),),
    changed=(Path("/etc/slurm/slurmwrap.conf"),),
    directories=(Path("/var/spool/slurmwrap"), Path("/usr/lib/slurmwrap")),
    data=(Path("/var/spool/slurmwrap"),),
)


def list_removed(text: str) -> list[str]:
    return [line.removeprefix("  - ") for line in text.splitlines() if line.startswith("  - ")]


def test_the_uninstall_plan_lists_data_only_with_purge() -> None:
    text = format_uninstall_plan(REMOVAL, False, plain)
    assert list_removed(text) == ["/etc/slurm/prolog.d/slurmwrap", "/usr/lib/slurmwrap"]
    assert "/etc/slurm/slurmwrap.conf" in text
    assert "slurm.conf: no change" in text
    purged = format_uninstall_plan(REMOVAL, True, plain)
    assert list_removed(purged) == [
        "/etc/slurm/prolog.d/slurmwrap",
        "/var/spool/slurmwrap",
        "/usr/lib/slurmwrap",
    ]
