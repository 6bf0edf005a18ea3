"""Generate the tables of docs/configuration.md from slurmwrap/config: `.venv/bin/python .ci/configuration_page.py`.

tests/config/test_config_keys.py fails when the page is outdated.
"""

from __future__ import annotations

from pathlib import Path

from between import between

from slurmwrap.config.config_keys import format_reference

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
BEGIN, END = "<!-- keys -->", "<!-- end of keys -->"


def with_keys(page: str) -> str:
    """Return the page with new tables. Raise ValueError when it has no marks."""
    return between(page, BEGIN, END, f"\n{format_reference()}\n")


if __name__ == "__main__":
    PAGE.write_text(with_keys(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
