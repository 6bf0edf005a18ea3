"""Generate the tables of docs/database.md from the schema.

    python .ci/database_page.py

A test fails when the page is outdated.
"""

from __future__ import annotations

import re
from pathlib import Path

from slurmwrap.store.schema_docs import format_markdown

PAGE = Path(__file__).parent.parent / "docs" / "database.md"
_MADE = re.compile(r"(<!-- begin: made of the schema [^\n]*-->\n\n).*(\n<!-- end -->)", re.DOTALL)

if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_MADE.sub(lambda found: found[1] + format_markdown() + found[2], text), encoding="utf-8")
