"""Any file gives a valid Load or a TraceError with printable text."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmwrap.errors import TraceError
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.read_trace import parse_trace, read_load
from slurmwrap.sim.trace.sacct_dump import FIELDS
from slurmwrap.sim.trace.trace_load import Actual, Load

CAPTURE = (
    (Path(__file__).resolve().parents[2] / "data" / "sacct" / "22.05-lab.psv").read_text(encoding="utf-8").split("\n")
)
HEADS = ["submit_s,duration_s,gpus,cpus,mem_gb,user,status,model", "|".join(FIELDS), "\x1f".join(FIELDS), CAPTURE[0]]
CELLS = st.one_of(
    st.sampled_from(
        [
            *(
                "",
                "0",
                "1",
                "-1",
                "1e999",
                "nan",
                "9" * 400,
                "1793502000",
                "2026-11-01T03:04:05",
                "Unknown",
                "10.batch",
            ),
            *(
                "10_[1-3]",
                "10+1",
                "CANCELLED by 0",
                "RUNNING",
                "cpu=8,gres/gpu=4,mem=64G,node=1",
                "gres/gpu=99999999999",
            ),
            *("None assigned", "n[1-3]", "\x1b[2J", '"', "0000-00-00T00:00:00", "9999-12-31T23:59:59", "٣", "1_0"),
        ]
    ),
    st.text(max_size=8),
)


def read_or_refuse(lines: Sequence[str]) -> Load | None:
    """The parsed Load after checks of its invariants, or None after a valid TraceError."""
    try:
        load = parse_trace(lines, "f")
    except TraceError as error:
        assert f"{error} {error.hint}".isprintable()
        assert str(error).startswith("f:")
        return None
    for jobs, actual in ((load.jobs, load.actual), (load.cpu_jobs, load.cpu_actual)):
        assert [job.number for job in jobs] == list(range(len(jobs)))
        assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)
        assert all(is_valid_job(job) for job in jobs)
        assert len(actual) in (0, len(jobs))
        assert all(is_valid_actual(one, job) for one, job in zip(actual, jobs, strict=False))
    assert load.jobs and all(job.gpus for job in load.jobs)
    assert not any(job.gpus for job in load.cpu_jobs)
    assert all(remark.isprintable() for remark in load.remarks)
    return load


def is_valid_job(job: SimJob) -> bool:
    seconds = (job.submit_s, job.work_s, job.limit_s or 1.0)
    amounts = (job.cpus, job.mem_mib, job.nodes)
    texts = (job.job, job.user, job.status, job.model, job.partition)
    return (
        all(isfinite(one) and one >= 0 for one in seconds)
        and all(one is None or one >= 1 for one in amounts)
        and all(text.isprintable() and len(text) <= 250 for text in texts)
        and job.line > 1
    )


def is_valid_actual(one: Actual, job: SimJob) -> bool:
    ended = one.end_s is None or (isfinite(one.end_s) and one.end_s >= one.start_s)
    return 0 <= one.submit_s <= job.submit_s <= one.start_s and ended


@given(st.lists(st.text(max_size=60), max_size=8))
def test_any_text_is_read_or_refused(lines: list[str]) -> None:
    read_or_refuse(lines)


@pytest.mark.parametrize("head", HEADS)
@settings(max_examples=40)
@given(rows=st.lists(st.lists(CELLS, max_size=24), max_size=5))
def test_any_rows_below_a_header_are_read_or_refused(head: str, rows: list[list[str]]) -> None:
    delimiter = "," if head.startswith("submit_s") else "\x1f" if "\x1f" in head else "|"
    read_or_refuse([head, *(delimiter.join(row) for row in rows)])


@pytest.mark.parametrize("head", HEADS)
@settings(max_examples=40)
@given(data=st.data())
def test_rows_with_the_right_number_of_fields_are_read_or_refused(head: str, data: st.DataObject) -> None:
    delimiter = "," if head.startswith("submit_s") else "\x1f" if "\x1f" in head else "|"
    width = head.count(delimiter) + 1
    rows = data.draw(st.lists(st.lists(CELLS, min_size=width, max_size=width), max_size=4))
    read_or_refuse([head, *(delimiter.join(row) for row in rows)])


@given(
    cuts=st.lists(
        st.tuples(
            st.integers(0, len(CAPTURE) - 1),
            st.integers(0, 300),
            st.integers(0, 12),
            st.one_of(CELLS, st.sampled_from(["|", "\n", "||", "|\n|", "\r"])),
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_capture_is_read_or_refused(cuts: list[tuple[int, int, int, str]]) -> None:
    lines = list(CAPTURE)
    for line, at, length, put in cuts:
        lines[line] = lines[line][:at] + put + lines[line][at + length :]
    read_or_refuse("\n".join(lines).split("\n"))


@given(content=st.binary(max_size=200), packed=st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_of_a_file_are_read_or_refused(tmp_path: Path, content: bytes, packed: bool) -> None:
    file = tmp_path / "f"
    file.write_bytes(gzip.compress(content)[: len(content) + 15] if packed else content)
    try:
        read_load(file)
    except TraceError as error:
        assert f"{error} {error.hint}".replace(str(tmp_path), "").isprintable()


NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=12)
SECONDS = st.floats(0, 1e6, allow_nan=False)
JOBS = st.builds(
    SimJob,
    number=st.just(0),
    job=st.just("0"),
    submit_s=SECONDS,
    work_s=SECONDS,
    gpus=st.integers(1, 512),
    cpus=st.none() | st.integers(1, 4096),
    mem_mib=st.none() | st.integers(1, 2000).map(lambda gb: gb * 1024),
    user=NAMES,
    status=NAMES,
    model=NAMES,
)


def write_table(jobs: Sequence[SimJob], columns: Sequence[str]) -> list[str]:
    """The lines of a CSV trace with these jobs."""

    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"' if set(text) & set('",') else text

    lines = [",".join(columns)]
    for job in jobs:
        cells = {
            "submit_s": repr(job.submit_s),
            "duration_s": repr(job.work_s),
            "gpus": str(job.gpus),
            "cpus": "" if job.cpus is None else str(job.cpus),
            "mem_gb": "" if job.mem_mib is None else str(job.mem_mib / 1024),
            "user": quoted(job.user),
            "status": quoted(job.status),
            "model": quoted(job.model),
            "note": "x",
        }
        lines.append(",".join(cells[column] for column in columns))
    return lines


@settings(max_examples=60)
@given(
    jobs=st.lists(JOBS, min_size=1, max_size=6),
    columns=st.permutations(["submit_s", "duration_s", "gpus", "cpus", "mem_gb", "user", "status", "model", "note"]),
)
def test_a_written_table_is_read_back_with_columns_in_any_order(jobs: list[SimJob], columns: list[str]) -> None:
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    expected = [replace(job, number=at, job=str(at), line=at + 2) for at, job in enumerate(ordered)]
    assert list(parse_trace(write_table(ordered, columns), "f").jobs) == expected


@settings(max_examples=20)
@given(order=st.permutations(range(CAPTURE[0].count("|") + 1)))
def test_the_order_of_columns_of_a_dump_does_not_matter(order: list[int]) -> None:
    rows = [line.split("|") for line in CAPTURE if line.count("|") == len(order) - 1]
    lines = ["|".join(row[at] for at in order) for row in rows]
    assert parse_trace(lines, "f") == parse_trace(["|".join(row) for row in rows], "f")
