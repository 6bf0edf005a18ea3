"""The command `slurmwrap doctor`: run the checks in child processes and print their results (adapter)."""

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
from slurmwrap.cli.doctor import webhook_checks
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
from slurmwrap.cli.doctor.check_registry import CHECK_SPECS
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
# Number of detail lines printed per check; JSON has all of them.
_MOST_DETAILS = 12
_DEFAULT_COLUMNS = 80
_MIN_TEXT_COLUMNS = 30


def format_checks(
    checks: Sequence[CheckResult], specs: Sequence[CheckSpec], paint: Paint, columns: int = _DEFAULT_COLUMNS
) -> str:
    """Return two sections with one line per check, its details and hint below it, and a summary at the end."""
    section_of = {spec.name: spec.section for spec in specs}
    parts = {
        title: list(_fold_skipped_checks([check for check in checks if section_of.get(check.name, YOU) == section]))
        for section, title in _TITLE.items()
    }
    indent = 8 + max((len(check.name) for own in parts.values() for check in own), default=0) + 2
    wide = max(columns, indent + _MIN_TEXT_COLUMNS)
    blocks = [
        "\n".join(
            (paint(title, "bold"), *(line for check in own for line in _format_check(check, indent, wide, paint)))
        )
        for title, own in parts.items()
        if own
    ]
    return "\n\n".join((*blocks, _format_summary(checks)))


def _fold_skipped_checks(checks: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """Yield the checks; those skipped for the same reason become one row, at the position of the first of them."""
    skipped = {
        check.text: [one.name for one in checks if (one.state, one.text) == (SKIP, check.text)] for check in checks
    }
    for check in checks:
        names = skipped[check.text]
        if check.state != SKIP or len(names) == 1:
            yield check
        elif check.name == names[0]:
            yield replace(check, name=f"{len(names)} checks", details=(", ".join(names),))


def _format_check(check: CheckResult, indent: int, columns: int, paint: Paint) -> Iterator[str]:
    first, *rest = _wrap_text(check.text, columns - indent)
    yield f"{paint(f'{check.state:7}', _STYLE[check.state])} {check.name:{indent - 8}}{first}"
    shown = check.details[:_MOST_DETAILS]
    more = len(check.details) - len(shown)
    below = [*rest, *(f"- {one}" for one in shown), *([f"- and {more} more: --json has all"] if more else [])]
    for text in [*below, *([f"→ {check.hint}"] if check.hint else [])]:
        after = "  " if text.startswith(("- ", "→ ")) else ""
        yield from (f"{'':{indent}}{line}" for line in _wrap_text(text, columns - indent, after))


def _wrap_text(text: str, columns: int, after: str = "") -> list[str]:
    """Wrap text without breaking a path, so that users can copy it."""
    lines = textwrap.wrap(
        visible(text), columns, subsequent_indent=after, break_long_words=False, break_on_hyphens=False
    )
    return lines or [""]


def _format_summary(checks: Sequence[CheckResult]) -> str:
    counts = Counter(check.state for check in checks)
    parts = [f"{counts[state]} {state}" for state in (OK, WARN, FAIL, UNKNOWN, SKIP) if counts[state]]
    return f"{', '.join(parts)}."


def format_nagios_line(checks: Sequence[CheckResult]) -> str:
    """Return the line of a Nagios plugin with its performance data: `slurmwrap CRITICAL: spool: ... | ok=27 fail=1`."""
    state = _get_state(checks)
    bad = sorted((check for check in checks if check.state not in (OK, SKIP)), key=lambda c: -_RANK.index(c.state))
    text = "; ".join(f"{check.name}: {_make_single_line(_text_with_first_detail(check))}" for check in bad)
    text = text or _format_summary(checks).rstrip(".")
    counts = Counter(check.state for check in checks)
    figures = {name: float(counts[name]) for name in (OK, WARN, FAIL, UNKNOWN, SKIP)}
    for check in checks:
        figures |= check.figures
    return f"slurmwrap {_NAGIOS[state]}: {text} | {' '.join(f'{key}={value:g}' for key, value in figures.items())}"


_RANK = (UNKNOWN, WARN, FAIL)


def _get_state(checks: Sequence[CheckResult]) -> str:
    """Return the worst state; UNKNOWN if every check was skipped."""
    return find_worst_state(checks) if any(check.state != SKIP for check in checks) else UNKNOWN


def _text_with_first_detail(check: CheckResult) -> str:
    more = f" and {len(check.details) - 1} more" if len(check.details) > 1 else ""
    return f"{check.text} ({check.details[0]}{more})" if check.details else check.text


def _make_single_line(text: str) -> str:
    """Return the text on one line, without the bar that begins Nagios' performance data."""
    return harmless(text).replace("\n", " ").replace("|", "/")


def format_checks_as_json(checks: Sequence[CheckResult], specs: Sequence[CheckSpec]) -> str:
    """Return a JSON document with the overall state, and every check with its section."""
    section_of = {spec.name: spec.section for spec in specs}
    rows = [_check_to_json_dict(check, section_of.get(check.name, YOU)) for check in checks]
    return format_json_document("doctor", {"version": VERSION, "state": _get_state(checks), "checks": rows})


def _check_to_json_dict(check: CheckResult, section: str) -> dict[str, object]:
    row = {"name": check.name, "section": section, "state": check.state, "text": check.text, "hint": check.hint}
    return {**row, "details": list(check.details), "figures": dict(check.figures)}


def explain_check(spec: CheckSpec) -> str:
    """Return the text of --explain: what a check looks at and how to fix faults."""
    lines = [f"{spec.name} ({'the site' if spec.section == SITE else 'for you'}; within {spec.deadline_s:g} s)"]
    for label, text in (("looks at", spec.about), ("to fix", spec.fix)):
        first, *rest = _wrap_text(text, _DEFAULT_COLUMNS - 12)
        lines += [f"  {label:10}{first}", *(f"{'':12}{line}" for line in rest)]
    return "\n".join(lines)


def format_checks_page(specs: Sequence[CheckSpec]) -> str:
    """Return the list of checks in docs/doctor.md, in Markdown."""
    return "\n\n".join(
        f"### {_TITLE[section]}\n\n" + "\n".join(_format_page_row(spec) for spec in specs if spec.section == section)
        for section in _TITLE
    )


def _format_page_row(spec: CheckSpec) -> str:
    return f"- **{spec.name}** ({spec.deadline_s:g} s). {spec.about} *To fix:* {spec.fix}"


# Each check runs in a child process of its own with a deadline, several in parallel, so that no check can hang doctor.
# Threads do not suffice: a thread that waits for a dead NFS server cannot be abandoned. A child process can, even in
# D state.
_MOST_CHILDREN = 6
_TICK_S = 0.1
# Called with the names of the running checks.
Progress = Callable[[Sequence[str]], None]


@dataclass(slots=True)
class _Child:
    """A child process that runs one check. `reader`: the pipe with its result, -1 at its end; `until`: monotonic."""

    spec: CheckSpec
    pid: int
    reader: int
    until: float
    output: bytearray = field(default_factory=bytearray)


def run_all_checks(
    context: CheckContext, specs: Sequence[CheckSpec], progress: Progress = lambda names: None
) -> tuple[CheckResult, ...]:
    """Run all checks and return their results in the order of `specs`.

    A check that raises, dies or hangs is reported as such, and the others continue.
    """
    # Slurm's answers are read once, before the forks. If they cannot be parsed, each check that needs them reports it.
    with suppress(Exception):
        context.prime()
    waiting, running = list(specs), list[_Child]()
    found: dict[str, CheckResult] = {}
    while waiting or running:
        while waiting and len(running) < _MOST_CHILDREN:
            running.append(_start_child(waiting.pop(0), context))
        progress([child.spec.name for child in running])
        _read_children(running)
        for child in [child for child in running if _is_over(child)]:
            running.remove(child)
            found[child.spec.name] = _get_child_result(child)
    return tuple(found[spec.name] for spec in specs)


def run_check(spec: CheckSpec, context: Any) -> CheckResult:
    """Run one check in this process; an exception becomes its result."""
    try:
        return spec.see(context)
    except Exception as error:
        text = f"the check itself failed: {type(error).__name__}: {error}"
        return CheckResult(name=spec.name, state=UNKNOWN, text=text)


def check_for_hang(name: str, work: Callable[[], object], deadline_s: float) -> CheckResult | None:
    """Return a failed result if `work` does not end within the deadline, else None.

    `work` must later run in this process and could hang it. So a child process runs it first.
    """

    def see(_: CheckContext) -> CheckResult:
        # Errors of `work` are reported when it runs in this process.
        with suppress(Exception):
            work()
        return CheckResult(name=name, state=OK, text="")

    spec = CheckSpec(
        name=name, section=YOU, see=see, about="A file server does not answer.", fix="", deadline_s=deadline_s
    )
    child = _start_child(spec, None)
    while not _is_over(child):
        _read_children([child])
    found = _get_child_result(child)
    return found if found.state == FAIL else None


def _start_child(spec: CheckSpec, context: CheckContext | None) -> _Child:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # In a session of its own the child can be killed together with the processes that it started.
            os.setsid()
            os.close(reader)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            with os.fdopen(writer, "wb") as stream:
                stream.write(json.dumps(asdict(run_check(spec, context))).encode())
        finally:
            os._exit(0)
    os.close(writer)
    return _Child(spec=spec, pid=pid, reader=reader, until=time.monotonic() + spec.deadline_s)


def _read_children(running: Sequence[_Child]) -> None:
    """Read the output that is available, waiting at most _TICK_S; close each pipe that reached its end."""
    by_reader = {child.reader: child for child in running}
    for reader in select.select(list(by_reader), [], [], _TICK_S)[0]:
        chunk = os.read(reader, 1 << 16)
        by_reader[reader].output.extend(chunk)
        if not chunk:
            os.close(reader)
            by_reader[reader].reader = -1


def _is_over(child: _Child) -> bool:
    return child.reader < 0 or time.monotonic() >= child.until


def _get_child_result(child: _Child) -> CheckResult:
    if child.reader >= 0:
        os.close(child.reader)
        _kill_session(child.pid)
        text = f"no answer within {child.spec.deadline_s:g} s"
        return CheckResult(
            name=child.spec.name, state=FAIL, text=text, hint=f"Something it waits for hangs. {child.spec.about}"
        )
    os.waitpid(child.pid, 0)
    try:
        return _result_from_json_dict(json.loads(bytes(child.output)))
    except ValueError:
        return CheckResult(name=child.spec.name, state=UNKNOWN, text="the check ended without a result")


def _kill_session(pid: int) -> None:
    """Kill the check's whole session. A process in D state is left to init, which adopts it when doctor exits."""
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, os.WNOHANG)


def _result_from_json_dict(plain: dict[str, Any]) -> CheckResult:
    return CheckResult(**{**plain, "details": tuple(plain["details"])})


# Exit codes of Nagios plugins, which most monitors understand.
EXIT = {OK: 0, WARN: 1, FAIL: 2, UNKNOWN: 3}
# Seconds after which a progress line is shown.
_PROGRESS_AFTER_S = 1.0

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Only = Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this check; may be repeated.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="One line, in the format of Nagios and Icinga.")]
_Explain = Annotated[
    str, typer.Option("--explain", metavar="NAME", help="Show what a check looks at; 'all': every check.")
]
_TestNotify = Annotated[
    bool, typer.Option("--test-notify", help="Send one test message to notify.url; no other check runs.")
]


def doctor(
    as_json: _Json = False,
    only: _Only = None,
    quiet: _Quiet = False,
    explain: _Explain = "",
    test_notify: _TestNotify = False,
) -> None:
    """Check that everything that slurmwrap needs works, and show how to fix what does not.

    Run it as root or SlurmUser on the controller to check the whole site. Nothing is
    changed and no job is submitted; the probe in the spool is removed at once.

    Exit codes, as monitors expect them: 0 all is well, 1 a warning, 2 a failure, 3 unknown.

    \b
    Examples:
      slurmwrap doctor
      slurmwrap doctor --only spool --only reconciler
      slurmwrap doctor --quiet                    for Nagios and Icinga
      slurmwrap doctor --explain "hooks on nodes"
      slurmwrap doctor --test-notify              does a message arrive?
      slurmwrap doctor --json | jq '.checks[] | select(.state == "fail")'
    """
    if explain:
        specs = CHECK_SPECS if explain == "all" else _select_named_checks([explain])
        typer.echo("\n\n".join(explain_check(spec) for spec in specs))
        return
    specs = _select_named_checks(only or [])
    if test_notify:
        (spec,) = _select_named_checks([webhook_checks.NAME])
        specs = (replace(spec, see=webhook_checks.send_test_message),)
    checks = _run_checks(specs, quiet or as_json)
    if as_json:
        typer.echo(format_checks_as_json(checks, specs))
    elif quiet:
        typer.echo(format_nagios_line(checks))
    else:
        typer.echo(format_checks(checks, specs, terminal.choose_painter(), _get_width()))
    sys.exit(exit_code_from_checks(checks))


def _get_width() -> int:
    """Return the terminal's width, at most 120 columns so that lines stay readable; 80 without a terminal."""
    return min(120, shutil.get_terminal_size((80, 24)).columns)


def exit_code_from_checks(checks: Sequence[CheckResult]) -> int:
    """Return the exit code for monitors; UNKNOWN's if every check was skipped."""
    performed = [check for check in checks if check.state != SKIP]
    return EXIT[find_worst_state(checks)] if performed else EXIT[UNKNOWN]


def make_check_context() -> CheckContext:
    """Return the context of this process. Raise ConfigError if the configuration cannot be read."""
    config, environ = load(os.environ), dict(os.environ)
    racks = SiteRacks(config.placement.topology_file, config.placement.topology_features)
    commands = SlurmCommands(environ, timeout_s=config.slurm_timeout_s, network=racks)
    return CheckContext(config=config, environ=environ, uid=os.geteuid(), commands=commands)


def _run_checks(specs: Sequence[CheckSpec], silent: bool) -> tuple[CheckResult, ...]:
    if hung := check_for_hang("configuration", lambda: load(os.environ), DEADLINE_S):
        return (hung,)
    try:
        context = make_check_context()
    except ConfigError as error:
        return (CheckResult(name="configuration", state=FAIL, text=str(error), hint=error.hint or _CONFIG),)
    console = Console.of_terminal("slurmwrap")
    if not silent:
        console.redraw("asking slurmctld")
    found = run_all_checks(context, specs, (lambda names: None) if silent else _make_progress(console))
    console.progress_done()
    return found


_CONFIG = "`slurmwrap config check FILE` prints all mistakes of a file. No other check ran."


def _make_progress(console: Console) -> Progress:
    begun = time.monotonic()

    def show(names: Sequence[str]) -> None:
        seconds = time.monotonic() - begun
        if seconds > _PROGRESS_AFTER_S:
            console.redraw(fit(f"{seconds:.0f} s: checking {', '.join(names)}", columns()))

    return show


def _select_named_checks(names: Sequence[str]) -> tuple[CheckSpec, ...]:
    """Return the checks with these names; all checks if there are no names. Raise UsageError for an unknown name."""
    plain = {_normalize_name(spec.name): spec for spec in CHECK_SPECS}
    for name in names:
        if _normalize_name(name) not in plain:
            known = ", ".join(spec.name for spec in CHECK_SPECS)
            raise UsageError(f"there is no check '{name}'", hint=f"the checks are: {known}")
    wanted = {_normalize_name(name) for name in names}
    return tuple(spec for key, spec in plain.items() if not names or key in wanted)


def _normalize_name(name: str) -> str:
    """Return the name in lower case with blanks, so that users may write hooks-on-nodes."""
    return name.lower().replace("-", " ").replace("_", " ")
