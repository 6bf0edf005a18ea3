"""List the log files that a script's programs write besides the job's output, and where each ends now (adapter).

Such files are named by redirections, by tee, and by options such as --log-file and --output_dir. A path inside a
container is mapped to the host's path by what the container's command line binds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from slurmwrap.prerun.static.container_calls import BoundPath, map_to_host, parse_pyxis_mount, split_bindings
from slurmwrap.prerun.static.entry_points import list_started_programs
from slurmwrap.prerun.static.job_inputs import list_named_values
from slurmwrap.prerun.static.shell_words import UNKNOWN
from slurmwrap.prerun.static.started_program import join_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.prerun.static.entry_points import Read
    from slurmwrap.prerun.static.started_program import StartedProgram
    from slurmwrap.sbatch.job_request import JobRequest

# As node_hooks.log_tails, which gsub loads only for a script that names a log.
_LOG_SUFFIXES = (".log", ".out", ".err", "log.txt", "stdout", "stderr")
_MOST = 8
# Options that name a log file, and options that name a directory in which programs write logs.
_FILE_OPTION = re.compile(r"(?i)log")
_FOLDER_OPTION = re.compile(
    r"(?i)[\w.-]*(?:out(?:put)?|log(?:ging|s)?|save|run|work|exp\w*|results?|default_root)[-_.]?dir\w*"
)
# Runtimes that mount the home and the working directory although the command line does not bind them; "": Slurm's own.
_MOUNTS_HOME = ("apptainer", "shifter", "sarus", "")


def list_log_files(
    request: JobRequest, environ: Mapping[str, str] | None = None, read: Read | None = None
) -> tuple[str, ...]:
    """Return absolute paths on the host, in the script's order; a directory in which logs are expected ends with "/".

    `environ`: the variables that sbatch will pass on. `read`: reader of the shell scripts that the script starts;
    without it only `bash -c` is followed. What depends on the running job, as `log.$SLURM_JOB_ID`, is left out.
    """
    text = request.script.content.decode("utf-8", "surrogateescape")
    if not text.startswith("#!"):
        return ()
    of_script = _list_mounts_of_script(request)
    commands = list_started_programs(text, request.chdir, request.args, environ, read or (lambda _: None))
    found = (path for one in commands for path in _list_paths(one, of_script))
    return tuple(dict.fromkeys(found))[:_MOST]


def _list_mounts_of_script(request: JobRequest) -> tuple[BoundPath, ...] | None:
    """Return what Slurm mounts into the container of the whole script; None if it runs in none."""
    if request.setting("container-image") is None and request.setting("container") is None:
        return None
    return tuple(map(parse_pyxis_mount, split_bindings(request.value("container-mounts") or "")))


def _list_paths(program: StartedProgram, of_script: Sequence[BoundPath] | None) -> Iterator[str]:
    bound = program.bound if program.contained else of_script
    for target in filter(lambda target: _is_log(target, program), program.targets):
        yield from _find_host_path(target, program, bound if program.inside or not program.contained else of_script)
    name = os.path.basename(program.words[0]) if program.words else ""
    if name == "tee":
        for word in program.words[1:]:
            if not word.startswith("-"):
                yield from _find_host_path(word, program, bound)
        return
    for option, value in list_named_values(program.entry.argv if program.entry is not None else program.words):
        plain = option.lstrip("-")
        if _FOLDER_OPTION.fullmatch(plain):
            yield from (f"{path.rstrip('/')}/" for path in _find_host_path(value, program, bound))
        elif _FILE_OPTION.search(plain) and value.endswith(_LOG_SUFFIXES):
            yield from _find_host_path(value, program, bound)


def _is_log(target: str, program: StartedProgram) -> bool:
    """Return whether a redirection's target is a log by its name, or can be one since a program writes it."""
    plain = program.entry is not None and os.path.splitext(target)[1] in ("", ".txt")
    return target.endswith(_LOG_SUFFIXES) or plain


def _find_host_path(path: str, program: StartedProgram, bound: Sequence[BoundPath] | None) -> Iterator[str]:
    """Yield the absolute path on the host, if it is known. `bound`: None for a command that is in no container."""
    folder = program.workdir or program.cwd if bound is not None else program.cwd
    full = join_paths(folder or None, path) if path not in ("", "-") and not path.isdecimal() else ""
    if not full or UNKNOWN in full or full.startswith(("/dev/", "/proc/")):
        return
    if bound is not None:
        full = map_to_host(full, bound) or (full if program.runtime in _MOUNTS_HOME else "")
    if full and UNKNOWN not in full:
        yield full


def find_log_ends(paths: Sequence[str], uid: int) -> dict[str, list[int | str]]:
    """Return each path with [bytes, mark] of what `uid` wrote to it before the job; [] if there is no such file.

    The files of a directory are listed as well. A job that appends to a log is then not blamed for earlier lines.
    """
    found: dict[str, list[int | str]] = {path: [] for path in paths}
    there = [path for path in paths if _exists(path)]
    if not there:
        # Most jobs write new files: gsub then need not load what follows.
        return found
    from slurmwrap.node_hooks import log_tails

    for path in there:
        for name in log_tails.list_logs_of(os.fsencode(path), uid, 0.0):
            found[os.fsdecode(name)] = _find_log_end(os.fsdecode(name), uid)
    return found


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:
        return False


def _find_log_end(path: str, uid: int) -> list[int | str]:
    from slurmwrap.node_hooks import user_files

    try:
        end = user_files.span(os.fsencode(path), uid, 0, None, counted=0)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, user_files.Unreadable):
        return []
    return [end["total"], end["mark"]]
