"""Escape untrusted text for each kind of output: terminal, CSV, Markdown, mail, Slurm comment. Pure; standard library.

Job names, comments, paths and log lines are written by users. Such text must not control a terminal, become a formula
in a spreadsheet cell, or imitate a line of slurmwrap's own output. Characters that cannot be shown are spelt out as
escape sequences; only `marked` may drop them.

    visible        one line of a terminal or a page
    harmless       several lines: line breaks and tabs stay
    marked         output that must not become longer than the text: a mail header, a name in a table
    utf8           bytes for a file or for journald
    comment        a job's Comment in Slurm
    cell           CSV that a spreadsheet opens
    markdown       words, code and blocks of Markdown

HTML is escaped by Jinja2, metric labels by prometheus_client; TOML and shell words are quoted where they are written.
"""

from __future__ import annotations

# First characters that make a spreadsheet read a cell as a formula (OWASP, CSV injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SPECIAL = frozenset("\\`*_[]<>|~#&!@")
# Maximum number of characters that slurmwrap adds to a Comment.
_COMMENT = 400


def visible(text: str) -> str:
    """Return the text as one line: control characters, line breaks and bidirectional controls are spelt out."""
    # Fast path for nearly all texts: the lists of a site have millions of cells.
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _spell_out(character) for character in text)


def harmless(text: str) -> str:
    """Return several lines of text with the same escapes as `visible`, but line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() else _spell_out(c) for c in text)


def _spell_out(character: str) -> str:
    code = ord(character)
    # A byte that was not valid UTF-8, as Python decodes it (PEP 383).
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def marked(text: str, mark: str, most: int) -> str:
    """Return at most `most` characters; those that cannot be shown become `mark` ("" removes them)."""
    cut = text[:most]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else mark for c in cut)


def utf8(text: str) -> bytes:
    """Return UTF-8 bytes; lone surrogates and bytes that were not valid UTF-8 are spelt out."""
    return text.encode("utf-8", "backslashreplace")


def comment(text: str, known: str = "") -> str:
    """Return a job's Comment: `known`, then `text` cut to one short line. Programs read `scontrol show` by lines."""
    addition = visible(text)[:_COMMENT]
    return f"{known} | {addition}" if known else addition


def cell(text: str) -> str:
    """Return a CSV cell that is printable and never a formula."""
    return f"'{visible(text)}" if text.startswith(_FORMULA) else visible(text)


def markdown(text: str) -> str:
    """Return text with the characters escaped that have a meaning in Markdown."""
    return "".join(f"\\{c}" if c in _SPECIAL else c for c in visible(text))


def markdown_code(text: str) -> str:
    """Return a code span. A pipe is escaped because GitHub splits table rows before it reads code spans."""
    shown = visible(text).replace("|", "\\|") or "–"
    fence = "`" * (1 + _find_longest_backtick_run(shown))
    space = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{space}{shown}{space}{fence}"


def markdown_block(text: str, language: str) -> str:
    """Return a fenced code block."""
    shown = visible(text)
    fence = "`" * max(3, 1 + _find_longest_backtick_run(shown))
    return f"{fence}{language}\n{shown}\n{fence}"


def _find_longest_backtick_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
