"""Derive plain strings from a regular expression, one of which is in every match. Pure.

They are used to skip expressions that cannot match. The module understands the syntax that signatures use: literals,
classes, escapes, groups, `?`, `*`, `+`, `{m,n}`, and alternatives at the top or in one required group. From anything
else it derives no string, never a wrong one.
"""

from __future__ import annotations

import re

MIN_LENGTH = 3
# A quantifier in braces. To re, any other brace is a plain character.
_COUNT = re.compile(r"\{(\d{0,6})(?:,\d{0,6})?\}(?<!\{\})")
_SPECIAL = ".^$"
# Characters that stand for themselves. One before a quantifier is not part of the run, because it may be absent.
_PLAIN_RUN = re.compile(r"[^\\\[()|.^$?*+{]+(?![?*+{])")
# Tokens by which groups and alternatives are found: the characters themselves, and tokens in which such a character has
# another meaning.
_STRUCTURE = re.compile(r"\\.?|\[\^?\]?(?:[^\]\\]|\\.?)*\]?|[()|]", re.DOTALL)
_DEEPER = {"(": 1, ")": -1}


def find_required_literals(pattern: str) -> tuple[str, ...]:
    """Return the shortest list of literals of which each match of `pattern` holds at least one; () if there is none."""
    return _find_in_alternatives(_split_alternatives(pattern))


def _find_in_alternatives(branches: list[str]) -> tuple[str, ...]:
    found: list[str] = []
    for branch in branches:
        options = _find_in_branch(branch)
        if not options:
            return ()
        found.extend(option for option in options if option not in found)
    return tuple(found)


def _find_in_branch(branch: str) -> tuple[str, ...]:
    """Return the best single literal of a branch without top-level alternatives, or that of a required group."""
    runs, groups = _split_pieces(branch)
    best = max(runs, key=len, default="")
    if len(best) >= MIN_LENGTH + 2:
        return (best,)
    options = [literals for literals in map(_find_in_group, groups) if literals]
    if len(best) >= MIN_LENGTH:
        options.append((best,))
    return max(options, key=lambda literals: min(map(len, literals)), default=())


def _find_in_group(body: str) -> tuple[str, ...]:
    return _find_in_alternatives(_split_alternatives(body))


def _split_alternatives(pattern: str) -> list[str]:
    if "|" not in pattern:
        return [pattern]
    branches, start, depth = [], 0, 0
    for found in _STRUCTURE.finditer(pattern):
        depth += _DEEPER.get(found[0], 0)
        if found[0] == "|" and depth == 0:
            branches.append(pattern[start : found.start()])
            start = found.end()
    return [*branches, pattern[start:]]


def _read_token(pattern: str, index: int) -> tuple[int, str, str]:
    """Return where the token at `index` ends, its kind, and its character if it is plain.

    The kind is `plain`, `class`, or one of ( ) |.
    """
    char = pattern[index]
    if char == "\\":
        escaped = pattern[index + 1 : index + 2]
        return index + 2, "class" if escaped.isalnum() else "plain", escaped
    if char == "[":
        return _find_end_of_class(pattern, index), "class", ""
    if char in "()|":
        return index + 1, char, ""
    return index + 1, "class" if char in _SPECIAL else "plain", char


def _find_end_of_class(pattern: str, index: int) -> int:
    index += 1
    if pattern[index : index + 1] == "^":
        index += 1
    if pattern[index : index + 1] == "]":
        index += 1
    while index < len(pattern) and pattern[index] != "]":
        index += 2 if pattern[index] == "\\" else 1
    return index + 1


def _split_pieces(branch: str) -> tuple[list[str], list[str]]:
    """Return the runs of plain characters that a match must hold, and the bodies of groups that it must pass."""
    runs: list[str] = []
    groups: list[str] = []
    current, index = "", 0
    while index < len(branch):
        if plain := _PLAIN_RUN.match(branch, index):
            current, index = current + plain[0], plain.end()
            continue
        start = index
        index, kind, char = _read_token(branch, index)
        if kind == "(":
            end = _find_end_of_group(branch, start)
            index, low = _read_quantifier(branch, end, default=1)
            runs.append(current)
            current = ""
            if low:
                groups.append(_get_body(branch[start:end]))
            continue
        index, low = _read_quantifier(branch, index, default=-1)
        if kind == "plain" and low != 0:
            current += char
        if kind != "plain" or low >= 0:
            runs.append(current)
            current = ""
    return [*runs, current], groups


def _find_end_of_group(pattern: str, index: int) -> int:
    depth = 0
    for found in _STRUCTURE.finditer(pattern, index):
        depth += _DEEPER.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(pattern)


def _get_body(group: str) -> str:
    inside = group[1:-1]
    if inside.startswith("?:"):
        return inside[2:]
    if inside.startswith("?P<"):
        return inside[inside.index(">") + 1 :]
    # Look-around and flags guarantee no text.
    return "" if inside.startswith("?") else inside


def _read_quantifier(pattern: str, index: int, *, default: int) -> tuple[int, int]:
    """Return where a quantifier at `index` ends, and its least count; `default` if there is none."""
    char = pattern[index : index + 1]
    if char in ("?", "*", "+"):
        low, index = int(char == "+"), index + 1
    elif found := _COUNT.match(pattern, index):
        low, index = int(found[1] or 0), found.end()
    else:
        return index, default
    return index + (pattern[index : index + 1] == "?"), low


# Largest number of repetitions that is harmless for something that itself varies in length.
_MANY = 10
# Largest number of unbounded classes in one expression: each further one multiplies the cost by the length of a row.
_WIDE = 3


def find_harmful_shape(pattern: str) -> str:
    """Return why `pattern` may take more than linear time, in words; "" if it has none of the known shapes.

    Meant for expressions that people write by hand; a row has at most about 2,000 characters (log_rows.py).
    """
    wide = _count_unbounded_classes(pattern)
    if wide > _WIDE:
        return f"{wide} unbounded repetitions; bound them, such as .{{0,80}}"
    return _find_harm(pattern)


def _find_harm(pattern: str) -> str:
    for body, repeat in _list_groups(pattern):
        if harm := _find_harm(body):
            return harm
        if _count_most_times(repeat) > _MANY and any(_count_most_times(inner) > 1 for inner in _list_quantifiers(body)):
            return "a repetition inside a repetition"
        if _count_most_times(repeat) > _MANY and len(_split_alternatives(body)) > 1:
            return "alternatives inside a repetition"
    return ""


def _list_groups(pattern: str) -> list[tuple[str, str]]:
    """Return the inside of each outermost group, and the quantifier after it."""
    found: list[tuple[str, str]] = []
    index = 0
    while index < len(pattern):
        start = index
        index, kind, _ = _read_token(pattern, index)
        if kind == "(":
            end = _find_end_of_group(pattern, start)
            index, _ = _read_quantifier(pattern, end, default=1)
            found.append((pattern[start + 1 : end - 1], pattern[end:index]))
    return found


def _list_quantifiers(pattern: str) -> list[str]:
    """Return the quantifiers anywhere in `pattern`."""
    found: list[str] = []
    index = 0
    while index < len(pattern):
        end, _, _ = _read_token(pattern, index)
        index, _ = _read_quantifier(pattern, end, default=1) if pattern[index] not in "(|" else (end, 1)
        found.append(pattern[end:index])
    return [quantifier for quantifier in found if quantifier]


def _count_unbounded_classes(pattern: str) -> int:
    return sum(_count_most_times(quantifier) > 1000 for quantifier in _list_quantifiers(pattern))


def _count_most_times(quantifier: str) -> float:
    """Return the largest count of a quantifier; 1 without one, and for a fixed number, whose length does not vary."""
    if not quantifier or quantifier[0] == "?":
        return 1
    if quantifier[0] in "*+":
        return float("inf")
    low, comma, high = quantifier.rstrip("?").strip("{}").partition(",")
    if not comma:
        return 1 if int(low) <= _MANY else int(low)
    return int(high) if high else float("inf")
