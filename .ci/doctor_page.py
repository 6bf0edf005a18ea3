"""Generate the list of checks in docs/doctor.md from slurmwrap/cli/doctor: `.venv/bin/python .ci/doctor_page.py`.

tests/cli/doctor/test_doctor_command.py fails when the page is outdated.
"""

from __future__ import annotations

from pathlib import Path

from between import between

from slurmwrap.cli.doctor.check_registry import CHECK_SPECS
from slurmwrap.cli.doctor.doctor_command import format_checks_page

PAGE = Path(__file__).parents[1] / "docs" / "doctor.md"
BEGIN, END = "<!-- checks -->", "<!-- end of checks -->"


def with_checks(text: str) -> str:
    """Return the page with a new list. Raise ValueError when it has no marks."""
    return between(text, BEGIN, END, f"\n{format_checks_page(CHECK_SPECS)}\n")


if __name__ == "__main__":
    PAGE.write_text(with_checks(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
