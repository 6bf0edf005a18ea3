"""Trace files: format detection, damaged files, and whether the jobs fit on the cluster."""

from __future__ import annotations

import gzip
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.errors import TraceError
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.trace.read_trace import check_fits, parse_trace, read_load

DATA = Path(__file__).resolve().parents[2] / "data"
TABLE = b"submit_s,duration_s,gpus,user\n0,60,4,ana\n"
SERVERS = make_equal_servers(2, gpus=4, cpus=16, mem_gb=64)
JOB = SimJob(number=0, job="17", submit_s=0.0, work_s=60.0, gpus=4, line=5)


def read_error(path: Path) -> tuple[str, str]:
    """Message, without the directory, and hint of the TraceError."""
    with pytest.raises(TraceError) as caught:
        read_load(path)
    return str(caught.value).replace(f"{path.parent}/", ""), caught.value.hint


@pytest.mark.parametrize(
    ("name", "jobs", "gpus"),
    [
        ("philly480_window.csv", 480, 1538),
        ("synergy_static100.csv", 100, 100),
        ("synergy_dynamic100.csv", 100, 100),
        ("tiresias_60.csv", 60, 170),
    ],
)
def test_the_shipped_traces_are_read_completely(name: str, jobs: int, gpus: int) -> None:
    load = read_load(DATA / "traces" / name)
    assert (len(load.jobs), sum(job.gpus for job in load.jobs), load.remarks) == (jobs, gpus, ())
    assert [job.number for job in load.jobs] == list(range(jobs))


@pytest.mark.parametrize("name", ["t.csv.gz", "t.csv", "t"])
def test_gzip_is_detected_by_content(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(TABLE))
    assert read_load(tmp_path / name) == parse_trace(TABLE.decode().splitlines(), name)


def test_a_sacct_dump_may_be_gzipped(tmp_path: Path) -> None:
    content = (DATA / "sacct" / "22.05-lab.psv").read_bytes()
    (tmp_path / "d.psv.gz").write_bytes(gzip.compress(content))
    assert read_load(tmp_path / "d.psv.gz") == read_load(DATA / "sacct" / "22.05-lab.psv")


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input_is_read_and_stays_open(monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    stdin = io.BytesIO(gzip.compress(TABLE) if packed else TABLE)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
    assert len(read_load(Path("-")).jobs) == 1
    assert not stdin.closed


def test_bytes_that_are_not_utf8_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(TABLE.replace(b"ana", b"an\xff"))
    assert read_load(tmp_path / "t.csv").jobs[0].user == "an\ufffd"


def test_only_a_line_feed_ends_a_line_of_a_sacct_dump() -> None:
    lines = (
        (DATA / "sacct" / "22.05-lab.psv").read_text(encoding="utf-8").replace("|late|", "|la\u2028t\x0be|").split("\n")
    )
    assert {job.model for job in parse_trace(lines, "d").jobs if "la?" in job.model} == {"la?t?e"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "t.csv: it is empty"),
        (b"\n\n  \n", "t.csv: it is empty"),
        (b"\xef\xbb\xbf", "t.csv: it is empty"),
        (gzip.compress(b"", mtime=0), "t.csv: it is empty"),
        (b'{"jobs": []}', "t.csv:1: it is JSON"),
        (b"\n[1, 2]", "t.csv:2: it is JSON"),
        (b"hello\n", "t.csv:1: neither a table of jobs nor a dump of sacct begins with 'hello'"),
        (b"\x1b[2J\n", "t.csv:1: neither a table of jobs nor a dump of sacct begins with '?[2J'"),
        (TABLE.replace(b",", b";"), "t.csv:1: there are no commas between the columns 'submit_s;duration_s;gpus;user'"),
        (TABLE.decode().encode("utf-16"), "t.csv:1: it holds NUL bytes"),
        (b"x" * 3_000_000, "t.csv:1: a line of more than 1,048,576 characters"),
        (gzip.compress(b"x" * 30_000_000), "t.csv:1: a line of more than 1,048,576 characters"),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    message, hint = read_error(tmp_path / "t.csv")
    assert message == expected
    assert hint


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(TABLE + b"1,60,4,ana\n" * 99)[:-9],
        gzip.compress(TABLE)[:10] + b"\xff" * 40,
        gzip.compress(TABLE)[:-8] + bytes(8),
        gzip.compress(TABLE) + b"\xff\xff",
    ],
    ids=["cut", "broken", "checksum", "tail"],
)
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.gz").write_bytes(content)
    assert read_error(tmp_path / "t.gz") == ("t.gz: a damaged gzip file", "copy or fetch it again")


def test_an_unreadable_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    assert read_error(tmp_path / "none.csv")[0] == "cannot read none.csv: No such file or directory"
    with pytest.raises(TraceError, match=f"^cannot read {tmp_path}: Is a directory$"):
        read_load(tmp_path)


def test_a_path_with_a_nul_byte_is_refused() -> None:
    with pytest.raises(TraceError, match=r"^cannot read a\?b: no path holds a NUL$"):
        read_load(Path("a\0b"))


def test_control_characters_in_a_file_name_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "\x1b[2J.csv").write_bytes(b"")
    assert read_error(tmp_path / "\x1b[2J.csv")[0] == "?[2J.csv: it is empty"


# --- check_fits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        replace(JOB, gpus=8),
        replace(JOB, gpus=8, nodes=1),
        replace(JOB, gpus=8, nodes=2, cpus=32, mem_mib=131072),
        replace(JOB, gpus=1, cpus=16, mem_mib=65536),
    ],
)
def test_a_job_that_fits_on_the_idle_cluster_is_accepted(job: SimJob) -> None:
    assert check_fits([job], SERVERS, name="t") is None


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (replace(JOB, gpus=9), "asks for 9 GPUs, and the whole cluster has 8"),
        (replace(JOB, nodes=3), "asks for 3 nodes, and the whole cluster has 2"),
        (replace(JOB, cpus=33), "asks for 33 CPUs, and the whole cluster has 32"),
        (replace(JOB, mem_mib=131073), "asks for 131073 MiB of memory, and the whole cluster has 131072"),
        (replace(JOB, gpus=1, cpus=17), "asks for 17 CPUs with 1 GPUs, and one server has at most 16"),
        (replace(JOB, nodes=1, cpus=17), "asks for 17 CPUs with 4 GPUs, and one server has at most 16"),
        (
            replace(JOB, nodes=1, mem_mib=65537),
            "asks for 65537 MiB of memory with 4 GPUs, and one server has at most 65536",
        ),
    ],
)
def test_a_job_that_can_never_start_is_refused_with_both_numbers(job: SimJob, why: str) -> None:
    with pytest.raises(TraceError) as caught:
        check_fits([JOB, job], SERVERS, name="t.csv")
    assert str(caught.value) == f"t.csv:5: job 17 {why}"
    assert caught.value.hint.startswith("give a cluster that holds it (--servers, --gpus, --cpus, --mem-gb)")


def test_of_several_such_jobs_the_first_is_named_and_the_rest_are_counted() -> None:
    jobs = [JOB, replace(JOB, job="18", gpus=16, line=9), replace(JOB, gpus=32), replace(JOB, gpus=64)]
    with pytest.raises(
        TraceError, match=r"^t:9: job 18 asks for 16 GPUs, and the whole cluster has 8; the same applies to 2 more$"
    ):
        check_fits(jobs, SERVERS, name="t")
