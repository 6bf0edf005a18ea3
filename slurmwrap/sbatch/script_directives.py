"""Parse the `#SBATCH` and `#GSUB` lines of a batch script word by word, and replace words in them. Pure.

The rules are those of sbatch. Measured on 22.05.8 (`sbatch -v --test-only` prints the options it read):
- the magic word is a prefix: `#SBATCH--nodes=2` counts, ` #SBATCH` and `##SBATCH` are comments, `#SLURM` still counts;
- directives end at the first line that is neither blank nor a comment;
- the words of all lines are one argument list: an option may take its value from the next line;
- `#` outside quotes ends a line, also inside a word (`--comment=a#b` is `a`); a backslash escapes the next character,
  in and out of quotes, but unquoted white space after it still ends the word (since 24.05 a space does not);
- an empty word (`""`) ends its line; unmatched quotes and a word that starts with `:` are fatal (exit code 1);
- `hetjob` (or `packjob`) as first word begins the next component of a heterogeneous job; as any word it ends its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.sbatch.option_table import Release

MAGIC_WORDS = (b"#SBATCH", b"#SLURM", b"#GSUB")
# The characters of isspace() in the C locale.
_BLANK = b" \t\n\v\f\r"
_SEPARATORS = (b"hetjob", b"packjob")
_NEEDS_QUOTES = b"\"'\\# \t\v\f\r"
# From this release on, an escaped space (`\ `) outside quotes does not end the word.
_KEEPS_SPACE_SINCE = (24, 5)


class BadLine(Exception):
    """A directive line that is fatal for sbatch, or a `#GSUB` line (`own`) with an error of the same kind."""

    def __init__(self, message: str, line: int, own: bool = False) -> None:
        super().__init__(message)
        self.line = line
        self.own = own


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectiveWord:
    """One word of a directive line: its text without quotes, and the bytes of the script from which it was read."""

    text: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """One directive line. `start` and `stop` span it in the script without its line break; `line` counts from 1."""

    # "#SBATCH" (also for #SLURM) or "#GSUB".
    magic: str
    line: int
    start: int
    stop: int
    words: tuple[DirectiveWord, ...]
    # The line begins the next component of a heterogeneous job.
    hetjob: bool = False


def parse_directives(content: bytes, release: Release | None = None) -> tuple[Directive, ...]:
    """Return all directive lines of a script, in order, as sbatch `release` reads them.

    Raises BadLine for a line that is fatal for sbatch. If `release` is None (not known), also for a line that releases
    read differently, so that sbatch itself must read it.
    """
    keeps_space = None if release is None else release >= _KEEPS_SPACE_SINCE
    return tuple(
        _parse_directive(content, number, start, stop, magic, True if magic == b"#GSUB" else keeps_space)
        for number, start, stop, magic in _scan_lines_before_program(content)
        if magic
    )


def has_foreign_directives(content: bytes) -> bool:
    """Return whether sbatch would translate `#PBS` or `#BSUB` lines: they come after `#SBATCH` and override it."""
    return any(line.startswith((b"#PBS", b"#BSUB")) for line in content.split(b"\n"))


def replace_spans(content: bytes, replacements: Mapping[tuple[int, int], bytes]) -> bytes:
    """Return the script with the bytes of each (start, stop) replaced; all other bytes stay the same."""
    pieces: list[bytes] = []
    at = 0
    for (start, stop), new in sorted(replacements.items()):
        pieces += [content[at:start], new]
        at = stop
    return b"".join([*pieces, content[at:]])


def quote_word(text: str) -> bytes:
    """Return `text` as one word of a directive line.

    Raises ValueError for a text that no line can contain: empty, or with NUL or a line break.
    """
    raw = text.encode(errors="surrogateescape")
    if not raw or b"\n" in raw or b"\0" in raw:
        raise ValueError(f"{text!r} cannot be written as a word of an #SBATCH line")
    if raw.startswith(b":") or raw.lower() in _SEPARATORS or any(byte in _NEEDS_QUOTES for byte in raw):
        return b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    return raw


def _scan_lines_before_program(content: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield (number, start, stop, magic word or b"") of each line before the program."""
    start, number = 0, 1
    while start < len(content):
        stop = content.find(b"\n", start)
        stop = len(content) if stop < 0 else stop
        magic = next((m for m in MAGIC_WORDS if content.startswith(m, start, stop)), b"")
        first = content[start:stop].lstrip(_BLANK)[:1]
        if not magic and first not in (b"", b"#"):
            return
        yield number, start, stop, magic
        start, number = stop + 1, number + 1


def _parse_directive(
    content: bytes, number: int, start: int, stop: int, magic: bytes, keeps_space: bool | None
) -> Directive:
    after = _skip_blanks(content, start + len(magic), stop)
    try:
        words = tuple(_split_words(content, after, stop, number, keeps_space))
    except BadLine as bad:
        raise BadLine(str(bad), number, own=magic == b"#GSUB") from None
    return Directive(
        magic="#GSUB" if magic == b"#GSUB" else "#SBATCH",
        line=number,
        start=start,
        stop=stop,
        words=words,
        hetjob=_is_separator_at(content, after, stop),
    )


def _split_words(content: bytes, at: int, stop: int, number: int, keeps_space: bool | None) -> Iterator[DirectiveWord]:
    """Yield the words up to the first empty one; sbatch sees `hetjob` as an empty word too."""
    while True:
        start = _skip_blanks(content, at, stop)
        if _is_separator_at(content, start, stop):
            return
        if start < stop and content[start : start + 1] == b":":
            raise BadLine(f"line {number}: Unexpected `:` in [{_decode_part(content, at, stop)}]", number)
        text, end = _parse_word(content, start, stop, bool(keeps_space))
        if keeps_space is None and (text, end) != _parse_word(content, start, stop, True):
            raise BadLine(f"line {number}: a space after a backslash ends the word before Slurm 24.05 only", number)
        if end < 0:
            raise BadLine(f"line {number}: Unmatched `{text.decode()}` in [{_decode_part(content, at, stop)}]", number)
        if not text:
            return
        yield DirectiveWord(text=text.decode(errors="surrogateescape"), start=start, stop=end)
        at = end


def _parse_word(content: bytes, at: int, stop: int, keeps_space: bool) -> tuple[bytes, int]:
    """Return the word at `at` without its quotes, and its end; -1 if a quote (returned instead) is not closed."""
    text = bytearray()
    quote, escaped = b"", False
    while at < stop and (quote or content[at] not in _BLANK or (escaped and keeps_space and content[at] == 32)):
        byte = content[at : at + 1]
        at += 1
        if escaped:
            escaped = False
        elif byte == b"\\":
            escaped = True
            continue
        elif quote and byte == quote:
            quote = b""
            continue
        elif not quote and byte in (b'"', b"'"):
            quote = byte
            continue
        elif not quote and byte == b"#":
            # The rest of the line is a comment.
            return bytes(text), at - 1
        text += byte
    return (quote, -1) if quote else (bytes(text), at)


def _decode_part(content: bytes, start: int, stop: int) -> str:
    return content[start:stop].decode(errors="replace")


def _skip_blanks(content: bytes, at: int, stop: int) -> int:
    while at < stop and content[at] in _BLANK:
        at += 1
    return at


def _is_separator_at(content: bytes, at: int, stop: int) -> bool:
    """Whether `hetjob` is at `at` as a whole word."""
    ends = ((word, at + len(word)) for word in _SEPARATORS)
    return any(
        content[at:end].lower() == word and (end == stop or (end < stop and content[end] in _BLANK))
        for word, end in ends
    )
