"""Compares the output that a page shows with the printed output. Dates, numbers, names and paths may differ."""

from __future__ import annotations

import re

_ALIKE = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"/var/tmp/slurmwrap-test-[^\s'\"]*?/home|/home/ada", "~"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?([+-]\d\d:?\d\d|Z)?\b", "DATE"),
    (r"\b[0-9a-f]{12,64}\b", "DIGEST"),
    (r"\bn\[?\d[\d,\[\]-]*", "NODE"),
    (r"\d+([.,:]\d+)*", "0"),
    (r"[─━═-]{2,}", "--"),
    (r"\s+", " "),
)


def find_missing_lines(shown: tuple[str, ...], printed: str, user: str) -> list[str]:
    """Lines of the page that were not printed, in the page's order; `…` stands for any lines or any part of one."""
    left = [normalize(line, user) for line in printed.splitlines()]
    lost = []
    for line in shown:
        wanted = normalize(line, user)
        if wanted in ("", "…", "..."):
            continue
        at = next((n for n, have in enumerate(left) if _matches(wanted, have)), None)
        if at is None:
            lost.append(line)
        else:
            left = left[at + 1 :]
    return lost


def normalize(line: str, user: str) -> str:
    """A line without the parts that differ between runs."""
    line = line.replace(user, "ada")
    for pattern, sign in _ALIKE:
        line = re.sub(pattern, sign, line)
    return line.strip()


def _matches(wanted: str, have: str) -> bool:
    return re.fullmatch(".*".join(re.escape(part) for part in wanted.split("…")), have) is not None
