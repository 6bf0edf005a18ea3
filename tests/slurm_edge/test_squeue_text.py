"""Output of squeue in three releases, with user text in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.model.job_record import JobRecord
from slurmwrap.slurm.scontrol_parser import parse_duration
from slurmwrap.slurm.squeue_parser import (
    JOB_FIELDS,
    make_exclude_format,
    make_job_format,
    parse_jobs,
    parse_mib,
    parse_time,
    resolve_output,
)

CAPTURES = Path(__file__).parents[1] / "data" / "slurm"
SEP = "\x1f0123456789abcdef\x1f"


def captured(release: str) -> dict[int, JobRecord]:
    rows, excluded = ((CAPTURES / release / name).read_text(encoding="utf-8") for name in ("jobs.txt", "excluded.txt"))
    return {job.job_id: job for job in parse_jobs(rows, excluded, SEP)}


EVIL = JobRecord(
    job_id=1,
    name="evil JobState=RUNNING\n x",
    user="games",
    uid=5,
    partition="gpu",
    state="PENDING",
    reason="BeginTime",
    requeue=True,
    submit_time=1795224553,
    eligible_time=1795228153,
    exc_nodes="n2",
    num_nodes=2,
    cpus=16,
    gpus=4,
    mem_mib_per_node=10000,
    priority=1,
    min_cpus=4,
    cpus_per_task=4,
    max_nodes=2,
    work_dir="/lab/w",
    std_out="/lab/w/1 out.txt",
    std_err="/lab/w/1 out.txt",
    comment="c JobState=FAILED Reason=x",
    command="/lab/w/j.sh",
)


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_a_name_and_comment_that_imitate_fields_and_lines_stay_text(release: str) -> None:
    assert captured(release)[1] == EVIL


def test_22_05_shows_the_arguments_with_the_command() -> None:
    from dataclasses import replace

    assert captured("22.05")[15] == replace(
        EVIL,
        job_id=15,
        priority=4294901745,
        std_out="/lab/w/15 out.txt",
        std_err="/lab/w/15 out.txt",
        command="/lab/w/j.sh a b c JobState=COMPLETED",
    )


@pytest.mark.parametrize(("release", "job_id"), [("22.05", 16), ("24.11", 2), ("26.05", 2)])
def test_the_exit_code_is_the_same_in_raw_and_split_form(release: str, job_id: int) -> None:
    job = captured(release)[job_id]
    assert (job.state, job.exit_code, job.signal, job.mem_mib_per_cpu, job.mem_mib_per_node, job.time_limit_s) == (
        *("FAILED", 3, 0, 100, None, 5400),
    )


@pytest.mark.parametrize(("release", "job_id"), [("22.05", 18), ("24.11", 4), ("26.05", 4)])
def test_a_failed_step_of_a_completed_job_is_in_the_derived_exit_code(release: str, job_id: int) -> None:
    job = captured(release)[job_id]
    assert (job.state, job.exit_code, job.derived_exit_code, job.std_out) == (
        *("COMPLETED", 0, 1, f"/lab/w/slurm-{job_id}.out"),
    )


@pytest.mark.parametrize(("release", "job_id", "array"), [("22.05", 20, 17), ("24.11", 8, 3), ("26.05", 8, 3)])
def test_an_array_task_has_its_own_address_signal_and_file(release: str, job_id: int, array: int) -> None:
    job = captured(release)[job_id]
    assert (job.address, job.exit_code, job.signal, job.std_out) == (
        *(f"{array}_0", 0, 9, f"/lab/w/slurm-{array}_0.out"),
    )


@pytest.mark.parametrize(("release", "job_id"), [("22.05", 21), ("24.11", 6), ("26.05", 6)])
def test_a_pending_array_has_one_address_and_counts_gpus_per_task(release: str, job_id: int) -> None:
    job = captured(release)[job_id]
    assert (job.address, job.array_job_id, job.array_task_id, job.gpus) == (str(job_id), job_id, None, 4)


def test_nodes_and_gpus_of_an_ended_job_are_known() -> None:
    job = captured("24.11")[5]
    assert (job.nodes, job.gpus, job.start_time, job.end_time, job.std_out) == (
        *(("n0", "n2"), 4, 1795224553, 1795224653, "/lab/w/o-5-wrap.txt"),
    )


@pytest.mark.parametrize(
    ("squeue", "waiting"),
    [
        ("2-5%2", "7_[2-5]"),
        ("1,3-9", "7_[1,3-9]"),
        ("0-8:2", "7_[0-8:2]"),
        ("4", "7_4"),
        ("0-3,5...", ""),
        ("N/A", "7"),
    ],
)
def test_pending_tasks_of_an_array_are_addressed_without_running_ones(squeue: str, waiting: str) -> None:
    (job,) = parse_jobs(row(ArrayTaskID=squeue, State="PENDING"), "", SEP)
    assert job.waiting_address == waiting


def test_a_hostile_array_expression_is_no_address() -> None:
    (job,) = parse_jobs(row(ArrayTaskID="1-2] Priority=9", State="PENDING"), "", SEP)
    assert (job.array_tasks, job.waiting_address) == ("", "")


def test_requirements_of_a_pending_job_are_read() -> None:
    said = {"PriorityLong": "4294901755", "Feature": "a100&nvme", "QOS": "high", "HetJobID": "9", "MinCpus": "8"}
    (job,) = parse_jobs(row(**said, MaxNodes="4", **{"cpus-per-task": "4"}), "", SEP)
    assert (job.priority, job.features, job.qos, job.het_job_id, job.min_cpus, job.cpus_per_task, job.max_nodes) == (
        *(4294901755, "a100&nvme", "high", 9, 8, 4, 4),
    )


def test_required_and_excluded_nodes_and_the_error_file_are_read() -> None:
    job = captured("22.05")[5]
    assert (job.req_nodes, job.exc_nodes, job.mem_mib_per_node, job.std_err) == ("n0", "n2", 2048, "/lab/w/5.err")


def test_gpus_of_the_whole_job_are_not_multiplied() -> None:
    assert captured("22.05")[3].gpus == 2


def row(**changes: str) -> str:
    plain = dict.fromkeys(JOB_FIELDS, "") | {"JobID": "7", "ArrayJobID": "7", "ArrayTaskID": "N/A", "State": "RUNNING"}
    return "".join(value + SEP for value in (plain | changes).values()) + "\n"


@pytest.mark.parametrize(
    ("name", "uid", "user"),
    [("nobody", "1034", "1034"), ("nobody", "65534", "nobody"), ("nobody", "99", "nobody"), ("ada", "1034", "ada")],
)
def test_a_user_without_a_name_is_known_by_the_uid(name: str, uid: str, user: str) -> None:
    """Slurm prints "nobody" for each of them."""
    (job,) = parse_jobs(row(UserName=name, UserID=uid), "", SEP)
    assert (job.user, job.uid) == (user, int(uid))


@given(name=st.text(max_size=30), comment=st.text(max_size=30))
def test_user_text_moves_no_field_and_adds_no_row(name: str, comment: str) -> None:
    rows = row(Name=name, Comment=comment) + row(JobID="8", Name=f"x\n9\x1f{name}\x1fRUNNING")
    jobs = parse_jobs(rows, f"7{SEP}1{SEP}n1{SEP}\n", SEP)
    assert [(job.job_id, job.state, job.exc_nodes) for job in jobs] == [(7, "RUNNING", "n1"), (8, "RUNNING", "")]
    assert jobs[0].name == name


def test_a_row_with_a_missing_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="not rows of"):
        parse_jobs(row().replace(SEP, "", 1), "", SEP)


def test_no_jobs_give_no_records() -> None:
    assert parse_jobs("", "", SEP) == ()


def test_formats_request_the_fields_that_are_parsed() -> None:
    assert make_job_format("|").startswith("JobID:|,ArrayJobID:|,")
    assert make_exclude_format("|") == "%A|%V|%x|"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1795224553", 1795224553), ("N/A", None), ("NONE", None), ("Unknown", None), ("(null)", None), ("0", None)],
)
def test_time_stamps_are_parsed(text: str, seconds: int | None) -> None:
    assert parse_time(text) == seconds


def test_local_time_of_a_slurm_that_ignores_the_time_format_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    assert parse_time("2026-11-21T03:22:33") == 1795224153
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5:00", 300), ("1:30:00", 5400), ("365-00:00:00", 31536000), ("UNLIMITED", None), ("NOT_SET", None), ("", None)],
)
def test_durations_are_parsed(text: str, seconds: int | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "mib"), [("10000M", 10000), ("2G", 2048), ("2.50T", 2621440), ("0", 0), ("100Mc", 100), ("N/A", 0)]
)
def test_memory_sizes_are_parsed(text: str, mib: int) -> None:
    assert parse_mib(text) == mib


@pytest.mark.parametrize(
    ("pattern", "path"),  # file names seen on disk with Slurm 22.05.8, except %N, which was the host's own name
    [
        ("/w/%A_%a-%j-%N-%n-%t-%s-%J-%5j-%u-%x-%b.o", "/w/10_0-13-n2-0-0-batch-13-00013-games-n m-%b.o"),
        (r"/w/%a-\%j.o", "/w/%a-%j.o"),
        ("/w/%%j.o", "/w/%j.o"),
        ("logs/%j.o", "/lab/w/logs/13.o"),
        ("/dev/null", "/dev/null"),
    ],
)
def test_an_output_pattern_is_resolved_to_the_file_on_disk(pattern: str, path: str) -> None:
    job = JobRecord(
        job_id=13, array_job_id=10, array_task_id=0, user="games", name="n m", nodes=("n2",), work_dir="/lab/w"
    )
    assert resolve_output(pattern, job) == path
