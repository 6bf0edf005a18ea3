"""Expand Slurm's host lists ("n[1-3,05-07],login") to names, and fold names to host lists. Pure.

The result has the same names in the same order as `scontrol show hostnames` and `scontrol show hostlist`: duplicates
and order are kept, since the order determines rank placement. Suffixes after a bracket are parsed as in Slurm 24.11;
22.05 refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from math import prod

# More names than any cluster has. "n[0-999999999]" must not exhaust the memory.
MAX_NAMES = 1 << 20

_TOKEN = re.compile(r"([^\[\],\s]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,18})", re.ASCII | re.DOTALL)


def expand(hostlist: str) -> tuple[str, ...]:
    """Return the names in Slurm's order; () for empty text. ValueError names the part that is not a host list."""
    names: list[str] = []
    for part in _split(hostlist):
        names.extend(_expand_one(part, hostlist))
        if len(names) > MAX_NAMES:
            raise ValueError(f"host list '{hostlist[:80]}' has more than {MAX_NAMES} names")
    return tuple(names)


def names_in(hostlist: str) -> tuple[str, ...]:
    """Return the names of a field that Slurm printed; () for "(null)" and for text that is not a host list."""
    try:
        return expand("" if hostlist == "(null)" else hostlist)
    except ValueError:
        return ()


def fold(names: Iterable[str]) -> str:
    """Return the shortest host list that keeps the order.

    Neighbours with consecutive last numbers share a bracket.
    """
    parts: list[str] = []
    prefix, ranges = "", list[tuple[str, str]]()
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None or match[1] != prefix or not ranges:
            parts.append(_join(prefix, ranges))
            prefix, ranges = (match[1], [(match[2], match[2])]) if match else ("", [])
            if match is None:
                parts.append(name)
        elif _follows(ranges[-1][1], match[2]):
            ranges[-1] = (ranges[-1][0], match[2])
        else:
            ranges.append((match[2], match[2]))
    return ",".join(part for part in (*parts, _join(prefix, ranges)) if part)


def _split(hostlist: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    start = depth = 0
    for at, character in enumerate(hostlist):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield hostlist[start:at]
            start = at + 1
    yield hostlist[start:]


def _expand_one(part: str, hostlist: str) -> Iterable[str]:
    if "[" not in part and "]" not in part and not any(c.isspace() for c in part):
        return (part,) if part else ()
    literals: list[str] = []
    columns: list[list[str]] = []
    at = 0
    while at < len(part):
        match = _TOKEN.match(part, at)
        if match is None or match.end() == at:
            raise ValueError(f"'{part[:80]}' in host list '{hostlist[:80]}' is not a host name or range")
        literals.append(match[1])
        columns.append(_numbers(match[2], part) if match[2] is not None else [""])
        at = match.end()
    if prod(len(column) for column in columns) > MAX_NAMES:
        raise ValueError(f"host list '{part[:80]}' has more than {MAX_NAMES} names")
    return _combine(literals, columns)


def _combine(literals: list[str], columns: list[list[str]]) -> list[str]:
    """Combine the brackets in Slurm's order, which is the same in 22.05 to 26.05.

    The last bracket varies fastest, then the first, the second, and so on.
    """
    # Fast path for nearly every list: a tree of 10,000 nodes lists each of them at every level.
    if len(columns) == 1:
        return [literals[0] + number for number in columns[0]]
    brackets = [i for i, column in enumerate(columns) if len(column) > 1]
    turning = [*reversed(brackets[:-1]), *brackets[-1:]]
    names = list[str]()
    for choice in product(*(columns[i] for i in turning)):
        chosen = dict(zip(turning, choice, strict=True))
        names.append("".join(literals[i] + chosen.get(i, columns[i][0]) for i in range(len(literals))))
    return names


def _numbers(text: str, part: str) -> list[str]:
    numbers: list[str] = []
    for piece in text.split(","):
        # Every Slurm version refuses letters in brackets as well.
        match = _RANGE.fullmatch(piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first or last - first >= MAX_NAMES:
            raise ValueError(f"'{piece[:80]}' in '{part[:80]}' is not a range of numbers")
        numbers.extend(str(n).zfill(len(match[1])) for n in range(first, last + 1))
    return numbers


def _follows(last: str, number: str) -> bool:
    """Return True if `number` is the next name that `expand` would yield for a range that continues after `last`."""
    return number == str(int(last) + 1).zfill(len(last))


def _join(prefix: str, ranges: list[tuple[str, str]]) -> str:
    pieces = [first if first == last else f"{first}-{last}" for first, last in ranges]
    single = len(pieces) == 1 and "-" not in pieces[0]
    return prefix + pieces[0] if single else f"{prefix}[{','.join(pieces)}]" if pieces else ""
