"""The same jobs on three releases of Slurm (tests/data/slurm/capture.py) are read into the same records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.lab.render_slurm_conf import parse_release
from slurmwrap.model.cluster import Node, Partition
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.limits import Association, Limits, Qos
from slurmwrap.model.topology import Switch, Topology
from slurmwrap.node_hooks import epilog_slurmctld
from slurmwrap.node_hooks import hook_environment as hook_job
from slurmwrap.sbatch.option_table import SBATCH, Release
from slurmwrap.sim.trace.read_trace import read_load
from slurmwrap.slurm.assoc_mgr_parser import parse_limits
from slurmwrap.slurm.scontrol_parser import get_slurm_release, parse_config, parse_nodes, parse_partitions
from slurmwrap.slurm.snapshot import parse_topology
from slurmwrap.slurm.squeue_parser import parse_jobs

DATA = Path(__file__).parents[1] / "data" / "slurm"
RELEASES = sorted(path.parent.parent.name for path in DATA.glob("*/lab/version.txt"))
SEP = "\x1f0123456789abcdef\x1f"
every_release = pytest.mark.parametrize("release", RELEASES)


def captured(release: str, name: str) -> str:
    return (DATA / release / "lab" / name).read_text(encoding="utf-8")


def number(release: str) -> Release:
    major, minor = release.split(".")
    return int(major), int(minor)


def jobs(release: str) -> list[JobRecord]:
    return list(parse_jobs(captured(release, "jobs.txt"), captured(release, "excluded.txt"), SEP))


def job(release: str, name: str) -> JobRecord:
    return next(job for job in jobs(release) if job.name == name)


def test_captures_of_the_three_releases_in_use_exist() -> None:
    assert RELEASES == ["22.05", "24.11", "26.05"]


@every_release
def test_the_release_is_read_from_programs_and_configuration(release: str) -> None:
    assert parse_release(captured(release, "version.txt")) == number(release)
    assert get_slurm_release(parse_config(captured(release, "config.txt"))) == number(release)


# --- sbatch --------------------------------------------------------------------------------------------------------


@every_release
def test_options_shown_in_help_and_usage_are_in_the_option_table(release: str) -> None:
    text = captured(release, "sbatch_help.txt") + captured(release, "sbatch_usage.txt")
    shown = set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", text))
    assert len(shown) > 70
    unknown = shown - {option.name for option in SBATCH if option.known_to(number(release))}
    assert unknown == ({"power"} if number(release) >= (24, 11) else set())  # removed in 24.11 except from the help


# --- squeue --------------------------------------------------------------------------------------------------------

ENDINGS = [  # name, state, exit code, signal, derived exit code
    ("whole", "COMPLETED", 0, 0, 0),
    ("three", "FAILED", 3, 0, 0),
    ("hidden", "COMPLETED", 0, 0, 1),
    ("segv", "FAILED", 0, 11, 0),
    ("limit", "TIMEOUT", 0, 15, 0),
    ("oom", "OUT_OF_MEMORY", 0, 125, 0),
    ("gone", "CANCELLED", 0, 15, 0),
    ("unstarted", "CANCELLED", 0, 0, 0),
    ("again", "COMPLETED", 0, 0, 0),
    ("running", "RUNNING", 0, 0, 0),
    ("held", "PENDING", 0, 0, 0),
]


@every_release
def test_job_endings_are_read_alike(release: str) -> None:
    found = [job(release, name) for name, *_ in ENDINGS]
    assert [(one.name, one.state, one.exit_code, one.signal, one.derived_exit_code) for one in found] == ENDINGS


@every_release
def test_a_lost_node_ends_its_job_with_signal_1_since_24_11(release: str) -> None:
    lost, moved = job(release, "lost"), job(release, "moved")
    assert (lost.state, lost.reason, lost.requeue, lost.exit_code) == ("NODE_FAIL", "NodeDown", False, 0)
    assert lost.signal == (0 if number(release) < (24, 11) else 1)
    assert (moved.state, moved.restarts, moved.exit_code, moved.signal) == ("COMPLETED", 1, 0, 0)


SHAPES = [  # name, nodes, CPUs, GPUs, MiB per node, MiB per CPU, CPUs per task
    ("whole", 2, 8, 4, 4000, None, 4),
    ("<b>&ü", 1, 4, 2, 3000, None, 1),
    ("percpu", 1, 4, 4, None, 500, 1),
    ("plain", 1, 2, 0, 100, None, 1),
    ("running", 1, 4, 4, 8000, None, 4),
]


@every_release
def test_resources_of_a_job_are_read_alike(release: str) -> None:
    found = [job(release, name) for name, *_ in SHAPES]
    if release == "22.05":  # squeue 22.05 does not show --mem-per-gpu
        assert found[1].mem_mib_per_node is None
        found[1] = replace(found[1], mem_mib_per_node=3000)
    assert [
        (one.name, one.num_nodes, one.cpus, one.gpus, one.mem_mib_per_node, one.mem_mib_per_cpu, one.cpus_per_task)
        for one in found
    ] == SHAPES


@every_release
def test_user_text_that_imitates_fields_and_lines_stays_text(release: str) -> None:
    evil = job(release, "evil JobState=RUNNING\n x|y")
    assert (evil.state, evil.comment, evil.exc_nodes) == ("COMPLETED", "c JobState=FAILED Reason=x", "n2")


@every_release
def test_array_tasks_and_het_components_have_their_own_addresses_and_files(release: str) -> None:
    tasks = sorted((job for job in jobs(release) if job.name == "array"), key=lambda job: job.array_task_id or 0)
    array = tasks[0].array_job_id
    assert [(t.address, t.state, t.std_out) for t in tasks] == [
        (f"{array}_{i}", "FAILED" if i == 3 else "COMPLETED", f"/lab/home/slurm-{array}_{i}.out") for i in range(6)
    ]
    first, second = (job for job in jobs(release) if job.name == "het")
    assert [(j.het_job_id, j.num_nodes, j.gpus, j.std_out) for j in (first, second)] == [
        (first.job_id, 1, 1, f"/lab/home/h-{first.job_id}.out"),
        (first.job_id, 2, 0, f"/lab/home/h-{second.job_id}.out"),
    ]


@every_release
def test_pending_jobs_have_reason_and_request(release: str) -> None:
    held, later, waits = (job(release, name) for name in ("held", "later", "waits"))
    assert (held.reason, held.priority, later.reason, later.time_limit_s) == ("JobHeldUser", 0, "BeginTime", 7200)
    assert (waits.address, waits.array_tasks, waits.req_nodes, waits.gpus) == (
        *(str(waits.job_id), "0-3", "n[0-1]", 16),
    )


# --- scontrol ------------------------------------------------------------------------------------------------------

NODE = Node(
    name="", state="IDLE", cpus=32, mem_mib=64_000, gpus=8, gpu_type="a100", partitions=("gpu", "prerun"), sockets=2,
    address="127.0.0.1",
)  # fmt: skip
HELD: Mapping[str, object] = {"cpus_alloc": 4, "mem_alloc_mib": 8000, "gpus_used": 4, "gpus_used_at": (0, 1, 2, 3)}


@every_release
def test_nodes_and_their_allocations_are_read_alike(release: str) -> None:
    busy = replace(NODE, name="n0", state="MIXED", **HELD)  # type: ignore[arg-type]
    found = parse_nodes(captured(release, "nodes.txt"))
    assert tuple(replace(node, flags=frozenset()) for node in found) == (
        busy, *(replace(NODE, name=f"n{i}") for i in (1, 2, 3)),
    )  # fmt: skip
    # PLANNED: set for job "waits" if the scheduler has planned it
    assert {flag for node in found for flag in node.flags} <= {"PLANNED"}


@every_release
def test_partitions_and_switches_are_read_alike(release: str) -> None:
    assert parse_partitions(captured(release, "partitions.txt")) == (
        Partition(name="gpu", default=True, total_nodes=4),
        Partition(name="prerun", max_time_s=1200, total_nodes=4, priority_tier=10),
    )
    assert parse_topology(captured(release, "topology.txt")) == Topology(
        switches=(
            Switch(name="ib0", level=0, nodes=("n0", "n1")),
            Switch(name="ib1", level=0, nodes=("n2", "n3")),
            Switch(name="core", level=1, nodes=("n0", "n1", "n2", "n3"), children=("ib0", "ib1")),
        ),
        source="tree",
    )


@every_release
@pytest.mark.parametrize("name", ["assoc_mgr.txt", "assoc_mgr_root.txt"])
def test_limits_and_what_is_left_of_them_are_read_alike(release: str, name: str) -> None:
    quotas = parse_limits(captured(release, name), "alice", 1003)
    left = Limits(cpus_left=120 - 4, mem_mib_left=921_600 - 8000)
    associations = {(a.account, a.partition): replace(a, default=False) for a in quotas.associations}
    assert associations == {
        ("lab", ""): Association(account="lab", limits=left),
        ("ml", ""): Association(account="ml", limits=replace(left, cpus_per_job=24)),
        ("ml", "prerun"): Association(
            account="ml", partition="prerun", limits=replace(left, cpus_per_job=4, mem_mib_per_job=16_384)
        ),
    }
    assert next(a for a in quotas.associations if (a.account, a.partition) == ("ml", "")).default
    big = Limits(cpus_per_job=16, mem_mib_per_job=204_800, cpus_per_node=12, cpus_left=32, mem_mib_left=300_000)
    assert {qos.name: qos for qos in quotas.qos if qos.name != "normal"} == {
        "big": Qos(name="big", limits=big, accounts={"ml": Limits(cpus_left=64)}, used=True),
        "part": Qos(name="part", limits=Limits(cpus_per_job=20)),  # never used: Slurm shows no limit per user
    }


# --- hooks ---------------------------------------------------------------------------------------------------------


def environment(release: str, hook: str) -> dict[bytes, bytes]:
    """The environment that Slurm gave to that hook; only user text may contain line breaks."""
    path = DATA / release / "lab" / "hooks" / f"{hook}.env"
    return dict(line.split(b"=", 1) for line in path.read_bytes().splitlines() if b"=" in line)


@every_release
@pytest.mark.parametrize("context", ["prolog_slurmd", "epilog_slurmd"])
def test_node_hooks_get_the_facts_of_the_job_from_every_release(release: str, context: str) -> None:
    environ = environment(release, f"whole.0.{context}")
    found = hook_job.common(environ)
    assert found == {"restarts": 0, "uid": 1003, "nodes": "n[0-1]", "gpus": "0,1"}
    assert (hook_job.job_id(environ), hook_job.gpu_indices(environ)) == (1, [0, 1])
    assert bool(hook_job.sluid(environ)) == (number(release) >= (26, 5))
    assert {b"SLURM_JOB_WORK_DIR", b"SLURM_JOB_GID", b"SLURM_JOB_USER"} <= set(environ)
    # without --output only 26.05 gives hooks the default pattern; for others the reconciler asks squeue
    assert environ.get(b"SLURM_JOB_STDOUT") == (b"slurm-%j.out" if number(release) >= (26, 5) else None)


ENDED = {  # name and run -> exit, wait status, derived
    "whole.0": ("0:0", 0, 0),
    "three.0": ("3:0", 768, 0),
    "hidden.0": ("0:0", 0, 256),
    "task.0": ("1:0", 256, 0),
    "gone.0": ("0:0", 0, 0),
    "limit.0": ("0:0", 0, 0),
    "again.1": ("0:0", 0, 0),
}


@every_release
def test_epilogslurmctld_gets_the_ending_of_a_run(release: str) -> None:
    facts = {name: epilog_slurmctld.facts(environment(release, f"{name}.epilog_slurmctld")) for name in ENDED}
    assert {name: (one["exit"], one["wait_status"], one["derived"]) for name, one in facts.items()} == ENDED
    for name, found in facts.items():
        assert (found["uid"], found["user"], found["account"], found["partition"]) == (1003, "alice", "ml", "gpu")
        assert (found["restarts"], found["work_dir"]) == (int(name[-1]), "/lab/home")
        assert found["array_task_id"] == (3 if name == "task.0" else None)


@every_release
def test_epilogslurmctld_sees_a_lost_node_since_24_11(release: str) -> None:
    found = epilog_slurmctld.facts(environment(release, "lost.0.epilog_slurmctld"))
    assert (found["exit"], found["wait_status"]) == (("0:0", 0) if number(release) < (24, 11) else ("0:1", 1))


# --- sacct ---------------------------------------------------------------------------------------------------------


@every_release
@pytest.mark.parametrize("name", ["sacct.psv", "sacct_runs.txt"])
def test_a_sacct_dump_has_every_run_of_every_job(release: str, name: str) -> None:
    load = read_load(DATA / release / "lab" / name)
    runs = {
        text: [job.status for job in load.jobs if job.model == text]
        for text in ("whole", "three", "limit", "oom", "again", "moved", "lost", "running")
    }
    assert runs == {
        "whole": ["COMPLETED"], "three": ["FAILED"], "limit": ["TIMEOUT"], "oom": ["OUT_OF_MEMORY"],
        "again": ["REQUEUED", "COMPLETED"], "moved": ["NODE_FAIL", "COMPLETED"], "lost": ["NODE_FAIL"],
        "running": ["RUNNING"],
    }  # fmt: skip
    assert sorted((job.job.partition("_")[2], job.status) for job in load.jobs if job.model == "array") == [
        (str(i), "FAILED" if i == 3 else "COMPLETED") for i in range(6)
    ]
    assert [(job.gpus, job.cpus, job.mem_mib) for job in load.jobs if job.model == "excl"] == [(8, 32, 64_000)]
    assert len(load.cpu_jobs) == 2  # "plain", and the second component of "het"


@every_release
def test_local_times_and_trailing_delimiters_are_read_alike(release: str) -> None:
    load = read_load(DATA / release / "lab" / "sacct_padded.psv")
    assert [job.status for job in load.jobs if job.model == "again"] == ["COMPLETED"]  # without -D the last run alone
    assert [(job.gpus, job.cpus) for job in load.jobs if job.model == "whole"] == [(4, 8)]
