"""`slurmwrap doctor`: does everything work, and how is it fixed. Flags in, checks run, results printed."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.doctor.check_records import (
    DEADLINE_S,
    FAIL,
    OK,
    SITE,
    SKIP,
    UNKNOWN,
    WARN,
    YOU,
    CheckContext,
    CheckResult,
    CheckSpec,
    find_worst_state,
)
from slurmwrap.cli.doctor.check_registry import LOOKS
from slurmwrap.config.load_config import load
from slurmwrap.console import Console, columns
from slurmwrap.errors import ConfigError, UsageError
from slurmwrap.escape import harmless
from slurmwrap.fast_dataclasses import asdict, dataclass, field, replace
from slurmwrap.json_output import format_json_document
from slurmwrap.report.job_report.job_report_text import Paint
from slurmwrap.report.text_format import fit, visible
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.site_topology import SiteRacks

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


def format_checks_as_json(checks: Sequence[CheckResult], looks: Sequence[CheckSpec]) -> str:
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


# Runs the checks: each in a process of its own with a deadline, several side by side, so that none can hang doctor.
#
# A thread would not do: one that waits for a dead NFS server cannot be left behind. A child can, also in D state.
_SIDE_BY_SIDE = 6
_TICK_S = 0.1
# The names of the checks that are at work.
Progress = Callable[[Sequence[str]], None]


@dataclass(slots=True)
class _Child:
    look: CheckSpec
    pid: int
    reader: int
    until: float
    said: bytearray = field(default_factory=bytearray)


def run_all_checks(
    where: CheckContext, looks: Sequence[CheckSpec], progress: Progress = lambda names: None
) -> tuple[CheckResult, ...]:
    """All checks, in the order of `looks`. One that goes wrong or hangs is reported as such, and the others go on."""
    # An answer of Slurm's that no one can read: each check that asks for it will say so.
    with suppress(Exception):
        where.prime()
    waiting, running = list(looks), list[_Child]()
    found: dict[str, CheckResult] = {}
    while waiting or running:
        while waiting and len(running) < _SIDE_BY_SIDE:
            running.append(_start_child(waiting.pop(0), where))
        progress([child.look.name for child in running])
        _read_children(running)
        for child in [child for child in running if _is_over(child)]:
            running.remove(child)
            found[child.look.name] = _get_child_result(child)
    return tuple(found[look.name] for look in looks)


def run_check(look: CheckSpec, where: Any) -> CheckResult:
    """One check in this process; what goes wrong in it is its result."""
    try:
        return look.see(where)
    except Exception as error:
        text = f"the check itself failed: {type(error).__name__}: {error}"
        return CheckResult(name=look.name, state=UNKNOWN, text=text)


def check_for_hang(name: str, work: Callable[[], object], deadline_s: float) -> CheckResult | None:
    """Whether something that must be done in this process would hang it: a child does it first. None: it ends."""

    def see(_: CheckContext) -> CheckResult:
        # What is wrong with it is reported when it is done here.
        with suppress(Exception):
            work()
        return CheckResult(name=name, state=OK, text="")

    look = CheckSpec(
        name=name, section=YOU, see=see, about="A file server does not answer.", fix="", deadline_s=deadline_s
    )
    child = _start_child(look, None)
    while not _is_over(child):
        _read_children([child])
    found = _get_child_result(child)
    return found if found.state == FAIL else None


def _start_child(look: CheckSpec, where: CheckContext | None) -> _Child:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # What it starts goes with it.
            os.setsid()
            os.close(reader)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            with os.fdopen(writer, "wb") as stream:
                stream.write(json.dumps(asdict(run_check(look, where))).encode())
        finally:
            os._exit(0)
    os.close(writer)
    return _Child(look=look, pid=pid, reader=reader, until=time.monotonic() + look.deadline_s)


def _read_children(running: Sequence[_Child]) -> None:
    """Takes what has come, for a moment at most. A reader at its end is closed."""
    by_reader = {child.reader: child for child in running}
    for reader in select.select(list(by_reader), [], [], _TICK_S)[0]:
        chunk = os.read(reader, 1 << 16)
        by_reader[reader].said.extend(chunk)
        if not chunk:
            os.close(reader)
            by_reader[reader].reader = -1


def _is_over(child: _Child) -> bool:
    return child.reader < 0 or time.monotonic() >= child.until


def _get_child_result(child: _Child) -> CheckResult:
    if child.reader >= 0:
        os.close(child.reader)
        _kill(child.pid)
        text = f"no answer within {child.look.deadline_s:g} s"
        return CheckResult(
            name=child.look.name, state=FAIL, text=text, hint=f"Something it waits for hangs. {child.look.about}"
        )
    os.waitpid(child.pid, 0)
    try:
        return _from_plain(json.loads(bytes(child.said)))
    except ValueError:
        return CheckResult(name=child.look.name, state=UNKNOWN, text="the check ended without a word")


def _kill(pid: int) -> None:
    """Its whole session. One in D state is left behind: init takes it when we are gone."""
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, os.WNOHANG)


def _from_plain(plain: dict[str, Any]) -> CheckResult:
    return CheckResult(**{**plain, "details": tuple(plain["details"])})


# Nagios', which most monitors take.
EXIT = {OK: 0, WARN: 1, FAIL: 2, UNKNOWN: 3}
# A progress line for what takes longer.
_SOON_S = 1.0

_Json = Annotated[bool, typer.Option("--json", help="For programs.")]
_Only = Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this check; may be repeated.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="One line, as Nagios and Icinga take it.")]
_Explain = Annotated[str, typer.Option("--explain", metavar="NAME", help="What a check looks at; 'all': every one.")]


def doctor(as_json: _Json = False, only: _Only = None, quiet: _Quiet = False, explain: _Explain = "") -> None:
    """Check that everything works that slurmwrap needs, and say how to fix what does not.

    Run it as root or SlurmUser on the controller to have all of the site looked at. Nothing is
    changed and nothing submitted; the probe of the spool is removed at once.

    Exit codes, as monitors want them: 0 all is well, 1 a warning, 2 a failure, 3 unknown.

    \b
    Examples:
      slurmwrap doctor
      slurmwrap doctor --only spool --only reconciler
      slurmwrap doctor --quiet                    for Nagios and Icinga
      slurmwrap doctor --explain "hooks on nodes"
      slurmwrap doctor --json | jq '.checks[] | select(.state == "fail")'
    """
    if explain:
        looks = LOOKS if explain == "all" else _select_named_checks([explain])
        typer.echo("\n\n".join(explain_check(look) for look in looks))
        return
    looks = _select_named_checks(only or [])
    checks = _run_checks(looks, quiet or as_json)
    if as_json:
        typer.echo(format_checks_as_json(checks, looks))
    elif quiet:
        typer.echo(one_line(checks))
    else:
        typer.echo(format_checks(checks, looks, terminal.painter(), _get_width()))
    sys.exit(code_of(checks))


def _get_width() -> int:
    """As wide as the terminal, as far as lines stay readable; 80 where there is none."""
    return min(120, shutil.get_terminal_size((80, 24)).columns)


def code_of(checks: Sequence[CheckResult]) -> int:
    """For monitors. Where nothing could be looked at no one knows."""
    looked_at = [check for check in checks if check.state != SKIP]
    return EXIT[find_worst_state(checks)] if looked_at else EXIT[UNKNOWN]


def make_check_context() -> CheckContext:
    """This process's own. ConfigError where the configuration cannot be read: then nothing else can be trusted."""
    config, environ = load(os.environ), dict(os.environ)
    racks = SiteRacks(config.placement.topology_file, config.placement.topology_features)
    commands = SlurmCommands(environ, timeout_s=config.slurm_timeout_s, network=racks)
    return CheckContext(config=config, environ=environ, uid=os.geteuid(), commands=commands)


def _run_checks(looks: Sequence[CheckSpec], silent: bool) -> tuple[CheckResult, ...]:
    if hung := check_for_hang("configuration", lambda: load(os.environ), DEADLINE_S):
        return (hung,)
    try:
        where = make_check_context()
    except ConfigError as error:
        return (CheckResult(name="configuration", state=FAIL, text=str(error), hint=error.hint or _CONFIG),)
    console = Console.of_terminal("slurmwrap")
    if not silent:
        console.redraw("asking slurmctld")
    found = run_all_checks(where, looks, (lambda names: None) if silent else _make_progress(console))
    console.progress_done()
    return found


_CONFIG = "`slurmwrap config check FILE` tells everything that is wrong with a file. Nothing else was looked at."


def _make_progress(console: Console) -> Progress:
    begun = time.monotonic()

    def show(names: Sequence[str]) -> None:
        seconds = time.monotonic() - begun
        if seconds > _SOON_S:
            console.redraw(fit(f"{seconds:.0f} s: looking at {', '.join(names)}", columns()))

    return show


def _select_named_checks(names: Sequence[str]) -> tuple[CheckSpec, ...]:
    """All without a name. UsageError for one that no check has."""
    plain = {_normalize_name(look.name): look for look in LOOKS}
    for name in names:
        if _normalize_name(name) not in plain:
            known = ", ".join(look.name for look in LOOKS)
            raise UsageError(f"there is no check '{name}'", hint=f"the checks are: {known}")
    wanted = {_normalize_name(name) for name in names}
    return tuple(look for key, look in plain.items() if not names or key in wanted)


def _normalize_name(name: str) -> str:
    """Names may be written without blanks: hooks-on-nodes."""
    return name.lower().replace("-", " ").replace("_", " ")
