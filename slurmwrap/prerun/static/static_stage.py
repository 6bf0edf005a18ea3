"""The static stage: check a JobRequest in at most two seconds, without running any of the user's code.

`run` (host.command.run, adapter) starts `bash -n`, shellcheck, and the job's own interpreter with slurmwrap's
questions. The files that the script names are read. An ERROR is certain; what may be different on a node is a WARNING.
The checks are the other modules of this package, one per kind; a check for which no time is left is skipped.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.entry_points import list_started_programs
from slurmwrap.prerun.static.python_source import read_head
from slurmwrap.prerun.static.shell_pitfalls import check_shell_syntax, find_shell
from slurmwrap.prerun.static.shell_words import UNKNOWN
from slurmwrap.prerun.static.started_program import EntryPoint, StartedProgram
from slurmwrap.prerun.static.static_context import CommandRunner, StaticContext

if TYPE_CHECKING:
    from slurmwrap.model.cluster import Snapshot
    from slurmwrap.sbatch.job_request import JobRequest

BUDGET_S = 2.0
# Time that is kept to end a check that has begun.
_MARGIN_S = 0.2
# Directories that each node has for itself: a file that is missing on the login node may exist there.
NODE_LOCAL = ("/tmp/", "/var/tmp/", "/dev/", "/run/", "/proc/", "/local", "/scratch/local", "/raid/", "/mnt/local")
# Largest shell script, in bytes, that is followed.
_MAX_SCRIPT_BYTES = 1 << 18


def check(
    request: JobRequest,
    *,
    run: CommandRunner,
    environ: Mapping[str, str] = os.environ,
    node_local: tuple[str, ...] = NODE_LOCAL,
    snapshot: Snapshot | None = None,
) -> tuple[Finding, ...]:
    """Return all findings, errors first. `environ` holds the variables that sbatch will pass on to the job.

    Below `node_local` a node may have files that the login node lacks, so nothing there is an error. Without
    `snapshot` the resources of the cluster are not checked.
    """
    deadline = time.monotonic() + BUDGET_S - _MARGIN_S
    name = request.script.path or request.script.name
    context = StaticContext(script=name, run=run, environ=environ, node_local=node_local, deadline=deadline)
    findings = list(_guard_findings(_run_checks(request, context, snapshot), context))
    return tuple(sorted(dict.fromkeys(findings), key=lambda f: f.severity is not Severity.ERROR))


def _guard_findings(findings: Iterator[Finding], context: StaticContext) -> Iterator[Finding]:
    """Yield the findings until the deadline, an error, or a RecursionError for a program that is nested too deep.

    An error in a check must not keep a job from being submitted, so the findings up to it are reported.
    """
    try:
        for finding in findings:
            yield finding
            if context.left() <= 0:
                return
    except Exception:
        return


def _run_checks(request: JobRequest, context: StaticContext, snapshot: Snapshot | None) -> Iterator[Finding]:
    # Decoded as the file system decodes names.
    text = request.script.content.decode("utf-8", "surrogateescape")
    shell = find_shell(text)
    if shell:
        yield from _guard_findings(_check_shell_script(request, text, shell, context), context)
    elif re.match(r"#!\S*(/env\s+|/)python", text):
        yield from _guard_findings(_check_python_script(request, context, text), context)
    yield from _check_request(request, context, snapshot)


def _check_shell_script(request: JobRequest, text: str, shell: str, context: StaticContext) -> Iterator[Finding]:
    from slurmwrap.prerun.static.shell_pitfalls import check_script_text

    yield from check_shell_syntax(request.script.content, shell, context.script, context)
    yield from _guard_findings(check_script_text(text, context), context)
    commands = list_started_programs(
        text, request.chdir, request.args, _list_known_variables(request, text, context), read_script
    )
    if any(request.setting(option) for option in _CONTAINER_OPTIONS):
        commands = tuple(_mark_contained(one) for one in commands)
    entries = tuple(one.entry for one in commands if one.entry)
    for finding in _guard_findings(_check_entries(entries, commands, context), context):
        if not _is_tested_by_script(finding, text):
            yield finding
    yield from _guard_findings(_check_commands(request, commands, text, context), context)


# Options of Slurm and of pyxis that run the batch script itself in a container.
_CONTAINER_OPTIONS = ("container", "container-id", "container-image", "container-name")


def _mark_contained(command: StartedProgram) -> StartedProgram:
    """Return a command of a script that runs in a container as a whole: this machine cannot tell what it finds."""
    entry = command.entry and replace(command.entry, contained=True, certain=False, search=UNKNOWN)
    return replace(command, entry=entry, contained=True, sure=False, search=UNKNOWN)


def _list_known_variables(request: JobRequest, text: str, context: StaticContext) -> Mapping[str, str]:
    """Return the variables that are known at the script's first line.

    A login shell sets PATH anew, and so does an environment that is not passed on.
    """
    login = re.match(r"#!.*\s(-\w*l\w*|--login)\b", text.partition("\n")[0])
    path_unknown = request.setting("get-user-env") is not None or (request.value("export") or "ALL").upper() == "NONE"
    return {**context.environ, "PATH": UNKNOWN} if login or path_unknown else context.environ


def read_script(path: str) -> str | None:
    """Return the text of a shell script that the batch script starts; None if it cannot or must not be read."""
    if UNKNOWN in path or not os.path.isfile(path):  # noqa: PTH113 - "" and surrogates are paths too
        return None
    from pathlib import Path

    content = read_head(Path(path))
    return content.decode("utf-8", "surrogateescape") if 0 < len(content) <= _MAX_SCRIPT_BYTES else None


def _is_tested_by_script(finding: Finding, text: str) -> bool:
    """Return whether the script itself tests for the missing program first (`[ -f x.py ] && python x.py`)."""
    if finding.severity is Severity.ERROR or ": no such file (" not in finding.message:
        return False
    name = re.escape(os.path.basename(finding.message.partition(": no such file (")[0]))  # noqa: PTH119
    return re.search(rf"(?:\s-[efrsx]|\bls)\s+\S*{name}", text) is not None


def _check_entries(
    entries: Sequence[EntryPoint], commands: Sequence[StartedProgram], context: StaticContext
) -> Iterator[Finding]:
    from slurmwrap.prerun.static.input_paths import find_missing_paths
    from slurmwrap.prerun.static.program_checks import check_program

    seen: set[tuple[str, tuple[str, ...], str | None, str]] = set()
    for at, entry in enumerate(entries):
        if (key := (entry.path, entry.argv, entry.code, entry.module)) in seen:
            continue
        seen.add(key)
        if entry.kind != "shell":
            yield from _guard_findings(check_program(entry, context), context)
        elif entry.path:
            yield from _check_inner_script(entry, context)
        named = frozenset(w for one in commands if one.entry is not entry for w in (*one.words, *one.reads))
        yield from find_missing_paths(entry, context, named, after_others=at > 0)


def _check_inner_script(entry: EntryPoint, context: StaticContext) -> Iterator[Finding]:
    """Check that a shell script which the job starts exists and parses."""
    from pathlib import Path

    from slurmwrap.prerun.static.program_checks import check_program

    path = Path(entry.path)
    if not path.is_file() or not os.access(path, os.R_OK):
        yield from check_program(entry, context)
        return
    content = read_head(path)
    shell = find_shell(content.decode("utf-8", "replace")) or "sh"
    yield from check_shell_syntax(content, shell, entry.path, context)


def _check_python_script(request: JobRequest, context: StaticContext, text: str) -> Iterator[Finding]:
    """Check a batch script that is itself a Python program."""
    from slurmwrap.prerun.static.program_checks import check_program

    words = text.partition("\n")[0].removeprefix("#!").split()
    words = words[1:] if os.path.basename(words[0]) == "env" else words  # noqa: PTH119
    words = words[1:] if words[:1] == ["-S"] else words
    entry = EntryPoint(
        kind="python",
        path="",
        argv=request.args,
        line=1,
        interpreter=words[0] if words else "python3",
        cwd=request.chdir,
        code=text,
        code_line=1,
        search=_list_known_variables(request, text, context).get("PATH", UNKNOWN),
        modules=context.environ.get("PYTHONPATH", ""),
        # slurmd runs a copy of the script from its spool directory, so files next to the script are not next to it.
        whole=(words[0] if words else "python3",),
    )
    yield from check_program(entry, context)


def _check_commands(
    request: JobRequest, commands: Sequence[StartedProgram], text: str, context: StaticContext
) -> Iterator[Finding]:
    from slurmwrap.prerun.static.container_checks import check_containers
    from slurmwrap.prerun.static.launcher_tasks import check_launcher_options, check_launchers, check_mpi_types
    from slurmwrap.prerun.static.script_environment import check_script_environment
    from slurmwrap.prerun.static.shell_pitfalls import find_background_programs, find_lost_exit_codes
    from slurmwrap.prerun.static.unknown_commands import check_shell_commands
    from slurmwrap.prerun.static.unused_resources import check_gpu_use, check_loader_workers
    from slurmwrap.prerun.static.write_targets import check_write_targets

    yield from check_shell_commands(commands, text, context)
    yield from check_script_environment(commands, text, context)
    yield from _guard_findings(check_write_targets(commands, text, context), context)
    yield from _guard_findings(check_containers(commands, context), context)
    yield from find_background_programs(commands, text, context)
    yield from check_launcher_options(commands, context)
    yield from check_launchers(request, commands, context)
    yield from find_lost_exit_codes(text, commands, context)
    yield from check_gpu_use(request, commands, text, context)
    yield from check_mpi_types(commands, context)
    yield from check_loader_workers(request, commands, context)


def _check_request(request: JobRequest, context: StaticContext, snapshot: Snapshot | None) -> Iterator[Finding]:
    from slurmwrap.prerun.static.impossible_requests import find_impossible_requests
    from slurmwrap.prerun.static.write_targets import check_output_directories

    yield from check_output_directories(request, context)
    if snapshot is not None:
        yield from find_impossible_requests(request, snapshot, context.script)
