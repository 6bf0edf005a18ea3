"""Generate the formulas of docs/report.md: `.venv/bin/python .ci/docs_formulas.py`.

tests/report/test_formulas_page.py fails when the page is outdated.
"""

from __future__ import annotations

from pathlib import Path

from between import between

from slurmwrap.report.formulas import BY_ID, Formula

PAGE = Path(__file__).resolve().parent.parent / "docs" / "report.md"
BEGIN, END = "<!-- formulas: python .ci/docs_formulas.py -->", "<!-- end of formulas -->"


def section(formula: Formula) -> str:
    return (
        f"### {formula.id}\n\n"
        f"{formula.says}.\n\n"
        f"- In symbols: `{formula.symbols}`\n"
        f"- A case: {formula.case}\n"
        f"- Leaves out: {formula.leaves_out}\n"
    )


def page(text: str) -> str:
    """Return `text` with new formulas. Raise ValueError when it has no marks."""
    return between(text, BEGIN, END, "\n" + "\n".join(map(section, BY_ID.values())))


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
