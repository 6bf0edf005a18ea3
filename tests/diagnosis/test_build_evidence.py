"""Observations and Slurm's records, joined into evidence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from fakes import START, job

from slurmwrap.diagnosis.build_evidence import (
    build_measurement,
    complete_job_record,
    compute_memory_limit_mib,
    cut_earlier_output,
    drop_earlier_exit_code,
    join,
    select_observations_of_run,
    split_status,
)
from slurmwrap.model.evidence import Evidence, KernelLine, LogTail, RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.resource_profile import Measurement

KEY = RunKey(cluster="lab", job_id=81, submit_time=START - 100)
XID = "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."


def hook(context: Context, at: float, node: str = "n1", **facts: object) -> Observation:
    plain = {"uid": 1001, **facts}
    return Observation(
        nonce=f"{context}{at}{node}", cluster="lab", job_id=81, context=context, at=at, node=node, facts=plain
    )


def epilog(node: str = "n1", **facts: object) -> Observation:
    return hook(Context.EPILOG, START - 30.0, node, started_at=START - 90.0, **facts)


@pytest.mark.parametrize(
    ("raw", "split"), [(768, (3, 0)), (139, (0, 11)), (253, (0, 125)), (35584, (139, 0)), (4021, (0, 53)), (0, (0, 0))]
)
def test_raw_wait_statuses_are_split_as_slurm_does(raw: int, split: tuple[int, int]) -> None:
    assert split_status(raw) == split


def test_all_facts_of_a_run_are_joined_into_evidence() -> None:
    logs = [{"name": "/out", "text": "boom", "truncated": True}]
    kernel = [{"text": XID, "at": 5.0}]
    gpu = [
        {"index": 0, "bus_id": "05:00", "recovery_action": "gpu_reset"},
        {"index": 1, "bus_id": "06:00", "recovery_action": "none"},  # the value of every healthy GPU
    ]
    one = epilog(logs=logs, kernel=kernel, gpu=gpu, mem_peak_mib=700, oom_kills=1)
    two = epilog("n2", mem_peak_mib=900, oom_kills=2)
    found = join(KEY, job(81, nodes=("n1", "n2"), derived_exit_code=9), [one, two])
    assert found == Evidence(
        attempt=KEY,
        state="FAILED",
        reason="NonZeroExitCode",
        exit_code=1,
        derived_exit_code=9,
        logs=(LogTail(name="/out", text="boom", truncated=True),),
        kernel=(KernelLine(text=XID, node="n1", at=5.0),),
        nodes=("n1", "n2"),
        gpus=2,
        run_s=60.0,
        time_limit_s=3600,
        mem_limit_mib=4000,
        mem_peak_mib=900,
        oom_kills=3,
        nvml=("NVML on n1: GPU 0 (05:00) asks for recovery action gpu_reset",),
    )


def test_observations_from_a_node_that_the_job_did_not_have_are_ignored() -> None:
    stray = epilog("n7", kernel=[{"text": XID, "at": None}], gpu=[{"index": 0, "recovery_action": "gpu_reset"}])
    found = join(KEY, job(81), [stray])
    assert (found.kernel, found.nvml) == ((), ())


def test_facts_of_a_wrong_type_are_ignored() -> None:
    found = join(KEY, job(81), [epilog(logs="x", kernel={"a": 1}, gpu=7, mem_peak_mib="much", oom_kills=None)])
    assert (found.logs, found.kernel, found.nvml, found.mem_peak_mib, found.oom_kills) == ((), (), (), None, None)


def test_logs_read_by_slurmwrap_are_used_only_if_no_epilog_reported_logs() -> None:
    mine = (LogTail(name="/out", text="mine"),)
    brought = epilog(logs=[{"name": "/out", "text": "theirs"}])
    assert join(KEY, job(81), [epilog()], logs=mine).logs == mine
    assert join(KEY, job(81), [brought], logs=mine).logs == (LogTail(name="/out", text="theirs"),)


def test_spaces_in_a_reason_become_underscores() -> None:
    assert join(KEY, job(81, reason="launch failed requeued held"), []).reason == "launch_failed_requeued_held"


def test_the_end_of_a_forgotten_job_comes_from_its_hooks_slurmctld_first() -> None:
    controller = hook(Context.EPILOG_SLURMCTLD, START - 29.0, "", wait_status=253, derived=256)
    found = complete_job_record(job(81, state="", end_time=None), [epilog(wait_status=768), controller])
    assert (found.state, found.exit_code, found.signal, found.derived_exit_code) == ("OUT_OF_MEMORY", 0, 125, 1)
    assert found.end_time == START - 29


def test_exit_code_0_from_a_hook_is_used_only_without_contrary_evidence() -> None:
    gone = job(81, state="", exit_code=0)
    line = "slurmstepd-n1: error: *** JOB 81 ON n1 CANCELLED AT 2026-11-20T23:55:58 DUE TO TIME LIMIT ***"
    logs = [{"name": "/out", "text": line}]
    begun = [hook(Context.PROLOG, START - 90.0), hook(Context.PROLOG, START - 90.0, "n2")]
    assert join(KEY, gone, [*begun[:1], epilog()]).exit_code == 0
    assert join(KEY, gone, [epilog(logs=logs)]).exit_code is None
    assert join(KEY, gone, [*begun, epilog()]).exit_code is None  # n2 has no Epilog
    assert join(KEY, gone, [epilog()], requeued=True).exit_code is None


def test_an_observation_belongs_to_the_run_whose_time_window_contains_it() -> None:
    first = [hook(Context.PROLOG, 1000.2), hook(Context.EPILOG, 1001.5, started_at=1000.2)]
    first += [hook(Context.EPILOG_SLURMCTLD, 1001.4, "")]
    second = [hook(Context.PROLOG, 1004.1), hook(Context.EPILOG, 2000.0, started_at=1004.1)]
    second += [hook(Context.EPILOG_SLURMCTLD, 2000.0, "")]
    both = [*first, *second]
    assert select_observations_of_run(both, uid=1001, start=1000, others=[1004]) == tuple(first)
    assert select_observations_of_run(both, uid=1001, start=1004, others=[1000]) == tuple(second)


def test_a_slow_node_clock_is_tolerated_and_an_older_job_is_ignored() -> None:
    slow, older = hook(Context.PROLOG, 996.0), hook(Context.PROLOG, 900.0)
    stranger = hook(Context.PROLOG, 1000.0, uid=1002)
    assert select_observations_of_run([older, slow, stranger], uid=1001, start=1000) == (slow,)
    assert select_observations_of_run([slow], uid=1001, start=None) == ()


def test_user_observations_are_not_hook_observations() -> None:
    assert select_observations_of_run([hook(Context.SUBMIT, 1000.0)], uid=1001, start=1000) == ()


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"mem_mib_per_node": 4000}, 4000),
        ({"mem_mib_per_node": None, "mem_mib_per_cpu": 500, "cpus": 8, "nodes": ("n1", "n2")}, 2000),
        ({"mem_mib_per_node": None}, None),
    ],
)
def test_the_memory_limit_of_one_node(changes: dict[str, object], limit: int | None) -> None:
    assert compute_memory_limit_mib(job(81, **changes)) == limit


def test_epilog_measurements_are_per_node() -> None:
    ended = replace(job(81), nodes=("n1", "n2"), gpus=5, cpus=16)
    epilogs = [epilog(mem_peak_mib=700, cpu_s=30.0, mem_source="cgroup"), epilog("n2", mem_peak_mib=600, cpu_s=90.0)]
    assert build_measurement(ended, epilogs) == Measurement(
        seconds=60.0, cpu_s=90.0, cpus_used=1.5, cpus_allocated=8, mem_peak_mib=700, mem_source="cgroup", gpus=3
    )


def gpu(*processes: dict[str, object]) -> dict[str, object]:
    return {"index": 0, "accounting": list(processes)}


def test_gpu_use_is_the_mean_of_the_longest_process_on_each_gpu() -> None:
    long = {"pid": 1, "max_mib": 20_000, "gpu_percent": 80, "memory_percent": 30, "ms": 50_000}
    short = {"pid": 2, "max_mib": 300, "gpu_percent": 1, "memory_percent": 0, "ms": 900}
    other = {"pid": 3, "max_mib": 21_000, "gpu_percent": 60, "memory_percent": None, "ms": 50_000}
    found = build_measurement(replace(job(81), gpus=2), [epilog(gpu=[gpu(short, long), gpu(other)])])
    assert found is not None
    assert (found.gpu_util, found.gpu_mem_util, found.gpu_mem_peak_mib) == (0.7, 0.3, 21_000)


def test_an_invalid_percentage_is_not_a_gpu_use() -> None:
    odd = {"pid": 1, "max_mib": 5, "gpu_percent": 4294967295, "memory_percent": -1, "ms": 5}
    found = build_measurement(job(81), [epilog(gpu=[gpu(odd), {"accounting": "no"}, 7])])
    assert found is not None
    assert (found.gpu_util, found.gpu_mem_util, found.gpu_mem_peak_mib) == (None, None, 5)


def test_counted_steps_come_from_the_epilog_that_reported_them() -> None:
    counted = {"count": 40, "per_s": 2.5, "source": "optimizer", "processes": 8, "last_at": START + 50.0}
    found = build_measurement(
        replace(job(81), start_time=START, end_time=START + 60), [epilog(steps=counted), epilog("n2")]
    )
    assert found is not None
    assert (found.steps, found.steps_per_s, found.steps_until_s) == (40, 2.5, 50.0)


@pytest.mark.parametrize("counted", [{}, {"count": 0}, {"count": "40"}, {"count": -3}, [], "x", None])
def test_an_invalid_step_count_is_ignored(counted: object) -> None:
    assert build_measurement(job(81), [epilog(steps=counted)]) is None


@pytest.mark.parametrize("odd", [math.inf, math.nan, 10**400, -math.inf])
def test_infinite_and_nan_step_rates_and_times_are_ignored(odd: float) -> None:
    counted = {"count": 40, "per_s": odd, "last_at": odd}
    found = build_measurement(replace(job(81), start_time=START, end_time=START + 60), [epilog(steps=counted)])
    assert found is not None
    assert (found.steps, found.steps_per_s, found.steps_until_s) == (40, None, None)


def test_without_measured_facts_there_is_no_measurement() -> None:
    assert build_measurement(job(81), [epilog()]) is None


# --- consecutive runs of one job -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "earlier", "expected"),
    [
        ("Error: one\ndone\n", ["Error: one\n"], LogTail(name="o", text="done\n", first_line=2)),
        ("a\nb\nc\n", ["a\n", "a\nb\n"], LogTail(name="o", text="c\n", first_line=3)),
        ("Error: one\n", ["Error: one\n"], LogTail(name="o", text="Error: one\n")),  # rewritten with the same text
        ("begun anew\n", ["Error: one\n"], LogTail(name="o", text="begun anew\n")),
        ("fine\n", ["", "\n"], LogTail(name="o", text="fine\n")),
    ],
)
def test_output_of_earlier_runs_in_the_same_file_is_cut(now, earlier, expected) -> None:
    assert cut_earlier_output(LogTail(name="o", text=now), [LogTail(name="o", text=old) for old in earlier]) == expected


def test_output_of_an_earlier_run_in_another_file_cuts_nothing() -> None:
    tail = LogTail(name="run-2.out", text="Error: one\nmore\n")
    assert cut_earlier_output(tail, [LogTail(name="run-1.out", text="Error: one\n")]) == tail


@pytest.mark.parametrize(("derived", "earlier", "kept"), [(5, [5], 0), (5, [None, 0], 5), (9, [5], 9), (0, [5], 0)])
def test_a_derived_exit_code_left_by_an_earlier_run_is_dropped(derived, earlier, kept) -> None:
    assert drop_earlier_exit_code(JobRecord(job_id=1, derived_exit_code=derived), earlier).derived_exit_code == kept
