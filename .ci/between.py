"""Replace the generated part of a page in docs/, which is between two marks."""

from __future__ import annotations


def between(page: str, begin: str, end: str, text: str) -> str:
    """Return `page` with `text` between its marks. Raise ValueError when it has no marks."""
    before, opened, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise ValueError(f"the page has no {begin} … {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"
