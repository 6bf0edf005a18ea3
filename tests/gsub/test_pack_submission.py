"""gsub --pack without Slurm: what goes to sbatch, the files of the job, what is stored, and --pack=auto."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_submit import NOW, FakeMemory, FakeSlurm, context, request, trial

from slurmwrap.cli.member_runs import describe_member
from slurmwrap.errors import RefusedError, StoreError
from slurmwrap.gsub.apply_verdict import HeldJob, apply_verdict
from slurmwrap.gsub.fold_array import (
    make_fold_updates,
    make_throttle_update,
    plan_fold,
    undo_fold_updates,
    write_members,
)
from slurmwrap.gsub.prepare import prepare
from slurmwrap.gsub.send import send
from slurmwrap.model.cluster import Node, Snapshot
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.pack_member import PackMember
from slurmwrap.model.resource_profile import Measurement, PackPoint, ResourceProfile
from slurmwrap.model.submission import PackedArray
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.placement.pack_size import choose_measured_members, choose_members, find_card_mib, propose_slice
from slurmwrap.store.pack_results import find_member_task, find_slurm_state, read_folded_array, read_members

SCRIPT = b"#!/bin/bash\n#SBATCH --gres=gpu:1 -c 2\n#GSUB --no-place\n# not one: #SBATCH --mem=1\necho hello\n"


class PackMemory(FakeMemory):
    folder: Path = Path()

    def pack_dir(self) -> str:
        self.folder.mkdir()
        return str(self.folder)


def submit(tmp_path: Path, *words: str) -> tuple[FakeSlurm, PackMemory, list[str]]:
    slurm, memory, said = FakeSlurm(), PackMemory(), []
    memory.folder = tmp_path / "my pack"
    at = replace(context(slurm, memory), say=said.append)
    asked = request("--prerun=off", "--array=0-7", *words, script=SCRIPT)
    send(prepare(asked, at), at, trial)
    return slurm, memory, said


def test_sbatch_gets_the_folded_array_and_the_script_that_runs_the_members(tmp_path: Path) -> None:
    slurm, memory, _ = submit(tmp_path, "--pack=4", "--output=%a.log")
    (call,) = slurm.calls
    assert call.script_path == f"{memory.folder}/pack.sh"
    assert call.stdin is None
    assert {"--array=0,4", "--cpus-per-task=8", "--output=slurm-%A_%a.pack.out"} <= set(call.options)
    assert not any("pack=" in option for option in call.options)
    assert (memory.folder / "slurm_script").read_bytes() == SCRIPT
    spec = json.loads((memory.folder / "spec.json").read_text())
    assert (spec["indices"], spec["members"], spec["output"]) == (list(range(8)), 4, "%a.log")
    assert spec["environment"]["SLURM_ARRAY_TASK_COUNT"] == "8"
    # The user's directive lines are sbatch's to read; those of gsub and comments are not repeated.
    lines = (memory.folder / "pack.sh").read_text().splitlines()
    assert [line for line in lines if line.startswith("#SBATCH")] == ["#SBATCH --gres=gpu:1 -c 2"]


def test_the_batch_script_runs_the_members_from_a_directory_with_a_space(tmp_path: Path) -> None:
    _, memory, _ = submit(tmp_path, "--pack=4", "--output=%a.log")
    environ = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_JOB_ID": "101"}
    subprocess.run(["sh", memory.folder / "pack.sh"], cwd=tmp_path, env=environ, check=True, timeout=60)
    assert [(tmp_path / f"{index}.log").read_text() for index in (4, 5, 6, 7)] == ["hello\n"] * 4
    (stored,) = memory.submissions
    assert stored.pack == PackedArray(directory=str(memory.folder), members=4, array="0-7")
    members = read_members(stored.pack)
    assert [(one.index, one.state, one.exit_code, one.task) for one in members] == [
        (index, "completed", 0, "101_4") for index in (4, 5, 6, 7)
    ]


def test_what_a_packed_task_needs_is_not_learnt_for_one_member(tmp_path: Path) -> None:
    _, memory, _ = submit(tmp_path, "--pack=4")
    (stored,) = memory.submissions
    assert stored.profile_key.endswith("+pack4")
    assert not stored.tune
    assert stored.time is None
    assert stored.shape is not None and stored.shape.cpus == 8


def test_the_pre_run_tests_one_member_and_plans_the_folded_task_again(tmp_path: Path) -> None:
    memory = PackMemory()
    prepared = prepare(request("--array=0-7", "--pack=4", script=SCRIPT), context(FakeSlurm(), memory))
    assert prepared.request.shape.cpus == 2
    # What the pre-run's end applies to the waiting job is planned for this.
    assert prepared.planned_request.shape.cpus == 8
    assert not prepared.planned_request.own.tune


@pytest.mark.parametrize("words", [("--pack=1",), ("--pack=4", "--array=0-7%1")])
def test_one_member_on_each_gpu_is_the_job_as_it_is(tmp_path: Path, words: tuple[str, ...]) -> None:
    slurm, memory, _ = submit(tmp_path, *words)
    assert slurm.calls[0].script_path == "train.sbatch"
    assert memory.submissions[0].pack is None


def test_a_job_that_cannot_be_packed_is_refused_and_not_submitted(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="several nodes"):
        submit(tmp_path, "--pack=2", "-N2")


@pytest.mark.parametrize(
    ("words", "why", "hint"),
    [
        (("-c", "10"), "4 members need 40 CPUs together", "--pack=3"),
        (("--mem=100G",), "4 members need 409,600 MiB of memory together", "--pack=2"),
        (("--mem-per-cpu=40G",), "4 members need 327,680 MiB of memory together", "--pack=3"),
    ],
)
def test_a_task_that_no_node_can_hold_is_refused(tmp_path: Path, words: tuple[str, ...], why: str, hint: str) -> None:
    with pytest.raises(RefusedError, match=why) as refused:
        submit(tmp_path, "--pack=4", *words)
    assert hint in refused.value.hint


def test_nothing_is_submitted_if_the_files_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "my pack").mkdir()
    with pytest.raises(StoreError, match="nothing was submitted"):
        submit(tmp_path, "--pack=2")


def test_a_damaged_or_foreign_record_of_a_member_is_left_out(tmp_path: Path) -> None:
    pack = PackedArray(directory=str(tmp_path), members=2, array="0-5")
    (tmp_path / "members").mkdir()
    for index, text in enumerate(["{", "[]", '{"index": 2, "state": "failed", "exit_code": 3, "new": 1}']):
        (tmp_path / "members" / f"{index}.json").write_text(text)
    (tmp_path / "members" / "3.json").symlink_to(tmp_path / "members" / "2.json")
    (tmp_path / "members" / "4.json").mkdir()
    assert [(one.index, one.exit_code) for one in read_members(pack)] == [(2, 3)]
    assert [find_member_task(pack, 77, index) for index in (0, 1, 5, 6)] == ["77_0", "77_0", "77_4", None]
    (member,) = read_members(pack)
    assert find_slurm_state(member, "COMPLETED") == "FAILED"
    assert find_slurm_state(replace(member, state="stopped"), "COMPLETED") == "CANCELLED"
    assert find_slurm_state(replace(member, state="running"), "NODE_FAIL") == "NODE_FAIL"
    # The kernel kills a process of one member; the others complete.
    assert find_slurm_state(replace(member, exit_code=137), "OUT_OF_MEMORY") == "OUT_OF_MEMORY"
    assert find_slurm_state(member, "OUT_OF_MEMORY") == "FAILED"
    assert find_slurm_state(replace(member, state="completed"), "OUT_OF_MEMORY") == "COMPLETED"


def test_what_the_wrapper_did_to_a_member_is_said() -> None:
    member = PackMember(
        index=5, state="failed", signal=9, reason="memory: it used 130 MiB, and the members share 200 MiB"
    )
    assert describe_member(member).startswith("The wrapper ended it for its memory: it used 130 MiB")
    assert find_slurm_state(member, "FAILED") == "OUT_OF_MEMORY"
    assert "waits for the other members" in describe_member(PackMember(index=5, state="running", paused=True))
    assert "waited 90 s" in describe_member(PackMember(index=5, state="completed", paused_s=90.4))
    assert describe_member(PackMember(index=5, state="completed")) == ""


# --- --pack=auto ---------------------------------------------------------------------------------------------------

CLUSTER = Snapshot(
    taken_at=0.0, nodes=(Node(name="n1", state="IDLE", cpus=64, mem_mib=512_000, gpus=4, gpu_type="a100"),)
)
SMALL = ResourceProfile(key="k", gpu_mem_mib=3000, gpu_util=0.2, mem_mib_per_gpu=8000)


@pytest.mark.parametrize(
    ("profile", "words", "members", "why"),
    [
        (SMALL, (), 5, "GPU utilization"),
        (replace(SMALL, gpu_util=0.05, gpu_mem_mib=10_000), (), 3, "GPU memory"),
        (replace(SMALL, gpu_util=0.05), ("-c8",), 2, "CPUs"),
        (replace(SMALL, gpu_util=0.05), ("--mem=40G",), 3, "memory of the node"),
        (replace(SMALL, gpu_util=0.9), (), 1, "GPU utilization"),
        (replace(SMALL, gpu_mem_mib=None), (), 1, "no GPU memory"),
        (None, (), 1, "no profile"),
    ],
)
def test_auto_takes_what_fits_by_the_profile(
    profile: ResourceProfile | None, words: tuple[str, ...], members: int, why: str
) -> None:
    asked = request("--array=0-31", "--gres=gpu:1", *words, script=b"#!/bin/sh\ntrue\n")
    found, reason = choose_members(asked, profile, CLUSTER, 1.2)
    assert found == members
    assert why in reason


def test_auto_packs_nothing_on_a_gpu_of_unknown_memory() -> None:
    nodes = (replace(CLUSTER.nodes[0], gpu_type="gx9000"),)
    asked = request("--array=0-31", "--gres=gpu:1", script=b"#!/bin/sh\ntrue\n")
    assert choose_members(asked, SMALL, replace(CLUSTER, nodes=nodes), 1.2)[0] == 1


@pytest.mark.parametrize(
    ("kind", "mib"),
    [
        ("a100", 40_000),
        ("nvidia_a100-sxm4-80gb", 80_000),
        ("H100", 80_000),
        ("1g.10gb", 10_000),
        ("a100_1g.5gb", 5_000),
        ("gx1", None),
    ],
)
def test_the_memory_of_a_card_is_found_by_its_type(kind: str, mib: int | None) -> None:
    assert find_card_mib(kind) == mib


def test_auto_without_a_profile_submits_the_array_unpacked_and_says_why(tmp_path: Path) -> None:
    slurm, memory, said = submit(tmp_path, "--pack")
    assert slurm.calls[0].script_path == "train.sbatch"
    assert memory.submissions[0].pack is None
    assert any("one member on each GPU: no profile" in line for line in said)


# --- measured by the pre-run ---------------------------------------------------------------------------------------


def points(*speeds: float) -> tuple[PackPoint, ...]:
    return tuple(PackPoint(members=2**at, steps_per_s=speed) for at, speed in enumerate(speeds))


@pytest.mark.parametrize(
    ("speeds", "members"),
    [
        ((10.0, 9.0, 8.0), 4),
        ((10.0, 9.0, 4.6), 2),  # 18.0 and 18.4 together: less than 5 % more
        ((10.0, 5.9, 2.9), 1),  # 1.18 times as fast as one
        ((10.0, 6.1, 2.9), 2),
        ((10.0,), 1),
        ((), 1),
    ],
)
def test_the_fastest_number_of_members_is_taken_if_it_gains_enough(speeds: tuple[float, ...], members: int) -> None:
    assert choose_measured_members(points(*speeds), 1.2)[0] == members


MEASURED = ResourceProfile(key="k", mem_mib_per_gpu=8000, pack_speeds=points(10.0, 9.0, 8.0, 3.9), pack_end="slower")


def test_a_measured_table_decides_and_is_shown_and_what_fits_still_limits_it() -> None:
    asked = request("--array=0-31", "--gres=gpu:1", script=b"#!/bin/sh\ntrue\n")
    members, reason = choose_members(asked, MEASURED, CLUSTER, 1.2)
    assert members == 4
    assert "3.20 times as fast as one: 10 steps/s alone, 2 with 9 each = 18, 4 with 8 each = 32" in reason
    assert "more were slower together" in reason
    wide = request("--array=0-31", "--gres=gpu:1", "-c8", script=b"#!/bin/sh\ntrue\n")
    assert choose_members(wide, MEASURED, CLUSTER, 1.2)[0] == 2
    failed = replace(SMALL, pack_end="first_exit")
    assert choose_members(asked, failed, CLUSTER, 1.2) == (
        1,
        "its pre-run could not measure it: the script ended before its speed was known",
    )


def test_auto_without_a_measurement_submits_one_member_in_each_task_and_a_pre_run_that_measures(tmp_path: Path) -> None:
    slurm, memory = FakeSlurm(), PackMemory()
    memory.folder = tmp_path / "pack"
    at = context(slurm, memory)
    prepared = prepare(request("--pack", "--array=0-31%8", script=SCRIPT), at)
    assert prepared.prerun == "auto" and "measures how many members" in prepared.prerun_reason
    # A GPU's share of a node has 4 CPUs, and a member has 2.
    assert prepared.pack is not None and prepared.pack.measured_up_to == 2
    send(prepared, at, trial)
    assert "--array=0-31%8" in slurm.calls[0].options
    assert any(option.startswith("--begin=") for option in slurm.calls[0].options)
    spec = json.loads((memory.folder / "spec.json").read_text())
    assert (spec["members"], spec["counter"], spec["alone"]) == (1, "/counter", 0)
    assert memory.submissions[0].profile_key.endswith("+packauto")


def test_with_a_measured_table_no_pre_run_measures_again(tmp_path: Path) -> None:
    slurm, memory = FakeSlurm(), PackMemory()
    memory.folder = tmp_path / "pack"
    at = context(slurm, memory)
    asked = request("--pack", "--array=0-7", "--mem=1000", script=SCRIPT)
    memory.profiles[prepare(asked, at).profile_key] = MEASURED
    prepared = prepare(asked, at)
    assert prepared.pack is not None and (prepared.pack.members, prepared.pack.measured_up_to) == (2, 0)
    send(prepared, at, trial)
    assert "--array=0-6:2" in slurm.calls[0].options
    assert json.loads((memory.folder / "spec.json").read_text())["alone"] == 10.0


def test_a_waiting_array_is_folded_by_updates_that_can_be_undone(tmp_path: Path) -> None:
    said: list[str] = []
    at = replace(context(FakeSlurm(), PackMemory()), say=said.append)
    prepared = prepare(request("--pack", "--array=0-31%8", "--mem=1000", script=SCRIPT), at)
    asked = prepared.planned_request
    plan = plan_fold(asked, MEASURED, at.slurm.snapshot(), at)
    assert plan is not None and plan.members == 2
    updates = make_fold_updates("77", asked, plan)
    assert [(one.key, one.value) for one in updates] == [
        ("CPUsPerTask", "4"),
        ("MinCPUsNode", "4"),
        ("MinMemoryNode", "2000"),
    ]
    assert [(one.key, one.value) for one in undo_fold_updates(updates, asked)] == [
        ("MinMemoryNode", "1000"),
        ("MinCPUsNode", "2"),
        ("CPUsPerTask", "2"),
    ]
    assert [(one.key, one.value) for one in make_throttle_update("77", asked, plan)] == [("ArrayTaskThrottle", "4")]
    pack = PackedArray(directory=str(tmp_path), members=1, array="0-31")
    assert read_folded_array(pack) == pack
    (tmp_path / "spec.json").write_text('{"members": 1, "job_name": "x"}')
    write_members(str(tmp_path), 2, 10.0)
    assert read_folded_array(pack).members == 2
    assert json.loads((tmp_path / "spec.json").read_text()) == {"members": 2, "job_name": "x", "alone": 10.0}


def test_a_job_whose_memory_slurm_cannot_change_stays_as_it_is() -> None:
    said: list[str] = []
    at = replace(context(FakeSlurm(), PackMemory()), say=said.append)
    asked = prepare(request("--pack", "--array=0-31", "--mem-per-gpu=1000", script=SCRIPT), at).planned_request
    assert plan_fold(asked, MEASURED, at.slurm.snapshot(), at) is None
    assert "the next submission is packed" in said[-1]


# --- MIG -----------------------------------------------------------------------------------------------------------


def slices(kind: str, *words: str) -> tuple[int, str, str]:
    """(members, reason, advice) on a cluster whose nodes have GPUs of these types."""
    nodes = (replace(CLUSTER.nodes[0], gpu_type=kind),)
    asked = request("--array=0-31", "--gres=gpu:1", *words, script=b"#!/bin/sh\ntrue\n")
    cluster = replace(CLUSTER, nodes=nodes)
    small = replace(SMALL, gpu_util=0.1)
    return (*choose_members(asked, small, cluster, 1.2), propose_slice(asked, small, cluster))


def test_each_member_has_a_slice_where_all_gpus_are_slices() -> None:
    members, reason, advice = slices("1g.10gb,3g.40gb")
    assert (members, "one member on each slice" in reason) == (1, True)
    # Which slices it takes is for its user to say.
    assert "--gres=gpu:1g.10gb:1" in advice


def test_a_slice_is_proposed_only_if_the_member_fits_and_is_on_its_nodes() -> None:
    members, _, advice = slices("a100,2g.10gb,1g.5gb", "--gres=gpu:a100:1")
    assert (members, "--gres=gpu:1g.5gb:1" in advice) == (10, True)
    assert slices("a100", "--gres=gpu:a100:1")[2] == ""
    assert slices("a100,1g.3gb")[2] == ""
    assert slices("a100,1g.5gb", "--gres=gpu:1g.5gb:1")[2] == ""


# --- the pre-run's last act ----------------------------------------------------------------------------------------

SPEEDS = Measurement(pack_speeds=points(10.0, 9.0), pack_end="fit")


def apply(tmp_path: Path, slurm: FakeSlurm, measurement: Measurement = SPEEDS, **record: Any) -> list[tuple[str, str]]:
    """Applies the verdict of a pre-run to a waiting array. Returns the updates, the time without its date."""
    (tmp_path / "spec.json").write_text('{"members": 1}')
    at = context(slurm, PackMemory())
    prepared = prepare(request("--pack", "--array=0-7", "--mem=1000", script=SCRIPT), at)
    waiting = HeldJob(
        request=prepared.planned_request,
        plan=prepared.plan,
        job_id=101,
        prerun_job_id=102,
        release_at="now",
        profile_key="k",
        fingerprint="",
        pack_dir=str(tmp_path),
    )
    job = JobRecord(job_id=101, array_job_id=101, array_tasks="0-7", state="PENDING", user="alice", uid=1001)
    slurm.jobs_by_address["101"] = replace(job, **{"eligible_time": int(NOW) + 60, **record})
    passed = Verdict(outcome=Outcome.PASS, layer="explicit", reason="3 steps", steps=3, measurement=measurement)
    apply_verdict(waiting, passed, at)
    return [(one.key, "later" if one.value.startswith("20") else one.value) for one in slurm.applied]


def read_folded(tmp_path: Path) -> int:
    return int(json.loads((tmp_path / "spec.json").read_text())["members"])


def test_no_task_can_start_while_the_array_is_folded(tmp_path: Path) -> None:
    # CPUs and memory go in one call; the fake shows its first key.
    assert apply(tmp_path, FakeSlurm()) == [("StartTime", "later"), ("CPUsPerTask", "4"), ("StartTime", "now")]
    assert read_folded(tmp_path) == 2


def test_a_begin_that_is_later_anyway_is_not_moved(tmp_path: Path) -> None:
    assert apply(tmp_path, FakeSlurm(), eligible_time=int(NOW) + 9000)[0] == ("CPUsPerTask", "4")


def test_a_refused_update_is_undone_and_the_array_starts_as_it_was_submitted(tmp_path: Path) -> None:
    slurm = FakeSlurm(refuse_keys=frozenset({"CPUsPerTask"}))
    assert apply(tmp_path, slurm) == [
        ("StartTime", "later"),
        ("MinMemoryNode", "1000"),
        ("MinCPUsNode", "2"),
        ("StartTime", "now"),
    ]
    assert read_folded(tmp_path) == 1


@pytest.mark.parametrize(
    ("measurement", "record"),
    [(Measurement(pack_end="slow"), {}), (Measurement(), {}), (SPEEDS, {"eligible_time": int(NOW) - 5})],
)
def test_an_array_that_was_not_measured_or_may_start_now_is_not_folded(
    tmp_path: Path, measurement: Measurement, record: dict[str, Any]
) -> None:
    assert [key for key, _ in apply(tmp_path, FakeSlurm(), measurement, **record) if key != "StartTime"] == []
    assert read_folded(tmp_path) == 1
