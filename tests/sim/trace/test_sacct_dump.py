"""sacct dumps: which rows become jobs, are left out, or are refused. The captures are in tests/data/sacct."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slurmwrap.errors import TraceError
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.read_trace import parse_trace, read_load
from slurmwrap.sim.trace.sacct_dump import COMMAND, FIELDS
from slurmwrap.sim.trace.sacct_rows import READ, Head, SacctReader, SacctRow
from slurmwrap.sim.trace.trace_load import Actual, Load

DATA = Path(__file__).resolve().parents[2] / "data" / "sacct"
TRES = "billing=8,cpu=8,gres/gpu=4,mem=64G,node=1"
ONE: Mapping[str, str] = {
    "JobID": "10",
    "User": "ana",
    "Partition": "gpu",
    "State": "COMPLETED",
    "Submit": "1793502000",
    "Eligible": "1793502000",
    "Start": "1793502060",
    "End": "1793502660",
    "ElapsedRaw": "600",
    "TimelimitRaw": "60",
    "ReqTRES": TRES,
    "AllocTRES": TRES,
    "NNodes": "1",
    "NodeList": "n1",
    "ExitCode": "0:0",
    "JobName": "train",
}
ITS_JOB = SimJob(
    number=0,
    job="10",
    submit_s=0.0,
    work_s=600.0,
    gpus=4,
    nodes=1,
    cpus=8,
    mem_mib=65536,
    limit_s=3600.0,
    user="ana",
    status="COMPLETED",
    model="train",
    partition="gpu",
    line=2,
)
ITS_ACTUAL = Actual(submit_s=0.0, start_s=60.0, end_s=660.0, nodes=1, node_list="n1", exit_code="0:0")


def make_dump(
    *rows: Mapping[str, str], fields: Sequence[str] = FIELDS, delimiter: str = "|", end: str = ""
) -> list[str]:
    """Lines of a dump with these rows; fields that a row does not set are those of ONE."""
    lines = [delimiter.join({**ONE, **row}[field] for field in fields) + end for row in rows]
    return [delimiter.join(fields) + end, *"\n".join(lines).split("\n")]


def parse_one_job(row: Mapping[str, str], **options: Sequence[str]) -> SimJob:
    """The job of a dump with one row."""
    fields = tuple(dict.fromkeys((*FIELDS, *row)))
    return parse_trace(make_dump(row, fields=options.get("fields", fields)), "d").jobs[0]


# --- captures ------------------------------------------------------------------------------------------------------


def test_a_captured_dump_of_22_05_is_read_completely() -> None:
    load = read_load(DATA / "22.05-lab.psv")
    assert (len(load.jobs), len(load.cpu_jobs), load.epoch) == (38, 2, 1795268327.0)
    assert load.remarks == (
        "3 jobs never started and are left out",
        "2 jobs held no GPU and are kept apart",
        "1 job was still running and is cut where the dump ends",
        "6 jobs became eligible after submission and are counted from then",
        "2 jobs have the delimiter or a line break in a name: fixed",
    )
    assert [(job.job, job.line) for job in load.jobs if "?" in job.model or "|" in job.model] == [
        ("16", 34),
        ("17", 36),
    ]


def test_an_exclusive_job_of_22_05_has_all_resources_of_its_nodes() -> None:
    excl = next(job for job in read_load(DATA / "22.05-lab.psv").jobs if job.model == "excl")
    assert (excl.gpus, excl.cpus, excl.mem_mib) == (8, 32, 64000)


def test_a_requeued_job_of_22_05_gives_one_job_per_run() -> None:
    load = read_load(DATA / "22.05-lab.psv")
    runs = [
        (job.status, one.submit_s, job.submit_s, job.work_s)
        for job, one in zip(load.jobs, load.actual, strict=True)
        if job.job == "20"
    ]
    assert runs == [("REQUEUED", 1.0, 1.0, 23.0), ("COMPLETED", 77.0, 78.0, 20.0)]


def test_a_dump_of_24_11_with_local_times_and_a_trailing_delimiter_is_read() -> None:
    load = read_load(DATA / "24.11-made.psv")
    assert [(job.job, job.submit_s, job.work_s, job.gpus, job.limit_s) for job in load.jobs] == [
        ("501", 0.0, 3600.0, 16, 28800.0),
        ("502", 10.0, 1800.0, 1, 1800.0),
        ("504_0", 30.0, 60.0, 1, None),
        ("506", 3600.0, 0.0, 4, None),
    ]
    assert load.remarks == (
        "2 jobs never started and are left out",
        "1 job held no GPU and is kept apart",
        "1 job became eligible after submission and is counted from then",
        "2 jobs have the delimiter or a line break in a name: fixed",
    )


def test_a_dump_of_26_05_with_new_columns_and_another_delimiter_is_read() -> None:
    load = read_load(DATA / "26.05-made.psv")
    assert [(job.job, job.status, job.submit_s, job.model) for job in load.jobs] == [
        ("9001", "NODE_FAIL", 0.0, "train: lr=1e-3|wd=0"),
        ("9002", "RUNNING", 100.0, "night?run"),
        ("9003+0", "COMPLETED", 200.0, "het"),
        ("9004", "PREEMPTED", 240.0, "early"),
        ("9001", "COMPLETED", 1051.0, "train: lr=1e-3|wd=0"),
    ]
    assert [(job.job, job.gpus, job.cpus, job.nodes) for job in load.cpu_jobs] == [("9003+1", 0, 8, 2)]


# --- one row -------------------------------------------------------------------------------------------------------


def test_a_row_gives_a_job_and_its_actual_times() -> None:
    assert parse_trace(make_dump({}), "d") == Load(jobs=(ITS_JOB,), actual=(ITS_ACTUAL,), epoch=1793502000.0)


@pytest.mark.parametrize(
    "lines",
    [
        make_dump({}, fields=tuple(reversed(FIELDS))),
        make_dump({}, end="|"),
        make_dump({}, delimiter="\t"),
        make_dump({}, delimiter="\x1f"),
        make_dump({}, delimiter="@@"),
        [line + "\r\n" for line in make_dump({})],
        [*make_dump({}), "", ""],
        [line.lower() if at == 0 else line for at, line in enumerate(make_dump({}))],
    ],
    ids=["reversed", "parsable", "tab", "unit-separator", "two-characters", "crlf", "blank-end", "lower-case"],
)
def test_order_delimiter_and_spelling_of_columns_do_not_matter(lines: list[str]) -> None:
    assert parse_trace(lines, "d").jobs == (ITS_JOB,)


def test_elapsed_and_timelimit_may_replace_the_raw_columns() -> None:
    fields = [field.removesuffix("Raw") if field in ("ElapsedRaw", "TimelimitRaw") else field for field in FIELDS]
    assert parse_one_job({"Elapsed": "00:10:00", "Timelimit": "01:00:00"}, fields=fields) == ITS_JOB


def test_the_required_columns_are_sufficient() -> None:
    fields = ("JobIDRaw", "Submit", "Start", "End", "AllocTRES")
    expected = SimJob(number=0, job="10", submit_s=0.0, work_s=600.0, gpus=4, nodes=1, cpus=8, mem_mib=65536, line=2)
    assert parse_one_job({"JobIDRaw": "10"}, fields=fields) == expected


def test_resources_of_slurm_before_21_08_are_read() -> None:
    fields = ("JobID", "Submit", "Start", "End", "AllocGRES", "NNodes", "AllocCPUS", "ReqMem")
    per_cpu = parse_one_job(
        {"AllocGRES": "gpu:v100:2", "NNodes": "2", "AllocCPUS": "16", "ReqMem": "4000Mc"}, fields=fields
    )
    per_node = parse_one_job(
        {"AllocGRES": "gpu:v100:2", "NNodes": "2", "AllocCPUS": "16", "ReqMem": "8Gn"}, fields=fields
    )
    one_node = parse_one_job(
        {"AllocGRES": "gpu:v100:2", "NNodes": "", "AllocCPUS": "16", "ReqMem": "8Gn"}, fields=fields
    )
    assert (one_node.gpus, one_node.mem_mib) == (2, 8192)
    assert (per_cpu.gpus, per_cpu.nodes, per_cpu.cpus, per_cpu.mem_mib) == (4, 2, 16, 64000)
    assert (per_node.gpus, per_node.nodes, per_node.cpus, per_node.mem_mib) == (4, 2, 16, 16384)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"State": "CANCELLED by 1000"}, ("CANCELLED", 600.0, 0.0)),
        ({"State": "OUT_OF_MEMORY"}, ("OUT_OF_MEMORY", 600.0, 0.0)),
        ({"Eligible": "1793502050"}, ("COMPLETED", 600.0, 50.0)),
        ({"Eligible": "1793509999"}, ("COMPLETED", 600.0, 60.0)),
        ({"Eligible": "Unknown"}, ("COMPLETED", 600.0, 0.0)),
        ({"ElapsedRaw": ""}, ("COMPLETED", 600.0, 0.0)),
        ({"ElapsedRaw": "480"}, ("COMPLETED", 480.0, 0.0)),
        ({"ElapsedRaw": "0", "End": "1793502060"}, ("COMPLETED", 0.0, 0.0)),
        ({"ElapsedRaw": "", "End": "1793502000"}, ("COMPLETED", 0.0, 0.0)),
        ({"State": "RUNNING", "End": "Unknown"}, ("RUNNING", 600.0, 0.0)),
    ],
    ids=[
        "by-whom",
        "state",
        "eligible-later",
        "eligible-after-start",
        "never-eligible",
        "no-elapsed",
        "suspended-meanwhile",
        "0-seconds",
        "ends-before-it-starts",
        "running",
    ],
)
def test_state_run_time_and_submission_of_a_row(row: Mapping[str, str], expected: tuple[str, float, float]) -> None:
    job = parse_one_job(row)
    assert (job.status, job.work_s, job.submit_s) == expected


def test_a_running_job_without_elapsed_time_ends_at_the_newest_time() -> None:
    running = {"JobID": "11", "State": "RUNNING", "End": "Unknown", "ElapsedRaw": ""}
    load = parse_trace(make_dump(running, {"Start": "1793502100", "End": "1793505000"}), "d")
    assert [(job.job, job.work_s) for job in load.jobs] == [("11", 2940.0), ("10", 600.0)]
    assert load.actual[0].end_s is None


def test_a_run_across_the_end_of_daylight_saving_time_keeps_its_length() -> None:
    local = {"Submit": "2026-10-25T02:40:00", "Eligible": "2026-10-25T02:40:00", "Start": "2026-10-25T02:50:00"}
    load = parse_trace(make_dump({**local, "End": "2026-10-25T02:10:00", "ElapsedRaw": "1200"}), "d")
    assert (load.jobs[0].work_s, load.actual[0].start_s, load.actual[0].end_s) == (1200.0, 600.0, 1800.0)


def test_a_submission_after_the_start_is_set_to_the_start() -> None:
    load = parse_trace(make_dump({"Submit": "1793502090", "Eligible": "1793502090"}), "d")
    assert (load.jobs[0].submit_s, load.actual[0].submit_s, load.actual[0].start_s) == (0.0, 0.0, 0.0)
    assert load.remarks == ("1 job started before it was submitted, by the dump: taken as submitted then",)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"ReqTRES": "cpu=2,gres/gpu=4,mem=8G,node=1"}, (4, 1, 2, 8192)),
        ({"ReqTRES": "cpu=2,gres/gpu=1,mem=8G,node=1"}, (4, 1, 8, 65536)),
        ({"ReqTRES": "cpu=8,gres/gpu=4,mem=0,node=1"}, (4, 1, 8, 65536)),
        ({"ReqTRES": ""}, (4, 1, 8, 65536)),
        ({"AllocTRES": "cpu=8,gres/gpu:a100=4,mem=64G,node=1"}, (4, 1, 8, 65536)),
        ({"AllocTRES": "cpu=8,mem=64G,node=1"}, (4, 1, 8, 65536)),
        ({"AllocTRES": "cpu=8,gres/gpu=4,mem=64G,node=3", "NNodes": "3"}, (4, None, 8, 65536)),
        ({"ReqTRES": "cpu=8,gres/gpu=4,mem=64G,node=2", "AllocTRES": "cpu=8,gres/gpu=4,node=2"}, (4, 2, 8, 65536)),
        ({"AllocTRES": "cpu=8,gres/gpu=4,gres/gpumem=80G,mem=64G,node=1"}, (4, 1, 8, 65536)),
    ],
    ids=[
        "cpus-as-requested",
        "exclusive",
        "all-memory",
        "nothing-requested",
        "typed",
        "gpus-only-requested",
        "spread-without-being-asked",
        "nodes-requested",
        "gpu-memory",
    ],
)
def test_resources_of_a_job(row: Mapping[str, str], expected: tuple[int, int | None, int, int]) -> None:
    job = parse_one_job(row)
    assert (job.gpus, job.nodes, job.cpus, job.mem_mib) == expected


def test_a_long_node_list_is_not_cut() -> None:
    nodes = f"n[{','.join(str(number) for number in range(1, 999, 2))}]"
    assert parse_trace(make_dump({"NodeList": nodes}), "d").actual[0].node_list == nodes


class Places(dict[str, int]):
    """The positions of columns; records the names of requested columns."""

    def __init__(self, places: Mapping[str, int]) -> None:
        super().__init__(places)
        self.requested: set[str] = set()

    def get(self, column: str, default: int | None = None) -> int | None:  # type: ignore[override]
        self.requested.add(column)
        return super().get(column, default)


def test_the_reader_uses_only_columns_that_the_repair_of_rows_considers() -> None:
    places = Places({"submit": 0, "start": 0})
    head = Head(line=1, text="", delimiter="|", places=places, width=1, closed=False)
    assert SacctReader(head).run(SacctRow(line=2, fields=["1793502000"])) is not None
    assert places.requested == READ | {"jobname"}


@pytest.mark.parametrize("limit", ["UNLIMITED", "Partition_Limit", ""])
def test_a_job_without_its_own_time_limit_has_none(limit: str) -> None:
    assert parse_one_job({"TimelimitRaw": limit}).limit_s is None


# --- several rows --------------------------------------------------------------------------------------------------


def test_jobs_are_numbered_by_eligible_time() -> None:
    late = {"JobID": "9", "Eligible": "1793502055"}
    load = parse_trace(make_dump(late, {}), "d")
    assert [(job.number, job.job, job.line) for job in load.jobs] == [(0, "10", 3), (1, "9", 2)]


@pytest.mark.parametrize(
    "row",
    [
        {"JobID": "11", "State": "CANCELLED by 0", "Start": "Unknown", "ElapsedRaw": "0"},
        {"JobID": "11", "State": "PENDING", "Start": "None", "End": "Unknown", "ElapsedRaw": "0"},
        {"JobID": "11_[5-9%2]", "State": "PENDING", "Start": "Unknown", "End": "Unknown", "ElapsedRaw": "0"},
        {"JobID": "11", "State": "CANCELLED", "End": "1793502060", "ElapsedRaw": "0", "NodeList": "None assigned"},
    ],
    ids=["cancelled", "pending", "pending-array", "cancelled-as-old-slurms-print-it"],
)
def test_jobs_that_never_started_are_left_out_and_counted(row: Mapping[str, str]) -> None:
    load = parse_trace(make_dump(row, {}), "d")
    assert ([job.job for job in load.jobs], load.remarks) == (["10"], ("1 job never started and is left out",))


def test_steps_are_not_jobs() -> None:
    steps = [{"JobID": f"10.{step}", "JobName": step} for step in ("batch", "extern", "0", "interactive")]
    assert parse_trace(make_dump({}, *steps), "d").jobs == (ITS_JOB,)


def test_a_run_in_two_concatenated_dumps_counts_once_with_its_end() -> None:
    running = {"State": "RUNNING", "End": "Unknown", "ElapsedRaw": "30"}
    load = parse_trace([*make_dump(running), *make_dump({})], "d")
    assert [(job.status, job.work_s, job.line) for job in load.jobs] == [("COMPLETED", 600.0, 4)]
    assert load.remarks == ("1 job is in the dump twice and counted once",)


def test_each_run_and_each_size_of_a_job_is_one_job() -> None:
    second = {"Submit": "1793502700", "Eligible": "1793502700", "Start": "1793502800", "End": "1793502900"}
    resized = {"Start": "1793502300"}
    load = parse_trace(make_dump({}, second, resized), "d")
    assert [(job.job, job.line) for job in load.jobs] == [("10", 2), ("10", 4), ("10", 3)]


def test_the_same_job_id_on_two_clusters_gives_two_jobs() -> None:
    load = parse_trace(make_dump({"Cluster": "a"}, {"Cluster": "b"}, fields=(*FIELDS, "Cluster")), "d")
    assert len(load.jobs) == 2


# --- names that break lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a|b", "a||b|", "|", "two\nlines", "two\n\nlines|of\nit", "tail\n"])
def test_a_name_with_the_delimiter_or_a_line_break_is_repaired(name: str) -> None:
    load = parse_trace(make_dump({"JobName": name}, {"JobID": "11"}, fields=("JobID", "JobName", *FIELDS[1:-1])), "d")
    assert [job.model for job in load.jobs] == [name.strip().replace("\n", "?"), "train"]
    assert load.remarks == ("1 job has the delimiter or a line break in a name: fixed",)


@pytest.mark.parametrize("name", ["a|b", "a||b|", "|", "two\nlines", "two\nlines|of\nit"])
@pytest.mark.parametrize("end", ["", "|"], ids=["", "parsable"])
def test_a_name_in_the_last_column_is_repaired(name: str, end: str) -> None:
    load = parse_trace(make_dump({"JobName": name}, {"JobID": "11"}, end=end), "d")
    assert [job.model for job in load.jobs] == [name.strip().replace("\n", "?"), "train"]
    assert load.remarks == ("1 job has the delimiter or a line break in a name: fixed",)


def test_extra_fields_are_assigned_to_the_first_possible_text_column() -> None:
    lines = make_dump({"JobName": "a", "Comment": "b|c", "WorkDir": "/home"}, fields=(*FIELDS, "Comment", "WorkDir"))
    assert [(job.job, job.model) for job in parse_trace(lines, "d").jobs] == [("10", "a|b")]


@pytest.mark.parametrize("text", ["sbatch --wrap 'a | b'", "sbatch --wrap 'a\nb|c\nd'", "sbatch -C 'h100|a100' x.sh"])
def test_a_dump_of_all_columns_is_repaired_if_only_unused_columns_are_ambiguous(text: str) -> None:
    free = {"AdminComment": "", "Constraints": "", "SubmitLine": text, "Suspended": "00:00:00", "SystemComment": "s"}
    fields = tuple(sorted((*FIELDS, *free)))
    load = parse_trace(make_dump(free, {**free, "JobID": "11", "SubmitLine": "sbatch x.sh"}, fields=fields), "d")
    assert [(job.job, job.user, job.gpus, job.model) for job in load.jobs] == [
        ("10", "ana", 4, "train"),
        ("11", "ana", 4, "train"),
    ]


def test_an_ambiguous_row_is_not_repaired() -> None:
    lines = make_dump({"JobName": "a|b", "Comment": "c"}, fields=("JobID", "JobName", "User", "Comment", *FIELDS[2:-1]))
    with pytest.raises(TraceError, match=r"^d:2: 18 fields, and the head has 17$"):
        parse_trace(lines, "d")


def test_a_truncated_row_is_not_taken_for_the_end_of_a_name() -> None:
    lines = [*make_dump({}), "11|ana|gpu|COMPL"]
    with pytest.raises(TraceError, match=r"^d:3: 4 fields, and the head has 16$"):
        parse_trace(lines, "d")


# --- what is refused -----------------------------------------------------------------------------------------------


def test_an_unrepairable_row_does_not_affect_the_next_one() -> None:
    order = ("JobID", "JobName", *FIELDS[1:-1])
    good = [{"JobID": str(100 + at)} for at in range(150)]
    lines = make_dump({"JobID": "9", "Start": "so|on"}, {"JobID": "10", "JobName": "two\nlines"}, *good, fields=order)
    load = parse_trace(lines, "d")
    assert len(load.jobs) == 151
    assert load.remarks == (
        "1 job has the delimiter or a line break in a name: fixed",
        "1 line could not be read; line 2: 17 fields, and the head has 16",
    )


def test_a_name_with_very_many_lines_loses_only_its_job() -> None:
    order = ("JobID", "JobName", *FIELDS[1:-1])
    good = [{"JobID": str(1000 + at)} for at in range(400)]
    load = parse_trace(make_dump({"JobName": "\n" * 99}, *good, fields=order), "d")
    assert (len(load.jobs), load.remarks) == (
        400,
        ("2 lines could not be read; line 2: 2 fields, and the head has 16",),
    )


@pytest.mark.parametrize(("rows", "read"), [(200, True), (199, False)])
def test_one_percent_of_broken_lines_is_still_accepted(rows: int, read: bool) -> None:
    lines = make_dump(*({"JobID": str(at), "Submit": "soon" if at < 2 else ONE["Submit"]} for at in range(rows)))
    if read:
        assert len(parse_trace(lines, "d").jobs) == rows - 2
    else:
        with pytest.raises(TraceError, match="2 of 199 lines cannot be read"):
            parse_trace(lines, "d")


def test_a_few_broken_lines_are_left_out_with_a_remark() -> None:
    rows = [{"JobID": str(100 + at)} for at in range(398)]
    lines = make_dump(*rows, {"JobID": "9", "Start": "soon"})
    lines.insert(5, "77|ana|gpu")
    load = parse_trace(lines, "d")
    assert (len(load.jobs), load.remarks) == (
        398,
        ("2 lines could not be read; line 6: 3 fields, and the head has 16",),
    )


def test_more_than_one_percent_of_broken_lines_is_refused() -> None:
    rows = [{"JobID": str(100 + at), "Submit": "soon" if at % 50 == 7 else ONE["Submit"]} for at in range(400)]
    with pytest.raises(TraceError) as caught:
        parse_trace(make_dump(*rows), "d")
    assert str(caught.value) == "d:9: Submit is 'soon', not a time; 8 of 400 lines cannot be read"
    assert caught.value.hint == f"fix or remove the line, or dump again: {COMMAND}"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"Submit": "yesterday"}, "d:2: Submit is 'yesterday', not a time"),
        ({"Submit": "Unknown"}, "d:2: Submit is empty, and Start is not"),
        ({"Start": "12:30:11"}, "d:2: Start is '12:30:11', not a time"),
        ({"End": "99999999999"}, "d:2: End is '99999999999', not a time"),
        ({"End": "0001-01-01T00:00:00"}, "d:2: End is '0001-01-01T00:00:00', not a time"),
        ({"ElapsedRaw": "-1"}, "d:2: Elapsed is '-1', not a duration"),
        ({"TimelimitRaw": "soon"}, "d:2: Timelimit is 'soon', not a duration"),
        ({"AllocTRES": "4 GPUs"}, "d:2: AllocTRES is '4 GPUs', not a list of resources"),
        ({"ReqTRES": "cpu=many"}, "d:2: ReqTRES is 'cpu=many', not a list of resources"),
        ({"AllocTRES": "gres/gpu=9999999999"}, "d:2: AllocTRES is 'gres/gpu=9999999999': more than any cluster has"),
        ({"Submit": "\x1b[2Jx"}, "d:2: Submit is '?[2Jx', not a time"),
    ],
)
def test_an_invalid_field_is_refused_with_its_name(row: Mapping[str, str], message: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace(make_dump(row), "d")
    assert (str(caught.value), caught.value.exit_code) == (message, 65)


NO_TIMES = "Start and no column End or ElapsedRaw or Elapsed and no column AllocTRES"
PARSABLE = "call sacct with -P (--parsable2)"
NO_GPU = {"ReqTRES": "cpu=1,node=1", "AllocTRES": "cpu=1,node=1"}


@pytest.mark.parametrize(
    ("lines", "message", "hint"),
    [
        (
            make_dump({}, fields=("JobID", "Submit")),
            f"d:1: the dump has no column {NO_TIMES}",
            f"call it so: {COMMAND}",
        ),
        (["JobID|Sta"], f"d:1: the dump has no column Submit and no column {NO_TIMES}", f"call it so: {COMMAND}"),
        (make_dump({})[1:], "d:1: there is no head that names the columns", "call sacct without -n (--noheader)"),
        (["JobID    JobName", "-------- --------"], "d:1: there is no delimiter between the columns", PARSABLE),
        (make_dump({}, delimiter=","), "d:1: ',' is no delimiter: fields hold it", PARSABLE),
        (make_dump({})[:1], "d: there is no job below the head", "sacct -a for all users, -S for a longer time"),
        (make_dump({"Start": "Unknown"}), "d: 1 job, and none of them started", "a longer time: sacct -S"),
        (
            make_dump(NO_GPU),
            "d: 1 job started, and none of them held a GPU",
            "AllocTRES contains GPUs if slurm.conf has AccountingStorageTRES=gres/gpu since before the jobs ran",
        ),
    ],
    ids=["columns", "cut-head", "no-head", "not-parsable", "comma", "empty", "none-started", "no-gpus"],
)
def test_an_unusable_dump_is_refused_with_a_hint(lines: list[str], message: str, hint: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace(lines, "d")
    assert (str(caught.value), caught.value.hint) == (message, hint)
