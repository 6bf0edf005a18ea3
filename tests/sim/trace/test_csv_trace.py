"""CSV traces: how rows become jobs, and the error and hint for each invalid line."""

from __future__ import annotations

import pytest

from slurmwrap.errors import TraceError
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.read_trace import parse_trace
from slurmwrap.sim.trace.trace_load import Load

HEAD = "submit_s,duration_s,gpus,cpus,mem_gb,user,status,model"
NEEDED = (
    "needed are submit_s, duration_s, gpus; used, where they are there, cpus, mem_gb, user, status, model, gpu_util"
)
FIX_LINE = "fix the line, or remove it"
GPUS = "expected: the number of GPUs of the whole job; leave out jobs without GPUs"
SUBMIT = "expected: seconds since the first submission"
RUN = "expected: seconds of run time, without queueing"
QUOTES = "put a field with a quote or a comma in quotes, and double the quotes in it"


def test_a_row_gives_a_job_and_empty_fields_are_unknown() -> None:
    lines = [HEAD, "0,375,1,,,103959,,vgg19", "8.5,14009.400,8,24,500,ana,COMPLETED,"]
    assert parse_trace(lines, "t.csv") == Load(
        jobs=(
            SimJob(number=0, job="0", submit_s=0.0, work_s=375.0, gpus=1, user="103959", model="vgg19", line=2),
            SimJob(
                number=1,
                job="1",
                submit_s=8.5,
                work_s=14009.4,
                gpus=8,
                cpus=24,
                mem_mib=512_000,
                user="ana",
                status="COMPLETED",
                line=3,
            ),
        )
    )


def test_gpu_utilization_is_a_percentage() -> None:
    lines = ["submit_s,duration_s,gpus,gpu_util", "0,1,1,37.5", "0,1,1,", "0,1,1,100"]
    assert [job.gpu_util for job in parse_trace(lines, "t").jobs] == [0.375, None, 1.0]
    with pytest.raises(TraceError, match="gpu_util is '101': not between 0 and 100") as caught:
        parse_trace([lines[0], "0,1,1,101"], "t")
    assert "per cent of its GPUs" in caught.value.hint


def test_a_first_submission_later_than_0_is_not_shifted() -> None:
    assert [job.submit_s for job in parse_trace([HEAD, "8,1,1,,,,,", "126,1,1,,,,,"], "t").jobs] == [8.0, 126.0]


def test_unix_seconds_become_relative_to_the_first_submission() -> None:
    load = parse_trace([HEAD, "1793502245.5,1,1,,,,,", "1793502345.5,1,1,,,,,"], "t")
    assert ([job.submit_s for job in load.jobs], load.epoch) == ([0.0, 100.0], 1793502245.5)


def test_columns_may_be_in_any_order_with_unknown_ones_and_without_optional_ones() -> None:
    lines = ["vc,gpus,duration_s,note,submit_s", "a,4,60,x,0", "b,1,30,y,7"]
    expected = [(0.0, 60.0, 4), (7.0, 30.0, 1)]
    assert [(job.submit_s, job.work_s, job.gpus) for job in parse_trace(lines, "t").jobs] == expected


def test_a_table_may_also_have_columns_named_as_in_sacct() -> None:
    assert len(parse_trace(["JobID,User,State,submit_s,duration_s,gpus", "9,ana,FAILED,0,60,4"], "t").jobs) == 1


@pytest.mark.parametrize(
    "lines",
    [
        ["\ufeffsubmit_s,duration_s,gpus", "0,60,4"],
        ["submit_s,duration_s,gpus\r\n", "0,60,4\r\n"],
        ["submit_s,duration_s,gpus\n", "0,60,4\n", "\n", "   \n"],
        ["", "submit_s,duration_s,gpus", "", "0,60,4"],
        [" submit_s , duration_s , gpus ", " 0 , 60 , 4 "],
        ['"submit_s","duration_s","gpus"', '"0","60","4"'],
        ["submit_s,duration_s,gpus", "0,6e1,4.0"],
        ["submit_s,duration_s,gpus,note", '0,60,4,"quoted, with ""quotes"" "'],
    ],
    ids=["bom", "crlf", "blank-end", "blank-between", "spaces", "quoted", "decimals", "quotes"],
)
def test_equivalent_spellings_give_the_same_job(lines: list[str]) -> None:
    assert [(job.submit_s, job.work_s, job.gpus) for job in parse_trace(lines, "t").jobs] == [(0.0, 60.0, 4)]


def test_the_line_of_a_job_is_the_line_of_the_file() -> None:
    lines = ["", "submit_s,duration_s,gpus", "", "0,60,4", "", "1,1,1"]
    assert [job.line for job in parse_trace(lines, "t").jobs] == [4, 6]


def test_cpus_and_mib_are_rounded_up() -> None:
    job = parse_trace([HEAD, "0,1,1,11.4,0.0005,,,"], "t").jobs[0]
    assert (job.cpus, job.mem_mib) == (12, 1)


def test_a_job_of_0_seconds_is_accepted() -> None:
    assert parse_trace([HEAD, "0,0,1,,,,,"], "t").jobs[0].work_s == 0.0


def test_names_lose_control_characters_and_are_cut_to_250_characters() -> None:
    job = parse_trace([HEAD, f"0,1,1,,,\x1b[31mred,,{'m' * 300}"], "t").jobs[0]
    assert (job.user, job.model) == ("?[31mred", "m" * 250)


@pytest.mark.parametrize(
    ("lines", "message", "hint"),
    [
        (["submit_s,gpus", "0,1"], "t:1: there is no column duration_s; there are 'submit_s', 'gpus'", NEEDED),
        (
            ["arrival,runtime,workers", "0,1,1"],
            "t:1: there is no column submit_s, duration_s, gpus; there are 'arrival', 'runtime', 'workers'",
            NEEDED,
        ),
        (
            ["0,375,1", "1,1,1"],
            "t:1: there is no column submit_s, duration_s, gpus; there are '0', '375', '1'",
            NEEDED,
        ),
        (["submit_s,duration_s,gpus,gpus", "0,1,1,1"], "t:1: the column gpus appears 2 times", "leave one of them"),
        ([HEAD], "t: there is no job below the head", "a simulation needs at least one"),
        ([HEAD, "", "  "], "t: there is no job below the head", "a simulation needs at least one"),
        ([HEAD, "0,1,1,,,,,", "1,1,1,,"], "t:3: 5 fields, and the head has 8", FIX_LINE),
        ([HEAD, "0,1,1,,,,,,x"], "t:2: 9 fields, and the head has 8", FIX_LINE),
        ([HEAD, "0"], "t:2: 1 field, and the head has 8", FIX_LINE),
        ([HEAD, "-1,1,1,,,,,"], "t:2: submit_s is '-1': negative", SUBMIT),
        ([HEAD, "0,-0.5,1,,,,,"], "t:2: duration_s is '-0.5': negative", RUN),
        ([HEAD, "0,nan,1,,,,,"], "t:2: duration_s is 'nan': not between 0 and 1e+10", RUN),
        ([HEAD, "inf,1,1,,,,,"], "t:2: submit_s is 'inf': not between 0 and 1e+10", SUBMIT),
        ([HEAD, "1793502245500,1,1,,,,,"], "t:2: submit_s is '1793502245500': not between 0 and 1e+10", SUBMIT),
        ([HEAD, "0,1_0,1,,,,,"], "t:2: duration_s is '1_0': not a number", RUN),
        ([HEAD, "now,1,1,,,,,"], "t:2: submit_s is 'now': not a number", SUBMIT),
        ([HEAD, ",1,1,,,,,"], "t:2: submit_s is empty", SUBMIT),
        ([HEAD, "0,,1,,,,,"], "t:2: duration_s is empty", RUN),
        ([HEAD, "0,1,,,,,,"], "t:2: gpus is empty", GPUS),
        ([HEAD, "0,1,0,,,,,"], "t:2: gpus is '0': not a whole number of at least 1", GPUS),
        ([HEAD, "0,1,1.5,,,,,"], "t:2: gpus is '1.5': not a whole number of at least 1", GPUS),
        ([HEAD, "0,1,-4,,,,,"], "t:2: gpus is '-4': negative", GPUS),
        ([HEAD, "0,1,two,,,,,"], "t:2: gpus is 'two': not a number", GPUS),
        ([HEAD, "0,1,1e9,,,,,"], "t:2: gpus is '1e9': not between 0 and 1e+07", GPUS),
        (
            [HEAD, "0,1,1,0,,,,"],
            "t:2: cpus is '0': not more than 0",
            "expected: the number of CPUs that the whole job asks for; leave it empty if that is unknown",
        ),
        (
            [HEAD, "0,1,1,,-62.5,,,"],
            "t:2: mem_gb is '-62.5': negative",
            "expected: the GB that the whole job asks for; leave it empty if that is unknown",
        ),
        (
            [HEAD, "0,1,1,,,,,", "1793502,1,1,,,,,", "", "7.25,1,1,,,,,"],
            "t:5: submit_s is 7.25, and 1793502 in line 3: rows must be in the order of submission",
            "sort them: (head -n 1 FILE; tail -n +2 FILE | sort -s -t, -gk1,1)",
        ),
        (
            ["gpus,duration_s,submit_s", "1,1,5", "1,1,4"],
            "t:3: submit_s is 4, and 5 in line 2: rows must be in the order of submission",
            "sort them: (head -n 1 FILE; tail -n +2 FILE | sort -s -t, -gk3,3)",
        ),
        ([HEAD, '0,1,1,,,"ana,,', "1,1,1,,,,,"], "t:2: a quote that does not end on its line", QUOTES),
        ([HEAD, '0,1,1,,,"a"na,,'], "t:2: a quote in the middle of a field", QUOTES),
        ([HEAD, '0,1,1,,,"a,,', '1,1,1,,,b",,'], "t:2: a quote that does not end on its line", QUOTES),
        (
            [HEAD, f"0,1,1,,,{'a' * 140_000},,"],
            "t:2: a field of more than 131,072 characters, or a quote that does not end on its line",
            QUOTES,
        ),
        (
            [HEAD, "0,1,1,,,\0,,"],
            "t:2: it holds NUL bytes",
            "expected: text in UTF-8 or ASCII, not UTF-16, not binary",
        ),
        ([HEAD, "0,1,1" + "," * 2_000_000], "t:2: a line of more than 1,048,576 characters", "is it a trace at all?"),
        (
            [HEAD, "\x1b]0;x\x07,1,1,,,,,"],
            "t:2: submit_s is '?]0;x?': not a number",
            SUBMIT,
        ),
    ],
)
def test_an_invalid_line_is_refused_with_its_number_and_a_hint(lines: list[str], message: str, hint: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace(lines, "t")
    assert (str(caught.value), caught.value.hint, caught.value.exit_code) == (message, hint, 65)
