"""An array beyond MaxArraySize without Slurm: what goes to sbatch, the tasks of its parts, a refusal midway."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

from test_pack_submission import PackMemory
from test_submit import FakeSlurm, context, pending, request, trial

from slurmwrap.cli.member_runs import add_members
from slurmwrap.cli.record_access import RecordSource
from slurmwrap.config.load_config import Config
from slurmwrap.gsub.pack_submission import prepare_split_array
from slurmwrap.gsub.part_submission import describe_parts
from slurmwrap.gsub.prepare import prepare
from slurmwrap.gsub.send import send
from slurmwrap.gsub.submit_context import SubmitResult, TrialJob
from slurmwrap.model.cluster import Snapshot
from slurmwrap.protocols import SbatchCall, SbatchResult
from slurmwrap.report.job_report.timeline import JobTimeline
from slurmwrap.store.pack_results import find_array_address, find_member_task, read_folded_array, read_split_arrays
from slurmwrap.store.prerun_registry import PrerunRegistry, list_waiting_jobs

SCRIPT = b"""#!/bin/bash
#SBATCH --gres=gpu:1 -c 2
#GSUB --no-place
echo "$SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MAX $SLURM_OVERLAP$1"
exit $((SLURM_ARRAY_TASK_ID == 13 ? 3 : 0))
"""

SCRIPT_WITHOUT_GPU = b"#!/bin/sh\n#SBATCH --output=%a.log -c 3\n#GSUB --retry\nhostname\n"


class SmallArrays(FakeSlurm):
    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), max_array_size=11)


def submit(
    tmp_path: Path, *words: str, slurm: SmallArrays | None = None
) -> tuple[SmallArrays, PackMemory, SubmitResult]:
    slurm, memory = slurm or SmallArrays(), PackMemory()
    memory.folder = tmp_path / "pack" / "my array"
    memory.folder.parent.mkdir()
    at = context(slurm, memory)
    asked = request("--prerun=off", "--array=0-24", "--output=%A_%3a.log", *words, script=SCRIPT)
    return slurm, memory, send(prepare(asked, at), at, trial)


def run_task(tmp_path: Path, call: SbatchCall, job: int, task: int) -> int:
    environ = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": str(job)}
    out = tmp_path / f"slurm-{job}_{task}.pack.out"
    with out.open("wb") as file:
        done = subprocess.run(
            ["sh", call.script_path or ""], cwd=tmp_path, env=environ, check=False, stdout=file, timeout=60
        )
    # Only a task that failed leaves the output of the wrapper.
    assert out.exists() is (done.returncode != 0)
    return done.returncode


def test_the_parts_are_submitted_once_each_and_recorded_as_one_array(tmp_path: Path) -> None:
    slurm, memory, sent = submit(tmp_path)
    arrays = [[one for one in call.options if one.startswith("--array=")][-1] for call in slurm.calls]
    assert arrays == ["--array=0-10", "--array=0-10", "--array=0-2"]
    assert sent.result.stdout == "".join(f"Submitted batch job {job}\n" for job in (101, 102, 103))
    assert (sent.jobs, sent.result.job_id, sent.result.exit_code) == ((101, 102, 103), 101, 0)
    assert [one.job_id for one in memory.submissions] == [101, 102, 103]
    (stored, *_) = memory.submissions
    # As for an array that is not split: each task has one member.
    assert (stored.profile_key.endswith("+pack1"), stored.tune, stored.time is not None) == (False, True, True)
    assert stored.pack is not None
    pack = read_folded_array(stored.pack)
    assert [find_member_task(pack, 101, index) for index in (0, 10, 11, 24, 25)] == [
        "101_0",
        "101_10",
        "102_0",
        "103_2",
        None,
    ]
    assert [find_array_address(pack, a) for a in ("101_3", "102_0", "103", "101", "9_1", "102_99")] == [
        *("101_3", "101_11", "101", "101", "9_1", "101")
    ]
    assert set(read_split_arrays(tmp_path, "lab")) == {101, 102, 103}
    assert read_split_arrays(tmp_path, "other") == {}


def test_a_task_has_the_variables_and_the_files_of_the_index_that_the_user_wrote(tmp_path: Path) -> None:
    slurm, memory, _ = submit(tmp_path)
    assert [run_task(tmp_path, slurm.calls[part], 101 + part, task) for part, task in ((0, 3), (1, 2), (2, 2))] == [
        *(0, 3, 0)
    ]
    for index in (3, 13, 24):
        assert (tmp_path / f"101_{index:03}.log").read_text() == f"101 {index} of 25 24 \n"
    source = RecordSource(database=tmp_path / "absent.db", site=False, uid=1001)
    timeline = add_members(JobTimeline(address="101", submission=memory.submissions[0]), "101", source, Config())
    assert [(run.address, run.state) for run in timeline.attempts] == [
        ("101_3", "COMPLETED"),
        ("101_13", "FAILED"),
        ("101_24", "COMPLETED"),
    ]
    # As sbatch would: a task that its user requeues runs again.
    assert run_task(tmp_path, slurm.calls[1], 102, 2) == 3


def test_packed_tasks_beyond_the_limit_are_split_too(tmp_path: Path) -> None:
    slurm, memory, _ = submit(tmp_path, "--pack=2")
    assert run_task(tmp_path, slurm.calls[1], 102, 0) == 3  # the members 12 and 13
    assert (tmp_path / "101_012.log").read_text() == "101 12 of 25 24 1\n"
    stored = memory.submissions[1]
    assert stored.pack is not None and stored.profile_key.endswith("+pack2")
    assert find_member_task(read_folded_array(stored.pack), 101, 13) == "102_0"


def test_after_a_refusal_nothing_more_is_submitted_and_the_rest_is_named(tmp_path: Path) -> None:
    slurm = SmallArrays()
    no = SbatchResult(exit_code=1, stdout="", stderr="sbatch: error: Job violates policy\n", job_id=None)
    slurm.refuse = lambda call: no if len(slurm.calls) > 1 else None
    _, memory, sent = submit(tmp_path, "--no-tune", slurm=slurm)
    assert (len(slurm.calls), sent.jobs, sent.result.exit_code) == (2, (101,), 1)
    assert [one.job_id for one in memory.submissions] == [101]
    plan = prepare(request("--array=0-24", script=SCRIPT), context(slurm, memory)).pack
    assert plan is not None
    said = describe_parts(plan, sent, 11, "Job violates policy")
    assert said[0].endswith("indices 0-10 in job 101")
    assert said[1:] == [
        "the indices 11-24 are not submitted: Job violates policy",
        "submit the rest: gsub --again 101 --array=11-24",
    ]
    unclear = replace(sent, result=replace(sent.result, timed_out=True))
    assert "not known whether part 2 was submitted" in describe_parts(plan, unclear, 11, "")[1]


def test_the_jobs_are_shown_if_the_call_is_interrupted_midway(tmp_path: Path) -> None:
    slurm = SmallArrays()

    def interrupt(call: SbatchCall) -> None:
        if len(slurm.calls) > 2:
            raise KeyboardInterrupt

    slurm.refuse = interrupt
    _, memory, sent = submit(tmp_path, slurm=slurm)
    assert (sent.jobs, sent.result.timed_out, len(memory.submissions)) == ((101, 102), True, 2)
    assert sent.result.stdout == "Submitted batch job 101\nSubmitted batch job 102\n"


def test_all_parts_wait_for_one_pre_run(tmp_path: Path) -> None:
    slurm, memory = SmallArrays(), PackMemory()
    memory.folder = tmp_path / "array"
    at = replace(context(slurm, memory), flights=PrerunRegistry(tmp_path))
    slurm.jobs_by_address["104"] = replace(pending(), job_id=104, state="RUNNING")
    trials: list[Path] = []

    def make(prepared: object, job_id: int | None, release_at: str) -> TrialJob:
        trials.append(tmp_path / "prerun" / str(job_id))
        trials[-1].mkdir(parents=True)
        (trials[-1] / "spec.json").write_text(json.dumps({"real_job": str(job_id), "cluster": "lab"}))
        return replace(trial(prepared, job_id, release_at), directory=str(trials[-1]))

    asked = request("--prerun=auto", "--array=0-24", "--gres=gpu:2", script=SCRIPT)
    sent = send(prepare(asked, at), at, make)
    assert [any(option.startswith("--begin=") for option in call.options) for call in slurm.calls] == [
        *(True, True, True, False)
    ]
    assert sent.jobs == (101, 102, 103)
    assert sent.trial is not None and sent.trial.job_id == 104
    assert [one.job_id for one in list_waiting_jobs(trials[0])] == [102, 103]
    assert [one.prerun_job_id for one in memory.submissions] == [104, 104, 104]
    assert json.loads((memory.folder / "jobs.json").read_text())["jobs"] == [101, 102, 103]


def test_what_cannot_be_split_goes_to_sbatch_with_a_reason(tmp_path: Path) -> None:
    said: list[str] = []
    at = replace(context(SmallArrays(), PackMemory()), say=said.append)
    prepared = prepare(request("--array=0-24", "--dependency=aftercorr:5", script=SCRIPT), at)
    assert prepared.pack is None
    assert "aftercorr" in said[0]


def test_an_array_without_gpus_is_split_and_not_changed_otherwise(tmp_path: Path) -> None:
    slurm, memory = SmallArrays(), PackMemory()
    memory.folder = tmp_path / "array"
    at = context(slurm, memory)
    assert prepare_split_array(request("--array=0-10", script=SCRIPT_WITHOUT_GPU), at, "no GPU") is None
    prepared = prepare_split_array(request("--array=0-24", script=SCRIPT_WITHOUT_GPU), at, "no GPU")
    assert prepared is not None
    send(prepared, at, trial)
    added = {option.partition("=")[0] for call in slurm.calls for option in call.options[1:]}
    assert (len(slurm.calls), added) == (3, {"--array", "--output", "--job-name"})
    (stored, *_) = memory.submissions
    assert (stored.gpus, stored.tune, stored.place, stored.retry, stored.prerun_mode) == (0, False, False, False, "off")
