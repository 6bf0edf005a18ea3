"""In user mode the reason lies beside the output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.store.why_file import WhyFilePublisher

DIAGNOSIS = Diagnosis(category="gpu_oom", domain="U", decision="stop", confidence=0.9, signature="gpu.oom_torch")
BESIDE = WhyFilePublisher(lambda record, actions: f"job {record.address} with {len(actions)} actions \udcff\n")


def record(std_out: str, diagnosis: Diagnosis = DIAGNOSIS) -> JobRun:
    attempt = RunKey(cluster="lab", job_id=81, submit_time=1)
    return JobRun(attempt=attempt, address="81", std_out=std_out, diagnosis=diagnosis)


def test_a_failure_is_told_beside_the_output_and_a_success_takes_it_away(tmp_path: Path) -> None:
    out = tmp_path / "slurm-81.out"
    BESIDE.tell_owner(record(str(out)), ())
    assert [path.name for path in tmp_path.iterdir()] == ["slurm-81.out.why.txt"]
    assert (tmp_path / "slurm-81.out.why.txt").read_text() == "job 81 with 0 actions \\udcff\n"
    BESIDE.tell_owner(record(str(out), replace(DIAGNOSIS, category="success")), ())
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "precious"
    victim.write_text("kept")
    (tmp_path / "slurm-81.out.why.txt").symlink_to(victim)
    BESIDE.tell_owner(record(str(tmp_path / "slurm-81.out")), ())
    assert victim.read_text() == "kept"
    assert not (tmp_path / "slurm-81.out.why.txt").is_symlink()


@pytest.mark.parametrize("std_out", ["", "/dev/null", "slurm-81.out", "/nonexistent/slurm-81.out", "%N.out"])
def test_where_no_file_can_stand_nothing_is_written(
    std_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    BESIDE.tell_owner(record(std_out), ())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("category", ["gpu_oom", "success"])
def test_what_cannot_be_written_or_removed_keeps_nobody_waiting(category: str, tmp_path: Path) -> None:
    (tmp_path / "slurm-81.out.why.txt").mkdir()
    for name in ("slurm-81.out", "x" * 250):  # a directory in its place; a name that has no room for the ending
        BESIDE.tell_owner(record(str(tmp_path / name), replace(DIAGNOSIS, category=category)), ())
    assert [path.name for path in tmp_path.iterdir()] == ["slurm-81.out.why.txt"]
