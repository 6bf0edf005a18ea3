"""docs/report.md shows the formulas as they are."""

from __future__ import annotations

import docs_formulas


def test_the_page_holds_the_table_of_today() -> None:
    text = docs_formulas.PAGE.read_text(encoding="utf-8")
    assert docs_formulas.page(text) == text
    assert text.count("### ") == 5
