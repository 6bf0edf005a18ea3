"""In user mode the diagnosis is written to a file next to the job's output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.store.why_file import WhyFilePublisher

DIAGNOSIS = Diagnosis(category="gpu_oom", domain="U", decision="stop", confidence=0.9, signature="gpu.oom_torch")
PUBLISHER = WhyFilePublisher(lambda record, actions: f"job {record.address} with {len(actions)} actions \udcff\n")


def make_run(std_out: str, diagnosis: Diagnosis = DIAGNOSIS) -> JobRun:
    attempt = RunKey(cluster="lab", job_id=81, submit_time=1)
    return JobRun(attempt=attempt, address="81", std_out=std_out, diagnosis=diagnosis)


def test_a_failure_writes_the_why_file_and_a_success_removes_it(tmp_path: Path) -> None:
    out = tmp_path / "slurm-81.out"
    PUBLISHER.tell_owner(make_run(str(out)), ())
    assert [path.name for path in tmp_path.iterdir()] == ["slurm-81.out.why.txt"]
    assert (tmp_path / "slurm-81.out.why.txt").read_text() == "job 81 with 0 actions \\udcff\n"
    PUBLISHER.tell_owner(make_run(str(out), replace(DIAGNOSIS, category="success")), ())
    assert list(tmp_path.iterdir()) == []


def test_a_symbolic_link_at_the_why_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "precious"
    victim.write_text("kept")
    (tmp_path / "slurm-81.out.why.txt").symlink_to(victim)
    PUBLISHER.tell_owner(make_run(str(tmp_path / "slurm-81.out")), ())
    assert victim.read_text() == "kept"
    assert not (tmp_path / "slurm-81.out.why.txt").is_symlink()


@pytest.mark.parametrize("std_out", ["", "/dev/null", "slurm-81.out", "/nonexistent/slurm-81.out", "%N.out"])
def test_nothing_is_written_without_a_usable_output_path(
    std_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    PUBLISHER.tell_owner(make_run(std_out), ())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("category", ["gpu_oom", "success"])
def test_a_why_file_that_cannot_be_written_or_removed_raises_no_error(category: str, tmp_path: Path) -> None:
    (tmp_path / "slurm-81.out.why.txt").mkdir()
    for name in ("slurm-81.out", "x" * 250):  # a directory at the path; a name too long for the suffix
        PUBLISHER.tell_owner(make_run(str(tmp_path / name), replace(DIAGNOSIS, category=category)), ())
    assert [path.name for path in tmp_path.iterdir()] == ["slurm-81.out.why.txt"]
