"""Tables of words, written as text."""

from __future__ import annotations


def split_word_table(text: str) -> frozenset[str]:
    """The blank-separated words of `text`."""
    return frozenset(text.split())
