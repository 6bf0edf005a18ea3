"""Split tables of words that are written as text."""

from __future__ import annotations


def split_word_table(text: str) -> frozenset[str]:
    """Return the blank-separated words of `text`."""
    return frozenset(text.split())
