"""docs/report.md shows the current formulas."""

from __future__ import annotations

import docs_formulas


def test_the_page_shows_the_current_formulas() -> None:
    text = docs_formulas.PAGE.read_text(encoding="utf-8")
    assert docs_formulas.page(text) == text
    assert text.count("### ") == 5
