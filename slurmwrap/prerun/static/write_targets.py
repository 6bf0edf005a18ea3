"""Find missing directories into which commands write: `> out/log.txt`, `cp model.pt models/best.pt`, `| tee logs/x`.

Also checks Slurm's own output files, free space and quota. Reads the file system (adapter). A directory is not reported
if an earlier line of the script may have created it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.isolation.file_effects import split
from slurmwrap.prerun.static.script_environment import is_stopped_by_failure, may_create_files
from slurmwrap.prerun.static.shell_words import UNKNOWN, Guess
from slurmwrap.prerun.static.started_program import StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext, is_mounted
from slurmwrap.prerun.static.unknown_commands import is_sourcing_environment
from slurmwrap.sbatch.job_request import JobRequest, SbatchSetting

# Copying commands: they write to their last word, or it is a directory that must exist.
_COPYING_COMMANDS = ("cp", "mv", "ln")
# Code with which a program may create a directory whose name is not in the code.
_DIRECTORY_MAKING_CODE = re.compile(
    rb"makedirs|mkdir|copytree|ensure_|save_pretrained|output_dir|log_dir|SummaryWriter|download|extractall|unpack|system|"
    rb"subprocess|git"
)


def check_write_targets(started: Sequence[StartedProgram], text: str, context: StaticContext) -> Iterator[Finding]:
    """Yield one finding for each directory that does not exist when a command writes into it."""
    strict = is_stopped_by_failure(text)
    # Paths below or above which the script may have created directories.
    made: list[str] = []
    last = max((at for at, one in enumerate(started) if one.raw is not None), default=-1)
    reported: set[str] = set()
    # Code and arguments of the user's own programs that ran before.
    programs: list[bytes] = []
    for at, one in enumerate(started):
        if one.raw is None:
            # The command is in an inner script, whose effects are not followed.
            return
        if not one.raw.in_function:
            for what, folder in _list_destinations(one):
                path = _find_missing_directory(folder, one.cwd, context)
                named = any(os.path.basename(path).encode() in code for code in programs)  # noqa: PTH119
                if path and path not in reported and not named and not any(_is_near(path, m) for m in made):
                    reported.add(path)
                    yield _make_finding(one, what, path, context, ends=(strict or at == last) and not programs)
        if one.words[:1] == ("mkdir",):
            made += [os.path.join(one.cwd, word.partition(UNKNOWN)[0]) for word in one.words[1:]]  # noqa: PTH118
        elif one.entry is not None:
            code = _read_code(one, context)
            if code is None or _DIRECTORY_MAKING_CODE.search(code):
                return
            programs.append(code)
        elif may_create_files(one) or (
            one.words[:1] in (("source",), (".",), ("eval",)) and not is_sourcing_environment(one)
        ):
            return


def _list_destinations(program: StartedProgram) -> Iterator[tuple[str, str]]:
    """Yield (what writes there, the directory that must exist) as the script names them."""
    for target in program.targets:
        if not isinstance(target, Guess):
            yield f"> {target}", os.path.dirname(target)  # noqa: PTH120
    if not program.words or program.contained or any(isinstance(word, Guess) for word in program.words):
        return
    name = os.path.basename(program.words[0])  # noqa: PTH119
    options, rest = split(program.words[1:], frozenset({"-t", "-S", "--suffix", "--target-directory"}))
    if name == "tee":
        yield from ((f"tee {word}", os.path.dirname(word)) for word in rest)  # noqa: PTH120
    elif name in _COPYING_COMMANDS and len(rest) > 1 and not {"-t", "--target-directory"} & set(options):
        into = rest[-1].endswith("/") or len(rest) > 2
        # `cp -r` creates the directory itself.
        whole = into and not ({"-r", "-R", "-a"} & set(options) and len(rest) == 2)
        folder = rest[-1] if whole else os.path.dirname(rest[-1].rstrip("/"))  # noqa: PTH120
        yield f"{name} ... {rest[-1]}", folder


def _find_missing_directory(folder: str, cwd: str, context: StaticContext) -> str:
    """Return the absolute path of a directory that does not exist; "" if it exists or cannot be known."""
    if not folder or UNKNOWN in folder or not (cwd or folder.startswith("/")):
        return ""
    path = os.path.normpath(os.path.join(cwd, folder))  # noqa: PTH118
    if path.startswith((*context.node_local, "/etc/", "/usr/", "/opt/")) or not is_mounted(path):
        # The node may have its own directories there.
        return ""
    try:
        if Path(path).exists() or not (folder.startswith("/") or Path(cwd).is_dir()):
            # In the second case the `cd` before it failed, which is reported there.
            return ""
        parent_found = next(parent for parent in Path(path).parents if parent.exists())
    except (OSError, StopIteration):
        return ""
    # If only the top directory exists, that file system is probably not mounted on this machine.
    return path if len(parent_found.parts) > 2 else ""


def _is_near(path: str, made: str) -> bool:
    """Return whether `path` is below or above `made`, which may end in the middle of a name."""
    return path.startswith(made.rstrip("/")) or os.path.normpath(made).startswith(f"{path}/") or not made


def _read_code(program: StartedProgram, context: StaticContext) -> bytes | None:
    """Return the code of a user's Python program and its arguments; None if other code may create directories."""
    from slurmwrap.prerun.static.program_text import read_own_text

    entry = program.entry
    code = read_own_text(entry, context) if entry is not None and entry.kind in ("python", "module") else None
    return None if code is None else code + os.fsencode(" ".join(program.words))


def _make_finding(program: StartedProgram, what: str, path: str, context: StaticContext, *, ends: bool) -> Finding:
    assert program.raw is not None
    certain = program.sure and ends and program.raw.then not in ("||", "&&", "&", "|", "|&") and not program.raw.feeds
    shown = what.replace(UNKNOWN, "...")
    return Finding(
        severity=Severity.ERROR if certain else Severity.WARNING,
        message=f"{shown}: there is no directory {path}",
        file=context.script,
        line=program.line,
        fix=f"mkdir -p {path}",
        category="incorrect_inputs",
    )


# Output of the job: do Slurm's output directories exist, and is there enough space? Uses the file system and quota(1).
# Free space below this is reported.
SPACE_FLOOR_MIB = 512
_MIN_FREE_FILES = 500


def check_output_directories(request: JobRequest, context: StaticContext) -> Iterator[Finding]:
    """Check the directories of --output, --error and --chdir, and space and quota where the job writes."""
    folders = {request.chdir}
    for option in ("output", "error"):
        setting = request.setting(option)
        if setting is not None and setting.value and not request.hetjob:
            folder = _get_output_folder(setting.value, request.chdir)
            if folder:
                folders.add(folder)
                yield from _check_slurm_output(setting, option, folder, context)
    if (chdir := request.setting("chdir")) is not None and not Path(request.chdir).is_dir():
        yield _make_directory_finding(
            chdir,
            f"--chdir {request.chdir}: no such directory",
            "correct the path, or make it first",
            context,
            request.chdir,
        )
    for folder in sorted(folders):
        with suppress(OSError):
            yield from check_space(folder, os.statvfs(folder))
    yield from _check_quota(context)


def _get_output_folder(pattern: str, chdir: str) -> str:
    """Return the directory of an output pattern; "" if it depends on the job (`%j`) or the output is not a file."""
    folder = os.path.dirname(pattern)  # noqa: PTH120
    if "%" in folder or "\\" in pattern or not folder or pattern == "/dev/null":
        return ""
    return os.path.normpath(os.path.join(chdir, folder))  # noqa: PTH118


def _check_slurm_output(setting: SbatchSetting, option: str, folder: str, context: StaticContext) -> Iterator[Finding]:
    """Check the directory of an output file.

    slurmd opens these files before the script begins. Without the directory the job fails and leaves no message.
    """
    try:
        parent_found = Path(folder).is_dir()
    except OSError:
        return
    if not parent_found:
        message = f"--{option} {setting.value}: there is no directory {folder}; the job would fail and write no output"
        yield _make_directory_finding(setting, message, f"mkdir -p {folder}", context, folder)
    elif not os.access(folder, os.W_OK | os.X_OK):
        message = f"--{option} {setting.value}: you may not write in {folder}; the job would fail and write no output"
        yield _make_directory_finding(
            setting, message, "choose another directory", context, folder, category="permission_error"
        )


def _make_directory_finding(
    setting: SbatchSetting,
    message: str,
    fix: str,
    context: StaticContext,
    path: str,
    category: str = "incorrect_inputs",
) -> Finding:
    return Finding(
        severity=Severity.WARNING if path.startswith(context.node_local) else Severity.ERROR,
        message=message,
        file=context.script if setting.line else setting.where,
        line=setting.line or 0,
        fix=fix,
        category=category,
    )


def check_space(folder: str, found: os.statvfs_result) -> Iterator[Finding]:
    """Report less than 512 MiB or 500 free files. Small file systems and those that count no files are left out."""
    free_mib, total_mib = found.f_bavail * found.f_frsize >> 20, found.f_blocks * found.f_frsize >> 20
    if total_mib > SPACE_FLOOR_MIB * 4 and free_mib < SPACE_FLOOR_MIB:
        yield _make_full_finding(f"{folder}: {free_mib} MiB are left on its file system", folder)
    elif found.f_files > _MIN_FREE_FILES * 4 and found.f_favail < _MIN_FREE_FILES:
        yield _make_full_finding(f"{folder}: {found.f_favail} more files can be made on its file system", folder)


def _make_full_finding(message: str, folder: str) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        message=message,
        fix=f"free some space, or write to another directory than {folder}",
        category="storage_full",
    )


def _check_quota(context: StaticContext) -> Iterator[Finding]:
    """Ask quota -q, which prints only file systems that are over the limit (quota(1)), if it is installed."""
    if context.left() < 0.5 or shutil.which("quota", path=context.environ.get("PATH")) is None:
        return
    answer = context.run(["quota", "-q", "-w"], timeout_s=0.3)
    yield from parse_quota(answer.exit_code, answer.stdout)


def parse_quota(exit_code: int | None, stdout: bytes) -> Iterator[Finding]:
    """Return the output of quota -q as at most one finding."""
    output = stdout.decode("utf-8", "replace").strip()
    if exit_code and re.search(r"\*|[Oo]ver|limit reached", output):
        yield Finding(
            severity=Severity.WARNING,
            message=f"your quota is used up: {' '.join(output.splitlines()[-1].split())}",
            fix="remove files; quota -s shows where",
            category="storage_full",
        )
