"""The advice of `slurmwrap watch` to share a GPU, and the sentences about a run on the GPU of another job."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from slurmwrap.cli.watch.share_advice import find_share_advice
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.shared_run import SharedRun
from slurmwrap.model.submission import Submission, SubmittedCall
from slurmwrap.profiling.colocation import GpuDemand
from slurmwrap.report.shared_run_text import describe_shared_run
from slurmwrap.store.shared_runs import read_shared_run
from slurmwrap.store.user_state_files import UserState

JOB = JobRecord(job_id=82, gpus=1, partition="gpu", state="PENDING")
ASKED = Submission(
    cluster="lab", job_id=82, uid=1000, user="alice", at=0.0, profile_key="k", call=SubmittedCall(words=("a",), cwd="/")
)


class KnownProfile(UserState):
    """A state whose only profile is that of a small job."""

    def profile(self, key: str) -> ResourceProfile | None:
        return ResourceProfile(key=key, gpu_util=0.3, gpu_mem_mib=5000, gpu_type="a100")


@pytest.fixture
def state(tmp_path: Path) -> KnownProfile:
    """Job 81 of --share runs."""
    for name in ("running", "waiting", "first"):
        (tmp_path / "share" / name).mkdir(parents=True)
    (tmp_path / "share" / "running" / "first").write_text("81")
    demand = {"gpu": asdict(GpuDemand(gpu_util=0.3, gpu_mem_mib=5000)), "card_mib": 40_000}
    (tmp_path / "share" / "first" / "spec.json").write_text(json.dumps({"demand": demand, "place": ["lab", "", "gpu"]}))
    return KnownProfile(tmp_path)


def test_a_waiting_job_is_shown_with_which_one_it_could_share_a_gpu(state: KnownProfile) -> None:
    said = "with your job 81 (predicted 1.9x together): scancel 82; gsub --again 82 --share"
    assert find_share_advice(JOB, ASKED, state) == said
    assert find_share_advice(replace(JOB, partition="other"), ASKED, state) == ""
    assert find_share_advice(replace(JOB, gpus=2), ASKED, state) == ""
    assert find_share_advice(JOB, replace(ASKED, share="/it/may"), state) == ""
    (state.directory / "share" / "running" / "first").unlink()
    assert find_share_advice(JOB, ASKED, state) == ""


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (SharedRun(by="81", state="running", node="n1", begin=40.0), "it runs on the GPU of job 81 (n1) since 60 s"),
        (SharedRun(by="81", state="completed", begin=0.0, end=20.0, exit_code=0, passed_on=0),
         "it ran on the GPU of job 81 for 20 s and ended with exit code 0"),
        (SharedRun(by="81", state="failed", exit_code=0, signal=11),
         "it ran on the GPU of job 81 and ended with signal 11; it waits for its own start, to end with the same"),
        (SharedRun(by="81", state="stopped"),
         "it ran on the GPU of job 81; it was stopped with that job and runs by itself"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_run_on_the_gpu_of_another_job(run: SharedRun, said: str) -> None:
    assert describe_shared_run(run, 100.0) == said


def test_the_record_of_such_a_run_is_read_until_the_job_runs_by_itself_and_after(tmp_path: Path) -> None:
    assert read_shared_run(str(tmp_path)) is None
    (tmp_path / "claim.json").write_text('{"by": "81", "token": "t", "state": "running", "runs": 1, "begin": 5.0}')
    assert read_shared_run(str(tmp_path)) == SharedRun(by="81", state="running", begin=5.0)
    (tmp_path / "claim.json").rename(tmp_path / "last.json")
    (tmp_path / "claim.json").write_text('{"by": "82", "state": "own"}')
    found = read_shared_run(str(tmp_path))
    assert found is not None and found.by == "81"
