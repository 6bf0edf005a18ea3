"""Format a rewritten job for people: the equivalent script of --dry-run and the diff of --explain. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurmwrap.escape import harmless, visible
from slurmwrap.sbatch.job_request import BatchScript, JobRequest, Origin, RequestChange, SbatchSetting
from slurmwrap.sbatch.option_table import BY_NAME, COMMAND_LINE_ONLY, WAIT4SWITCH
from slurmwrap.sbatch.parse_request import is_flag_variable_set
from slurmwrap.sbatch.resource_shape import find_memory_in_force
from slurmwrap.sbatch.rewrite import ADDED, KEPT, spell
from slurmwrap.sbatch.script_directives import parse_directives, quote_word

_WIDTH = 80
_RED, _GREEN, _DIM, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"


def make_equivalent_script(request: JobRequest, batch: BatchScript) -> bytes:
    """Return one script for plain sbatch that describes the same job: the output of --dry-run.

    The user's directive lines have their values changed in place. After the last of them (so that the precedence is
    that of sbatch) comes one line for each setting of the environment and the command line, and for each added
    option. A `# gsub:` comment precedes every line that is not the user's own. The program stays byte for byte.
    """
    lines = batch.content.split(b"\n")
    last = max((d.line for d in parse_directives(batch.content)), default=1)
    remarks = _group_remarks_by_line(request, batch)
    out: list[bytes] = []
    for number, line in enumerate(lines[:last], start=1):
        out += [_format_comment(text) for text in remarks.get(number, ())]
        out.append(line)
    out += _list_appended_lines(request, batch)
    rest = lines[last:]
    return b"\n".join([*out, *(rest or [b""])])


def explain(request: JobRequest, batch: BatchScript, *, colour: bool, remarks: Sequence[str] = ()) -> str:
    """Return what the rewrite changes, old against new, with a reason for each, for a terminal of 80 columns.

    `remarks`: reasons for choices that change nothing; they are printed at the end.
    """
    lines = [] if batch.changes else ["Nothing is changed."]
    for where in dict.fromkeys(change.where for change in batch.changes):
        changes = [change for change in batch.changes if change.where == where]
        lines += [f"@@ {where} @@", *_format_diff(request, batch, where, changes)]
    if remarks:
        lines += ["@@ where it may run @@", *(line for remark in remarks for line in _wrap_reason(remark, "  * "))]
    shown = (harmless(line) for line in lines)
    return "".join(f"{_paint_line(line, colour)}\n" for line in shown)


# --- the equivalent script ----------------------------------------------------------------------------------------


def _group_remarks_by_line(request: JobRequest, batch: BatchScript) -> dict[int, list[str]]:
    """Return the comments to print above directive lines that were changed, by line number."""
    remarks: dict[int, list[str]] = {}
    lines = {s.where: s.line for s in request.settings if s.line is not None}
    for change in batch.changes:
        number = lines.get(change.where)
        if number is not None:
            remarks.setdefault(number, []).append(_format_remark(change))
    return remarks


def _format_remark(change: RequestChange) -> str:
    if change.old == change.new:
        return f"--{change.option} is left as asked: {change.reason}"
    if change.old is None:
        return change.reason
    return f"{spell(change.option, change.old)} before: {change.reason}"


def _list_appended_lines(request: JobRequest, batch: BatchScript) -> Iterator[bytes]:
    """Yield a line for each setting of environment and command line and each added option, with its reason."""
    reasons = {(c.option, c.where): _format_remark(c) for c in batch.changes}
    options = [_split_option(option) for option in batch.options]
    on_command_line = {name for name, _ in options}
    for one in _list_environment_in_force(request, on_command_line):
        value = batch.environ.get(one.where, one.value)
        why = reasons.get((one.option, one.where), f"{one.where} is set.")
        if one.where in batch.environ:
            why = f"{why} (Unset {one.where}: it would win over this line.)"
        yield from _format_directive(one.option, value, why)
    for name, value in options:
        why = reasons.get((name, ADDED)) or reasons.get((name, "command line")) or "From the command line."
        yield from _format_directive(name, value, why)
    yield from _format_switches_line(request, options)
    for option in BY_NAME.values():
        for variable in option.variables if option.is_flag else ():
            if not is_flag_variable_set(request.environ.get(variable, "yes")):
                yield _format_comment(
                    f"{variable}={request.environ[variable]} is set, and must be set for this script too."
                )
    for change in batch.changes:
        if change.where == KEPT:
            yield _format_comment(f"--{change.option}: {change.reason}")
    if batch.args:
        yield _format_comment(f"The script's arguments: {' '.join(map(repr, batch.args))}")


def _list_environment_in_force(request: JobRequest, on_command_line: set[str]) -> Iterator[SbatchSetting]:
    """Yield the variables that still apply. A memory unit that another one overrides would be fatal in a script."""
    memory = find_memory_in_force(request.settings)
    last = {s.option: s for s in request.settings if s.origin is not Origin.COMMAND_LINE}
    for one in last.values():
        beaten = one.option.startswith("mem") and one.option in _MEMORY and one is not memory
        if one.origin is Origin.ENVIRONMENT and one.option not in on_command_line and not beaten:
            yield one


_MEMORY = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"})


def _format_directive(option: str, value: str | None, why: str) -> Iterator[bytes]:
    if option == WAIT4SWITCH.name or option == "wrap":
        return
    if option in COMMAND_LINE_ONLY:
        yield _format_comment(f"{spell(option, value)} is for the command line alone.")
        return
    try:
        written = quote_word(value) if value else b""
    except ValueError:
        yield _format_comment(f"{why} It cannot be written in a script: {spell(option, value)!r}")
        return
    yield _format_comment(why)
    yield b"#SBATCH " + (spell(option, None) if value is None else f"--{option}=").encode() + written


def _format_switches_line(request: JobRequest, options: Sequence[tuple[str, str | None]]) -> Iterator[bytes]:
    """Yield a --switches line with the time from SBATCH_WAIT4SWITCH, if --switches names none."""
    wait = request.value(WAIT4SWITCH.name)
    given = [value for name, value in options if name == "switches"]
    count = given[-1] if given else request.value("switches")
    if wait and count and "@" not in count:
        yield from _format_directive("switches", f"{count}@{wait}", "SBATCH_WAIT4SWITCH is set.")


def _split_option(option: str) -> tuple[str, str | None]:
    name, equals, value = option.removeprefix("--").partition("=")
    return name, value if equals else None


def _format_comment(text: str) -> bytes:
    return f"# gsub: {visible(text)}".encode()


# --- the diff -----------------------------------------------------------------------------------------------------


def _format_diff(
    request: JobRequest, batch: BatchScript, where: str, changes: Sequence[RequestChange]
) -> Iterator[str]:
    number = next((s.line for s in request.settings if s.where == where and s.line is not None), None)
    as_variable = any(s.where == where and s.origin is Origin.ENVIRONMENT for s in request.settings)
    changed = [change for change in changes if change.old != change.new]
    if number is not None and changed:
        yield f"- {_get_line(request.script.content, number)}"
        yield f"+ {_get_line(batch.content, number)}"
    for change in changes:
        if number is None or change not in changed:
            yield from _format_change(change, where, as_variable)
        yield from _wrap_reason(change.reason)


def _format_change(change: RequestChange, where: str, as_variable: bool) -> Iterator[str]:
    before, after = (
        None if value is None else f"{where}={value}" if as_variable else spell(change.option, value or None)
        for value in (change.old, change.new)
    )
    if change.old == change.new:
        yield f"  {before or spell(change.option, None) + ' (not set)'}"
        return
    if before is not None:
        yield f"- {before}"
    if after is not None:
        yield f"+ {after}"


def _get_line(content: bytes, number: int) -> str:
    return content.split(b"\n", number)[number - 1].decode(errors="replace")


def _wrap_reason(reason: str, first: str = "    ") -> list[str]:
    # Imported here to keep the start of gsub fast.
    from textwrap import wrap

    return wrap(reason, _WIDTH, initial_indent=first, subsequent_indent="    ")


def _paint_line(line: str, colour: bool) -> str:
    paint = {"-": _RED, "+": _GREEN, "@": _DIM}.get(line[:1], "") if colour else ""
    return f"{paint}{line}{_PLAIN}" if paint else line
