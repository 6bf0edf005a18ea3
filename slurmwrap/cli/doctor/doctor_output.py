"""What the checks found, as text, as one line for monitors, and as JSON. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from slurmwrap.cli.doctor.check_records import (
    FAIL,
    OK,
    SITE,
    SKIP,
    UNKNOWN,
    WARN,
    YOU,
    CheckResult,
    CheckSpec,
    find_worst_state,
)
from slurmwrap.escape import harmless
from slurmwrap.fast_dataclasses import replace
from slurmwrap.json_output import format_json_document
from slurmwrap.report.job_report.job_report_text import Paint
from slurmwrap.report.text_format import visible

VERSION = 1
_STYLE = {OK: "green", WARN: "yellow", FAIL: "red", UNKNOWN: "yellow", SKIP: "dim"}
_NAGIOS = {OK: "OK", WARN: "WARNING", FAIL: "CRITICAL", UNKNOWN: "UNKNOWN"}
_TITLE = {YOU: "For you, on this host", SITE: "The site"}
# Lines of one check that are shown; JSON has all.
_DETAILS = 12
_WIDE = 80
_LEAST = 30


def format_checks(checks: Sequence[CheckResult], looks: Sequence[CheckSpec], paint: Paint, columns: int = _WIDE) -> str:
    """Two sections of one line per check, and what to do below it; a sum at the end."""
    section_of = {look.name: look.section for look in looks}
    parts = {
        title: list(_skips_folded([check for check in checks if section_of.get(check.name, YOU) == section]))
        for section, title in _TITLE.items()
    }
    indent = 8 + max((len(check.name) for own in parts.values() for check in own), default=0) + 2
    wide = max(columns, indent + _LEAST)
    blocks = [
        "\n".join(
            (paint(title, "bold"), *(line for check in own for line in _format_check(check, indent, wide, paint)))
        )
        for title, own in parts.items()
        if own
    ]
    return "\n\n".join((*blocks, _format_sum(checks)))


def _skips_folded(checks: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """What was skipped for one and the same reason is one row, where the first of them stands."""
    why = {check.text: [one.name for one in checks if (one.state, one.text) == (SKIP, check.text)] for check in checks}
    for check in checks:
        names = why[check.text]
        if check.state != SKIP or len(names) == 1:
            yield check
        elif check.name == names[0]:
            yield replace(check, name=f"{len(names)} checks", details=(", ".join(names),))


def _format_check(check: CheckResult, indent: int, columns: int, paint: Paint) -> Iterator[str]:
    first, *rest = _wrap_text(check.text, columns - indent)
    yield f"{paint(f'{check.state:7}', _STYLE[check.state])} {check.name:{indent - 8}}{first}"
    shown = check.details[:_DETAILS]
    more = len(check.details) - len(shown)
    below = [*rest, *(f"- {one}" for one in shown), *([f"- and {more} more: --json has all"] if more else [])]
    for text in [*below, *([f"→ {check.hint}"] if check.hint else [])]:
        after = "  " if text.startswith(("- ", "→ ")) else ""
        yield from (f"{'':{indent}}{line}" for line in _wrap_text(text, columns - indent, after))


def _wrap_text(text: str, columns: int, after: str = "") -> list[str]:
    """A path is never cut: it is to be copied."""
    lines = textwrap.wrap(
        visible(text), columns, subsequent_indent=after, break_long_words=False, break_on_hyphens=False
    )
    return lines or [""]


def _format_sum(checks: Sequence[CheckResult]) -> str:
    counts = Counter(check.state for check in checks)
    told = [f"{counts[state]} {state}" for state in (OK, WARN, FAIL, UNKNOWN, SKIP) if counts[state]]
    return f"{', '.join(told)}."


def one_line(checks: Sequence[CheckResult]) -> str:
    """`slurmwrap CRITICAL: spool: ... | ok=27 fail=1 ...`: the first line of a Nagios plugin, with its figures."""
    state = _get_state(checks)
    bad = sorted((check for check in checks if check.state not in (OK, SKIP)), key=lambda c: -_RANK.index(c.state))
    said = "; ".join(f"{check.name}: {_clean_text(_with_first(check))}" for check in bad) or _format_sum(checks).rstrip(
        "."
    )
    counts = Counter(check.state for check in checks)
    figures = {name: float(counts[name]) for name in (OK, WARN, FAIL, UNKNOWN, SKIP)}
    for check in checks:
        figures |= check.figures
    return f"slurmwrap {_NAGIOS[state]}: {said} | {' '.join(f'{key}={value:g}' for key, value in figures.items())}"


_RANK = (UNKNOWN, WARN, FAIL)


def _get_state(checks: Sequence[CheckResult]) -> str:
    """Where nothing could be looked at no one knows."""
    return find_worst_state(checks) if any(check.state != SKIP for check in checks) else UNKNOWN


def _with_first(check: CheckResult) -> str:
    more = f" and {len(check.details) - 1} more" if len(check.details) > 1 else ""
    return f"{check.text} ({check.details[0]}{more})" if check.details else check.text


def _clean_text(text: str) -> str:
    """On one line, and without the bar that begins the figures."""
    return harmless(text).replace("\n", " ").replace("|", "/")


def as_json(checks: Sequence[CheckResult], looks: Sequence[CheckSpec]) -> str:
    """The state of all, and every check with its section."""
    section_of = {look.name: look.section for look in looks}
    rows = [_check_to_json_dict(check, section_of.get(check.name, YOU)) for check in checks]
    return format_json_document("doctor", {"version": VERSION, "state": _get_state(checks), "checks": rows})


def _check_to_json_dict(check: CheckResult, section: str) -> dict[str, object]:
    told = {"name": check.name, "section": section, "state": check.state, "text": check.text, "hint": check.hint}
    return {**told, "details": list(check.details), "figures": dict(check.figures)}


def explain_check(look: CheckSpec) -> str:
    """What a check looks at and how it is fixed."""
    lines = [f"{look.name} ({'the site' if look.section == SITE else 'for you'}; within {look.deadline_s:g} s)"]
    for word, text in (("looks at", look.about), ("to fix", look.fix)):
        first, *rest = _wrap_text(text, _WIDE - 12)
        lines += [f"  {word:10}{first}", *(f"{'':12}{line}" for line in rest)]
    return "\n".join(lines)


def format_checks_page(looks: Sequence[CheckSpec]) -> str:
    """docs/doctor.md's list."""
    return "\n\n".join(
        f"### {_TITLE[section]}\n\n" + "\n".join(_page_row(look) for look in looks if look.section == section)
        for section in _TITLE
    )


def _page_row(look: CheckSpec) -> str:
    return f"- **{look.name}** ({look.deadline_s:g} s). {look.about} *To fix:* {look.fix}"
