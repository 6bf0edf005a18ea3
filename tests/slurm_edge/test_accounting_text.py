"""Output of sacct, captured from Slurm 22.05.8 (tests/data/slurm/README.md), as records."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.model.job_record import JobRecord
from slurmwrap.slurm.sacct import parse_runs, parse_steps

DATA = Path(__file__).parent.parent / "data" / "slurm"
SEP = "\x1f0123456789abcdef\x1f"
FACTS = ("address", "state", "exit_code", "derived_exit_code", "restarts", "nodes", "gpus", "cpus", "time_limit_s")


@pytest.fixture(scope="module")
def runs() -> list[JobRecord]:
    return parse_runs((DATA / "22.05" / "sacct.txt").read_text(), SEP)


def test_all_runs_are_read_with_id_and_submission(runs: list[JobRecord]) -> None:
    assert [tuple(getattr(run, fact) for fact in FACTS) for run in runs] == [
        ("1", "REQUEUED", 0, 0, 0, ("n0",), 1, 1, None),
        ("1", "COMPLETED", 0, 0, 1, ("n0",), 1, 1, None),
        ("2", "FAILED", 3, 1, 0, ("n0",), 0, 1, None),
        ("3_1", "COMPLETED", 0, 0, 0, ("n0",), 0, 1, 60),
        ("3_0", "COMPLETED", 0, 0, 0, ("n0",), 0, 1, 60),
        ("5", "CANCELLED", 0, 0, 0, (), 0, 1, None),
        ("6", "CANCELLED", 0, 0, 0, ("n1",), 0, 1, None),
        ("7", "COMPLETED", 0, 0, 0, ("n0", "n1"), 16, 64, 120),
    ]


def test_names_that_imitate_rows_stay_names(runs: list[JobRecord]) -> None:
    assert [(run.job_id, run.name) for run in runs if run.name != "wrap"] == [
        (2, "a|b\nc"),
        (7, "x|FAILED\n7|COMPLETED"),
    ]


def test_one_run_is_read_field_by_field(runs: list[JobRecord]) -> None:
    assert runs[1] == JobRecord(
        job_id=1,
        name="wrap",
        user="root",
        uid=0,
        account="root",
        partition="gpu",
        qos="normal",
        state="COMPLETED",
        reason="BeginTime",
        restarts=1,
        submit_time=1795280537,
        eligible_time=1795280658,
        start_time=1795280658,
        end_time=1795280758,
        nodes=("n0",),
        num_nodes=1,
        cpus=1,
        gpus=1,
        priority=4294901759,
        work_dir="/tmp",
    )


def test_a_run_that_never_started_has_no_start_time(runs: list[JobRecord]) -> None:
    (held,) = [run for run in runs if run.job_id == 5]
    assert (held.eligible_time, held.start_time, held.end_time) == (None, None, 1795280968)


def test_rows_that_lack_a_field_are_an_error() -> None:
    with pytest.raises(ValueError, match="sacct gave 2 fields"):
        parse_runs(f"1{SEP}1{SEP}\n", SEP)
    assert parse_runs("", SEP) == []


# Printed by sacct 22.05.8 for a job of two steps, one of an array task, and by sstat.
SACCT = """\
2|00:11.883||
2.batch|00:00.021|0|cpu=00:00:00,energy=0,fs/disk=34575,mem=12296K,pages=2,vmem=287808K
2.0|00:10.255|0|cpu=00:00:00,energy=0,fs/disk=3971716,mem=863784K,pages=0,vmem=882432K
2.1|00:01.606|0|cpu=00:00:00,energy=0,fs/disk=0,mem=2856K,pages=0,vmem=143012K
4.batch|1-00:00:01|5500|
"""


def test_the_steps_in_slurms_accounting_are_summed() -> None:
    found = parse_steps(SACCT, "sacct")
    assert (found[2].cpu_s, found[2].mem_mib, found[2].energy_j) == (pytest.approx(11.882), 844, None)
    assert (found[4].cpu_s, found[4].mem_mib, found[4].energy_j) == (86401.0, None, 5500.0)
    assert parse_steps("4.batch|00:01\n4.0\nslurm_load: 5.x|\n", "sacct") == {}
    running = parse_steps("7.batch|cpu=00:00:19,energy=0,mem=1457596K,pages=0\n7.extern|\n", "sstat")
    assert (running[7].cpu_s, running[7].mem_mib, running[7].source) == (19.0, 1424, "sstat")


def test_the_gpus_in_slurms_accounting_are_read_where_slurm_reads_them() -> None:
    """The lists of resources are those of public examples, of two sites with NVML."""
    read = "8.batch|08:25|95240|cpu=00:08:24,energy=95240,gres/gpumem=15114M,gres/gpuutil=10,mem=2207116K,pages=3473"
    unread = "9.batch|00:03.744|0|cpu=00:00:03,energy=0,gres/gpumem=0,gres/gpuutil=0,mem=327556K,pages=0,vmem=322932K"
    found = parse_steps(f"{read}\n{unread}\n", "sacct")
    assert (found[8].gpu_pct, found[8].gpu_mem_mib, found[8].mem_mib) == (10.0, 15114, 2156)
    assert (found[9].gpu_pct, found[9].gpu_mem_mib, found[9].energy_j) == (None, None, None)
