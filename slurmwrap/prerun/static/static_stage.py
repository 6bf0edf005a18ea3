"""The static stage: turns a JobRequest into findings, in two seconds at most, without running anything of the user's.

Edge by argument: `run` (host.command.run) starts `bash -n`, shellcheck, and the job's own interpreter with questions of
ours. Reads the files that the script names. An ERROR is certain; whatever might be different on a node is a WARNING.
What is looked at is in checks/, one file per kind; a check for which no time is left is skipped.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.entry_points import list_started_programs
from slurmwrap.prerun.static.python_source import read_head
from slurmwrap.prerun.static.shell_parser import UNKNOWN
from slurmwrap.prerun.static.shell_pitfalls import check_shell_syntax, find_shell
from slurmwrap.prerun.static.started_program import EntryPoint, StartedProgram
from slurmwrap.prerun.static.static_context import CommandRunner, StaticContext

if TYPE_CHECKING:
    from slurmwrap.model.cluster import Snapshot
    from slurmwrap.sbatch.job_request import JobRequest

BUDGET_S = 2.0
_MARGIN_S = 0.2  # to end what was begun
# Places that a node has for itself: what is missing on the login node may be there.
NODE_LOCAL = ("/tmp/", "/var/tmp/", "/dev/", "/run/", "/proc/", "/local", "/scratch/local", "/raid/", "/mnt/local")
# bytes of a shell script that is followed
_FOLLOWED = 1 << 18


def check(
    request: JobRequest,
    *,
    run: CommandRunner,
    environ: Mapping[str, str] = os.environ,
    node_local: tuple[str, ...] = NODE_LOCAL,
    snapshot: Snapshot | None = None,
) -> tuple[Finding, ...]:
    """All findings, errors first. `environ` is what sbatch will pass on to the job.

    Below `node_local` a node may hold what the login node does not, so nothing there is an error. Without `snapshot`
    nothing is said of what the cluster can give.
    """
    deadline = time.monotonic() + BUDGET_S - _MARGIN_S
    name = request.script.path or request.script.name
    context = StaticContext(script=name, run=run, environ=environ, node_local=node_local, deadline=deadline)
    findings = list(_guard_findings(_run_checks(request, context, snapshot), context))
    return tuple(sorted(dict.fromkeys(findings), key=lambda f: f.severity is not Severity.ERROR))


def _guard_findings(findings: Iterator[Finding], context: StaticContext) -> Iterator[Finding]:
    """As far as they come. A program deeper than our own Python goes (RecursionError), or an error here, must not
    keep
    a job from being submitted: what was found until then is reported."""
    try:
        for finding in findings:
            yield finding
            if context.left() <= 0:
                return
    except Exception:
        return


def _run_checks(request: JobRequest, context: StaticContext, snapshot: Snapshot | None) -> Iterator[Finding]:
    # As the file system spells names.
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
    entries = tuple(one.entry for one in commands if one.entry)
    for finding in _guard_findings(_check_entries(entries, commands, context), context):
        if not _is_looked_for(finding, text):
            yield finding
    yield from _guard_findings(_check_commands(request, commands, text, context), context)


def _list_known_variables(request: JobRequest, text: str, context: StaticContext) -> Mapping[str, str]:
    """What the script's first line knows. A login shell sets PATH anew, and so does an environment not handed on."""
    login = re.match(r"#!.*\s(-\w*l\w*|--login)\b", text.partition("\n")[0])
    anew = request.setting("get-user-env") is not None or (request.value("export") or "ALL").upper() == "NONE"
    return {**context.environ, "PATH": UNKNOWN} if login or anew else context.environ


def read_script(path: str) -> str | None:
    """The text of a shell script that the batch script starts; None when it is none of slurmwrap's to read."""
    if UNKNOWN in path or not os.path.isfile(path):  # noqa: PTH113 - "" and surrogates are paths too
        return None
    from pathlib import Path

    content = read_head(Path(path))
    return content.decode("utf-8", "surrogateescape") if 0 < len(content) <= _FOLLOWED else None


def _is_looked_for(finding: Finding, text: str) -> bool:
    """True for a missing program that the script itself looks for first (`[ -f x.py ] && python x.py`)."""
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
    """A shell script that is started: it is there, and parses."""
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
    """A batch script that is itself a Python program."""
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
        # slurmd runs a copy of the script from its own spool: what lies next to the script is not next to that copy
        whole=(words[0] if words else "python3",),
    )
    yield from check_program(entry, context)


def _check_commands(
    request: JobRequest, commands: Sequence[StartedProgram], text: str, context: StaticContext
) -> Iterator[Finding]:
    from slurmwrap.prerun.static.launcher_tasks import check_launcher_options, check_mpi_types, launch_findings
    from slurmwrap.prerun.static.script_environment import check_script_environment
    from slurmwrap.prerun.static.shell_pitfalls import exit_code_findings, find_background_programs
    from slurmwrap.prerun.static.unknown_commands import check_shell_commands
    from slurmwrap.prerun.static.unused_resources import check_gpu_use, check_loader_workers
    from slurmwrap.prerun.static.write_targets import check_write_targets

    yield from check_shell_commands(commands, text, context)
    yield from check_script_environment(commands, text, context)
    yield from _guard_findings(check_write_targets(commands, text, context), context)
    yield from find_background_programs(commands, text, context)
    yield from check_launcher_options(commands, context)
    yield from launch_findings(request, commands, context)
    yield from exit_code_findings(text, commands, context)
    yield from check_gpu_use(request, commands, text, context)
    yield from check_mpi_types(commands, context)
    yield from check_loader_workers(request, commands, context)


def _check_request(request: JobRequest, context: StaticContext, snapshot: Snapshot | None) -> Iterator[Finding]:
    from slurmwrap.prerun.static.impossible_requests import request_findings
    from slurmwrap.prerun.static.write_targets import check_output_directories

    yield from check_output_directories(request, context)
    if snapshot is not None:
        yield from request_findings(request, snapshot, context.script)
