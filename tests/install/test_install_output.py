"""The text that `slurmwrap hooks` prints for its plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.install.install_output import _place, format_uninstall_plan
from slurmwrap.install.plan_installation import NEW, SAME, InstalledDirectory
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


@pytest.mark.parametrize(
    ("state", "why", "line"),
    [
        (NEW, "for spool files", "  + 1733 slurm    /var/spool/slurmwrap  for spool files"),
        (NEW, "", "  + 1733 slurm    /var/spool/slurmwrap"),
        (SAME, "for spool files", "  = 1733 slurm    /var/spool/slurmwrap"),
    ],
)
def test_only_a_new_directory_is_listed_with_its_reason(state: str, why: str, line: str) -> None:
    place = InstalledDirectory(
        path=Path("/var/spool/slurmwrap"), uid=1, gid=1, mode=0o1733, owner="slurm", state=state, why=why
    )
    assert _place(place, plain) == line
