"""Text of others on its way to something that reads it: one function for each such reader. Pure; standard library only.

A job's name, a comment, a path, a line of a log: anyone who wrote it must not speak to a terminal, make a formula of a
cell, or write a line of slurmwrap's. What cannot be shown is spelt, not left out, but by `marked`.

    visible        one line of a terminal or a page
    harmless       several lines of one: line breaks and tabs stay
    marked         where nothing may become longer: a header of a mail, a name in a table of names
    utf8           bytes of a file or for journald
    comment        a job's Comment in Slurm
    cell           CSV that a spreadsheet opens
    markdown       words, code and blocks of Markdown

HTML is escaped by Jinja2, labels of metrics by prometheus_client, TOML and words of a shell where they are written.
"""

from __future__ import annotations

# What spreadsheets take for one (OWASP, CSV injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SPECIAL = frozenset("\\`*_[]<>|~#&!@")
# Characters of slurmwrap's in a Comment.
_COMMENT = 400


def visible(text: str) -> str:
    """On one line: control and escape characters, line breaks and what turns the direction of text spelt out."""
    # Nearly all: a list of a site has millions of cells.
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _spelt(character) for character in text)


def harmless(text: str) -> str:
    """The same of several lines: line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() else _spelt(c) for c in text)


def _spelt(character: str) -> str:
    code = ord(character)
    # A byte that was no UTF-8 (PEP 383).
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def marked(text: str, mark: str, most: int) -> str:
    """At most `most` characters, each that cannot be shown replaced by `mark`; "" leaves them out."""
    cut = text[:most]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else mark for c in cut)


def utf8(text: str) -> bytes:
    """As bytes; halves of surrogate pairs and bytes that were no UTF-8 spelt out."""
    return text.encode("utf-8", "backslashreplace")


def comment(text: str, known: str = "") -> str:
    """For a job's Comment, behind what is there: one line, bounded. Programs read `scontrol show` line by line."""
    ours = visible(text)[:_COMMENT]
    return f"{known} | {ours}" if known else ours


def cell(text: str) -> str:
    """For CSV: printable, and never a formula."""
    return f"'{visible(text)}" if text.startswith(_FORMULA) else visible(text)


def markdown(text: str) -> str:
    """As words: characters that Markdown reads are escaped."""
    return "".join(f"\\{c}" if c in _SPECIAL else c for c in visible(text))


def markdown_code(text: str) -> str:
    """As a code span. A pipe is escaped: GitHub's tables are cut before spans are read."""
    shown = visible(text).replace("|", "\\|") or "–"
    fence = "`" * (1 + _longest_fence(shown))
    space = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{space}{shown}{space}{fence}"


def markdown_block(text: str, language: str) -> str:
    """As a block to copy from."""
    shown = visible(text)
    fence = "`" * max(3, 1 + _longest_fence(shown))
    return f"{fence}{language}\n{shown}\n{fence}"


def _longest_fence(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
