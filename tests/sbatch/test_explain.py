"""Output for users, compared with the golden files in tests/data/sbatch."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.sbatch.explain import explain, make_equivalent_script
from slurmwrap.sbatch.job_request import BatchScript, JobRequest, OptionChange
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.rewrite import render

DATA = Path(__file__).parents[1] / "data" / "sbatch"
USERS = (DATA / "train.sbatch").read_bytes()
ENVIRON = {"SBATCH_PARTITION": "gpu", "SBATCH_MEM_PER_GPU": "9G", "SBATCH_WAIT": "0", "SBATCH_WAIT4SWITCH": "20:00"}
WISHES = [
    OptionChange(
        option="mem", value="216G", reason="At most 180 GiB per node were in use in three complete runs; 20 % on top."
    ),
    OptionChange(option="cpus-per-task", value="6", reason="Steps/s rose by less than 5 % beyond 6 CPUs per GPU."),
    OptionChange(option="time", value=None, reason="No run has finished yet."),
    OptionChange(option="partition", value="gpu-large", reason="The partition gpu is drained for maintenance."),
    OptionChange(
        option="exclude", value="n3,n17", reason="n3 and n17 are under suspicion: two failures each since Monday."
    ),
    OptionChange(option="switches", value="1", reason="Two nodes fit under one switch."),
    OptionChange(option="nodelist", value=None, reason="No two nodes of one switch are free now."),
]


def job() -> tuple[JobRequest, BatchScript]:
    request = parse_request(
        ["-c", "12", "--comment=one\ttwo", "-Q", "train.sbatch", "--lr", "3e-4"],
        environ=ENVIRON,
        cwd="/home/a",
        read_script=lambda _: USERS,
        read_stdin=lambda: b"",
    )
    return request, render(
        request, WISHES, added=[OptionChange(option="requeue", value="", reason="--retry needs it.")]
    )


def test_rewritten_script_dry_run_and_explanation_match_the_golden_files() -> None:
    assert job()[1].content == (DATA / "train.rewritten.sbatch").read_bytes()
    assert make_equivalent_script(*job()) == (DATA / "train.dry-run.sbatch").read_bytes()
    assert explain(*job(), colour=False) == (DATA / "train.explain.txt").read_text(encoding="utf-8")


def test_generated_lines_of_the_explanation_fit_80_columns() -> None:
    ours = [line for line in explain(*job(), colour=False).splitlines() if line.startswith("    ")]
    assert ours and max(map(len, ours)) <= 80


def test_colour_is_applied_to_whole_lines_only() -> None:
    plain, painted = (explain(*job(), colour=colour).splitlines() for colour in (False, True))
    assert [line.replace("\x1b[0m", "").split("m", 1)[-1] if "\x1b" in line else line for line in painted] == plain
    assert sum("\x1b[32m" in line for line in painted) == sum(line.startswith("+") for line in plain)


def test_an_unchanged_job_is_reported_and_remarks_are_wrapped_at_the_end() -> None:
    request, _ = job()
    assert explain(request, render(request, []), colour=True) == "Nothing is changed.\n"
    remarks = ("best now: n4", "a remark that is longer than what a terminal of eighty columns can show in one line")
    said = explain(request, render(request, []), colour=False, remarks=remarks)
    assert said.splitlines() == [
        "Nothing is changed.",
        "@@ where it may run @@",
        "  * best now: n4",
        "  * a remark that is longer than what a terminal of eighty columns can show in",
        "    one line",
    ]


@pytest.mark.parametrize("comment", ["a\x1b[2Jb", "a\nb"])
def test_control_characters_of_user_text_do_not_reach_the_terminal(comment: str) -> None:
    request = parse_request(
        ["-G1", f"--comment={comment}", "a.sh"],
        environ={},
        cwd="/",
        read_script=lambda _: b"#!/bin/sh\n#SBATCH --mem=1G -J \x1b[31mx\n",
        read_stdin=lambda: b"",
    )
    batch = render(
        request,
        [OptionChange(option="mem", value="2G", reason="\x1bc"), OptionChange(option="comment", value="x", reason="")],
    )
    said = explain(request, batch, colour=False)
    assert "\x1b" not in said
    assert said.count("\n") == len(said.splitlines())


def test_a_value_that_no_directive_can_hold_becomes_a_comment() -> None:
    request = parse_request(
        ["--comment=a\nb", "a.sh"], environ={}, cwd="/", read_script=lambda _: b"#!/bin/sh", read_stdin=lambda: b""
    )
    assert make_equivalent_script(request, render(request, [])) == (
        b"#!/bin/sh\n# gsub: From the command line. It cannot be written in a script: '--comment=a\\nb'\n"
    )
