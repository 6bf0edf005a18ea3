"""What `slurmwrap hooks` prints of its plans."""

from __future__ import annotations

from pathlib import Path

from slurmwrap.install.install_output import format_uninstall_plan
from slurmwrap.install.uninstall import UninstallResult
from slurmwrap.report.job_report.job_report_text import plain

TAKING = UninstallResult(
    changes=(),
    files=(Path("/etc/slurm/prolog.d/slurmwrap"),),
    changed=(Path("/etc/slurm/slurmwrap.conf"),),
    directories=(Path("/var/spool/slurmwrap"), Path("/usr/lib/slurmwrap")),
    data=(Path("/var/spool/slurmwrap"),),
)


def list_removed(text: str) -> list[str]:
    return [line.removeprefix("  - ") for line in text.splitlines() if line.startswith("  - ")]


def test_what_was_found_stays_unless_it_is_purged() -> None:
    shown = format_uninstall_plan(TAKING, False, plain)
    assert list_removed(shown) == ["/etc/slurm/prolog.d/slurmwrap", "/usr/lib/slurmwrap"]
    assert "/etc/slurm/slurmwrap.conf" in shown
    assert "slurm.conf: no change" in shown
    purged = format_uninstall_plan(TAKING, True, plain)
    assert list_removed(purged) == [
        "/etc/slurm/prolog.d/slurmwrap",
        "/var/spool/slurmwrap",
        "/usr/lib/slurmwrap",
    ]
