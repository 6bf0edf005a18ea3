"""Output directories of a job, free space and quota."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.write_targets import check_space, parse_quota

Check = Callable[..., tuple[Finding, ...]]


@pytest.mark.parametrize("pattern", ["%j.out", "logs/%x-%j.out", "%j/out", "/dev/null", "logs/%A_%a.out", "./x.out"])
def test_an_output_whose_directory_exists_or_is_unknown_has_no_finding(
    pattern: str, findings: Check, open_dir: Path
) -> None:
    (open_dir / "logs").mkdir()
    (open_dir / "job.sbatch").write_text(f"#!/bin/bash\n#SBATCH --output={pattern}\n#SBATCH -e {pattern}\necho\n")
    assert findings() == ()


def test_a_missing_directory_of_the_error_file_is_an_error(findings: Check, open_dir: Path) -> None:
    (open_dir / "job.sbatch").write_text("#!/bin/bash\n\n#SBATCH -e runs/%j.err\nmkdir -p runs\n")
    assert findings() == (
        Finding(
            severity=Severity.ERROR,
            message=f"--error runs/%j.err: there is no directory {open_dir}/runs; "
            "the job would fail and write no output",
            file=f"{open_dir}/job.sbatch",
            line=3,
            fix=f"mkdir -p {open_dir}/runs",
            category="incorrect_inputs",
        ),
    )


def make_file_system(free_mib: int, files: int) -> os.statvfs_result:
    """A file system of 10 GiB and a million inodes with the given free space and free inodes."""
    blocks = free_mib << 8
    return os.statvfs_result((4096, 4096, 10 << 18, blocks, blocks, 1_000_000, files, files, 0, 255))


@pytest.mark.parametrize(
    ("free_mib", "files", "message"),
    [
        (600, 1000, None),
        (500, 1000, "/data: 500 MiB are left on its file system"),
        (600, 499, "/data: 499 more files can be made on its file system"),
    ],
)
def test_little_free_space_and_few_free_inodes_have_a_finding(free_mib: int, files: int, message: str | None) -> None:
    assert [f.message for f in check_space("/data", make_file_system(free_mib, files))] == (
        [message] if message else []
    )


def test_a_file_system_that_does_not_count_inodes_is_not_full() -> None:
    uncounted = os.statvfs_result((4096, 4096, 10 << 18, 1 << 20, 1 << 20, 0, 0, 0, 0, 255))
    assert list(check_space("/data", uncounted)) == []


@pytest.mark.parametrize(
    ("exit_code", "stdout", "message"),
    [
        (0, b"", None),
        (
            1,
            b"Disk quotas of a: \n  /home  1000* 900 1000\n",
            "your quota is used up: /home 1000* 900 1000",
        ),
        (1, b"quota: cannot reach the server\n", None),
    ],
)
def test_a_used_up_quota_has_a_finding(exit_code: int, stdout: bytes, message: str | None) -> None:
    assert [f.message for f in parse_quota(exit_code, stdout)] == ([message] if message else [])
