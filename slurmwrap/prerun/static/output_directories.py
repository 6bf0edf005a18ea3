"""Where a job writes: do Slurm's output directories exist, is there space. Asks the file system and quota(1)."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.sbatch.request import JobRequest, SbatchSetting

SPACE_FLOOR_MIB = 512  # less than this left is told
_INODES = 500


def check_output_directories(request: JobRequest, desk: StaticContext) -> Iterator[Finding]:
    """The directories of --output, --error and --chdir; space and quota where the job writes."""
    folders = {request.chdir}
    for option in ("output", "error"):
        setting = request.setting(option)
        if setting is not None and setting.value and not request.hetjob:
            folder = _get_output_folder(setting.value, request.chdir)
            if folder:
                folders.add(folder)
                yield from _check_slurm_output(setting, option, folder, desk)
    if (chdir := request.setting("chdir")) is not None and not Path(request.chdir).is_dir():
        yield _make_directory_finding(
            chdir,
            f"--chdir {request.chdir}: no such directory",
            "correct the path, or make it first",
            desk,
            request.chdir,
        )
    for folder in sorted(folders):
        with suppress(OSError):
            yield from check_space(folder, os.statvfs(folder))
    yield from _check_quota(desk)


def _get_output_folder(pattern: str, chdir: str) -> str:
    """The directory of an output pattern; "" when it depends on the job (`%j`) or is no file."""
    folder = os.path.dirname(pattern)  # noqa: PTH120
    if "%" in folder or "\\" in pattern or not folder or pattern == "/dev/null":
        return ""
    return os.path.normpath(os.path.join(chdir, folder))  # noqa: PTH118


def _check_slurm_output(setting: SbatchSetting, option: str, folder: str, desk: StaticContext) -> Iterator[Finding]:
    """slurmd opens these files before the script begins: without the directory the job fails and leaves no word."""
    try:
        there = Path(folder).is_dir()
    except OSError:
        return
    if not there:
        message = f"--{option} {setting.value}: there is no directory {folder}; the job would fail and write no output"
        yield _make_directory_finding(setting, message, f"mkdir -p {folder}", desk, folder)
    elif not os.access(folder, os.W_OK | os.X_OK):
        message = f"--{option} {setting.value}: you may not write in {folder}; the job would fail and write no output"
        yield _make_directory_finding(setting, message, "choose another directory", desk, folder, category="permission_error")


def _make_directory_finding(
    setting: SbatchSetting, message: str, fix: str, desk: StaticContext, path: str, category: str = "incorrect_inputs"
) -> Finding:
    return Finding(
        severity=Severity.WARNING if path.startswith(desk.node_local) else Severity.ERROR,
        message=message,
        file=desk.script if setting.line else setting.where,
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


def _check_quota(desk: StaticContext) -> Iterator[Finding]:
    """quota -q names only file systems that are over (quota(1)); silent where it is not installed."""
    if desk.left() < 0.5 or shutil.which("quota", path=desk.environ.get("PATH")) is None:
        return
    answer = desk.run(["quota", "-q", "-w"], timeout_s=0.3)
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
