"""Directories that commands write into: `> out/log.txt`, `cp model.pt models/best.pt`, `| tee logs/train.log`.

Reads the file system. Silent where an earlier line of the script may have made the directory.
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
from slurmwrap.prerun.static.script_environment import is_stopped_by_failure, may_make
from slurmwrap.prerun.static.shell_parser import UNKNOWN, Guess
from slurmwrap.prerun.static.started_program import StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext, is_mounted
from slurmwrap.prerun.static.unknown_commands import is_sourcing_environment
from slurmwrap.sbatch.job_request import JobRequest, SbatchSetting

# Copying commands: their last word is written to, or is a directory that must be there.
_INTO = ("cp", "mv", "ln")
# In a program: it may make a directory whose name does not be in its code.
_MAKES_PLACES = re.compile(
    rb"makedirs|mkdir|copytree|ensure_|save_pretrained|output_dir|log_dir|SummaryWriter|download|extractall|unpack|system|"
    rb"subprocess|git"
)


def check_write_targets(started: Sequence[StartedProgram], text: str, context: StaticContext) -> Iterator[Finding]:
    """One finding for each directory that is not there when a command writes into it."""
    strict = is_stopped_by_failure(text)
    # Below these, and on the way to them, directories may have been made.
    made: list[str] = []
    last = max((at for at, one in enumerate(started) if one.raw is not None), default=-1)
    told: set[str] = set()
    # What the user's own programs, which ran before, are made of and are given.
    programs: list[bytes] = []
    for at, one in enumerate(started):
        if one.raw is None:
            # A script that it starts: what that makes is not followed.
            return
        if not one.raw.in_function:
            for what, folder in _list_destinations(one):
                path = _find_missing_directory(folder, one.cwd, context)
                named = any(os.path.basename(path).encode() in code for code in programs)  # noqa: PTH119
                if path and path not in told and not named and not any(_is_near(path, m) for m in made):
                    told.add(path)
                    yield _make_finding(one, what, path, context, ends=(strict or at == last) and not programs)
        if one.words[:1] == ("mkdir",):
            made += [os.path.join(one.cwd, word.partition(UNKNOWN)[0]) for word in one.words[1:]]  # noqa: PTH118
        elif one.entry is not None:
            code = _read_code(one, context)
            if code is None or _MAKES_PLACES.search(code):
                return
            programs.append(code)
        elif may_make(one) or (one.words[:1] in (("source",), (".",), ("eval",)) and not is_sourcing_environment(one)):
            return


def _list_destinations(program: StartedProgram) -> Iterator[tuple[str, str]]:
    """(what writes there, the directory that must be there) as the script names it."""
    for target in program.targets:
        if not isinstance(target, Guess):
            yield f"> {target}", os.path.dirname(target)  # noqa: PTH120
    if not program.words or program.contained or any(isinstance(word, Guess) for word in program.words):
        return
    name = os.path.basename(program.words[0])  # noqa: PTH119
    options, rest = split(program.words[1:], frozenset({"-t", "-S", "--suffix", "--target-directory"}))
    if name == "tee":
        yield from ((f"tee {word}", os.path.dirname(word)) for word in rest)  # noqa: PTH120
    elif name in _INTO and len(rest) > 1 and not {"-t", "--target-directory"} & set(options):
        into = rest[-1].endswith("/") or len(rest) > 2
        # cp -r makes it itself
        whole = into and not ({"-r", "-R", "-a"} & set(options) and len(rest) == 2)
        folder = rest[-1] if whole else os.path.dirname(rest[-1].rstrip("/"))  # noqa: PTH120
        yield f"{name} ... {rest[-1]}", folder


def _find_missing_directory(folder: str, cwd: str, context: StaticContext) -> str:
    """The absolute directory that is not there, "" where it is, or where that cannot be known."""
    if not folder or UNKNOWN in folder or not (cwd or folder.startswith("/")):
        return ""
    path = os.path.normpath(os.path.join(cwd, folder))  # noqa: PTH118
    if path.startswith((*context.node_local, "/etc/", "/usr/", "/opt/")) or not is_mounted(path):
        return ""  # a node's own
    try:
        if Path(path).exists() or not (folder.startswith("/") or Path(cwd).is_dir()):
            # In the second case the `cd` before it failed, and that is reported.
            return ""
        there = next(parent for parent in Path(path).parents if parent.exists())
    except (OSError, StopIteration):
        return ""
    # Else nothing of that file system is here.
    return path if len(there.parts) > 2 else ""


def _is_near(path: str, made: str) -> bool:
    """`path` lies below `made` or on the way to it; `made` may end in the middle of a name."""
    return path.startswith(made.rstrip("/")) or os.path.normpath(made).startswith(f"{path}/") or not made


def _read_code(program: StartedProgram, context: StaticContext) -> bytes | None:
    """The text of a Python program of the user's own with the words that it is given; None where more may decide."""
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


# Where a job writes: do Slurm's output directories exist, is there space. Asks the file system and quota(1).
# Less than this left is reported.
SPACE_FLOOR_MIB = 512
_INODES = 500


def check_output_directories(request: JobRequest, context: StaticContext) -> Iterator[Finding]:
    """The directories of --output, --error and --chdir; space and quota where the job writes."""
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
    """The directory of an output pattern; "" when it depends on the job (`%j`) or is no file."""
    folder = os.path.dirname(pattern)  # noqa: PTH120
    if "%" in folder or "\\" in pattern or not folder or pattern == "/dev/null":
        return ""
    return os.path.normpath(os.path.join(chdir, folder))  # noqa: PTH118


def _check_slurm_output(setting: SbatchSetting, option: str, folder: str, context: StaticContext) -> Iterator[Finding]:
    """slurmd opens these files before the script begins: without the directory the job fails and leaves no word."""
    try:
        there = Path(folder).is_dir()
    except OSError:
        return
    if not there:
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
    """Less than 512 MiB or 500 files left; a small file system, or one that does not count files, is no news."""
    free_mib, total_mib = found.f_bavail * found.f_frsize >> 20, found.f_blocks * found.f_frsize >> 20
    if total_mib > SPACE_FLOOR_MIB * 4 and free_mib < SPACE_FLOOR_MIB:
        yield _make_full_finding(f"{folder}: {free_mib} MiB are left on its file system", folder)
    elif found.f_files > _INODES * 4 and found.f_favail < _INODES:
        yield _make_full_finding(f"{folder}: {found.f_favail} more files can be made on its file system", folder)


def _make_full_finding(message: str, folder: str) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        message=message,
        fix=f"make room, or write elsewhere than {folder}",
        category="storage_full",
    )


def _check_quota(context: StaticContext) -> Iterator[Finding]:
    """quota -q names only file systems that are over (quota(1)); silent where it is not installed."""
    if context.left() < 0.5 or shutil.which("quota", path=context.environ.get("PATH")) is None:
        return
    answer = context.run(["quota", "-q", "-w"], timeout_s=0.3)
    yield from parse_quota(answer.exit_code, answer.stdout)


def parse_quota(exit_code: int | None, stdout: bytes) -> Iterator[Finding]:
    """What quota -q said, in one finding."""
    said = stdout.decode("utf-8", "replace").strip()
    if exit_code and re.search(r"\*|[Oo]ver|limit reached", said):
        yield Finding(
            severity=Severity.WARNING,
            message=f"your quota is used up: {' '.join(said.splitlines()[-1].split())}",
            fix="remove files; quota -s shows where",
            category="storage_full",
        )
