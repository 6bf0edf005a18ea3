"""Fold rows for people: names that differ in one number share a line, and so do rows with the same content. Pure.

node[01-40]                      nodes, as Slurm's host lists
77_[0-31]                        tasks of an array, as squeue shows them
/data/shard-[000-040].tar        files
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from slurmwrap.report.text_format import fit

T = TypeVar("T")
# Largest width of an array's tasks in a table, in columns.
_LABEL_COLUMNS = 20
_NUMBER = re.compile(r"([0-9]{1,15})")


def group_alike(rows: Iterable[T], key: Callable[[T], Hashable]) -> tuple[tuple[T, ...], ...]:
    """Return groups of rows with the same key, in the order of each group's first row."""
    groups: dict[Hashable, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return tuple(map(tuple, groups.values()))


def fold_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names once, with ranges in brackets where several differ in one number only.

    Numbers with leading zeros are folded with those of the same width, so that each name follows from the range.
    """
    shapes: dict[tuple[str, ...], list[list[str]]] = {}
    for name in dict.fromkeys(names):
        parts = _NUMBER.split(name)
        shapes.setdefault((*parts[::2], str(len(parts))), []).append(parts)
    return tuple(one for group in shapes.values() for one in _fold_by_shape(group))


def _fold_by_shape(group: list[list[str]]) -> Iterable[str]:
    """Fold names that have the same text between their numbers, at the number that leaves the fewest names."""
    places = range(1, len(group[0]), 2)
    if len(group) == 1 or not places:
        return ["".join(parts) for parts in group]
    folds = {at: _fold_at(at, group) for at in places}
    best = min(places, key=lambda at: (len(folds[at]), -at))
    return [_join_names(same, best) for same in folds[best]]


def _fold_at(at: int, group: Sequence[list[str]]) -> list[tuple[list[str], ...]]:
    same = group_alike(group, lambda parts: (*parts[:at], *parts[at + 1 :]))
    return [one for names in same for one in _group_by_width(names, at)]


def _group_by_width(names: tuple[list[str], ...], at: int) -> tuple[tuple[list[str], ...], ...]:
    padded = any(parts[at].startswith("0") and len(parts[at]) > 1 for parts in names)
    return group_alike(names, lambda parts: len(parts[at])) if padded else (names,)


def _join_names(same: Sequence[Sequence[str]], at: int) -> str:
    first = same[0]
    if len(same) == 1:
        return "".join(first)
    return "".join((*first[:at], f"[{format_ranges(parts[at] for parts in same)}]", *first[at + 1 :]))


def format_ranges(numbers: Iterable[str]) -> str:
    """Format numbers as ranges: "3", "1", "2", "7" -> "1-3,7"; leading zeros are kept."""
    ordered = sorted(set(numbers), key=lambda number: (int(number), number))
    found: list[tuple[str, str]] = []
    for number in ordered:
        if found and int(number) == int(found[-1][1]) + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return ",".join(first if first == last else f"{first}-{last}" for first, last in found)


def label(addresses: Sequence[str]) -> str:
    """Return the label of jobs on one line, newest first.

    Examples: "81", "77_[0-31] (32)", and "81 (5)" for five similar jobs of which 81 is the newest.
    """
    if len(addresses) == 1:
        return addresses[0]
    of_array = all("_" in address for address in addresses)
    name = fold_jobs(reversed(addresses)) if of_array else addresses[0]
    return f"{fit(name, _LABEL_COLUMNS)} ({len(addresses)})"


def drop_empty_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a table without the columns in which all cells are empty."""
    keep = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return [head[i] for i in keep], [[row[i] for i in keep] for row in rows]


def fold_jobs(addresses: Iterable[str]) -> str:
    """Format addresses as Slurm does: "81", "77_[0-31]"; several are separated by commas."""
    arrays: dict[str, list[str]] = {}
    for address in dict.fromkeys(addresses):
        head, _, task = address.partition("_")
        arrays.setdefault(head, []).append(task)
    return ", ".join(_format_array(head, tasks) for head, tasks in arrays.items())


def _format_array(head: str, tasks: Sequence[str]) -> str:
    known = [task for task in tasks if task.isdecimal()]
    if not known:
        return head
    return f"{head}_{known[0]}" if len(known) == 1 else f"{head}_[{format_ranges(known)}]"
