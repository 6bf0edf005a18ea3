"""Pages of docs/ with a part that is written out of the code, between two marks."""

from __future__ import annotations


def between(page: str, begin: str, end: str, text: str) -> str:
    """`page` with `text` between its marks. ValueError where it has none."""
    before, opened, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise ValueError(f"the page has no {begin} … {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"
