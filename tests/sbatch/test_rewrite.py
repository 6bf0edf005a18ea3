"""Each value is changed where the user set it; everything else stays the same."""

from __future__ import annotations

import pytest

from slurmwrap.sbatch.job_request import BatchScript, JobRequest, OptionChange, RequestChange
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.rewrite import find_conflict, render

SCRIPT = b"""#!/bin/bash
#SBATCH --gres=gpu:a100:8   --mem=500G # plenty
#SBATCH -N 2 -HJ "my job"
#SBATCH --exclusive
#SBATCH --requ

#GSUB --retry
srun python train.py --mem=500G \xff
#SBATCH --mem=1G
"""


def ask(*argv: str, script: bytes = SCRIPT, environ: dict[str, str] | None = None) -> JobRequest:
    return parse_request(argv, environ=environ or {}, cwd="/", read_script=lambda _: script, read_stdin=lambda: script)


def change_to(option: str, value: str | None, reason: str = "Because.") -> OptionChange:
    return OptionChange(option=option, value=value, reason=reason)


def test_without_changes_the_job_stays_as_it_is() -> None:
    batch = render(ask("-c", "4", "--exclus", "-koff", "--comment=", "a.sh", "x"), [])
    assert batch == BatchScript(
        content=SCRIPT,
        options=("--cpus-per-task=4", "--exclusive", "--no-kill=off", "--comment="),
        args=("x",),
        environ={},
        changes=(),
    )


@pytest.mark.parametrize(
    ("asked", "line", "rewritten"),
    [
        (change_to("mem", "216G"), 2, b"#SBATCH --gres=gpu:a100:8   --mem=216G # plenty"),
        (change_to("gres", "gpu:h100:8"), 2, b"#SBATCH --gres=gpu:h100:8   --mem=500G # plenty"),
        (change_to("nodes", "3-4"), 3, b'#SBATCH -N 3-4 -HJ "my job"'),
        (change_to("job-name", "other"), 3, b"#SBATCH -N 2 -HJ other"),
        (change_to("job-name", 'a "b" #c'), 3, b'#SBATCH -N 2 -HJ "a \\"b\\" #c"'),
        (change_to("exclusive", "user"), 4, b"#SBATCH --exclusive=user"),
    ],
)
def test_a_value_of_the_script_is_changed_in_its_line_and_nothing_else(
    asked: OptionChange, line: int, rewritten: bytes
) -> None:
    batch = render(ask("a.sh"), [asked])
    before, after = SCRIPT.split(b"\n"), batch.content.split(b"\n")
    assert after[line - 1] == rewritten
    assert before[: line - 1] + before[line:] == after[: line - 1] + after[line:]
    assert (batch.options, batch.environ) == ((), {})
    assert (batch.changes[0].where, batch.changes[0].new) == (f"a.sh:{line}", asked.value)


def test_an_attached_value_keeps_its_letter_and_quotes_are_added_where_needed() -> None:
    script = b"#!/bin/sh\n#SBATCH -HN2 '--comment=a b' -Jx\n"
    batch = render(
        ask("a.sh", script=script), [change_to("nodes", "4"), change_to("comment", "c d"), change_to("job-name", "y z")]
    )
    assert batch.content == b'#!/bin/sh\n#SBATCH -HN4 "--comment=c d" -J"y z"\n'


def test_of_two_lines_for_one_option_the_effective_one_is_changed() -> None:
    script = b"#!/bin/sh\n#SBATCH --mem=1G\n#SBATCH --mem=2G\n"
    batch = render(ask("a.sh", script=script), [change_to("mem", "3G")])
    assert batch.content == b"#!/bin/sh\n#SBATCH --mem=1G\n#SBATCH --mem=3G\n"


def test_a_value_of_the_environment_is_changed_in_its_variable() -> None:
    batch = render(ask("a.sh", environ={"SBATCH_MEM_PER_NODE": "400G"}), [change_to("mem", "216G", "Measured.")])
    assert (batch.content, batch.options, batch.environ) == (SCRIPT, (), {"SBATCH_MEM_PER_NODE": "216G"})
    assert batch.changes == (
        RequestChange(option="mem", old="400G", new="216G", where="SBATCH_MEM_PER_NODE", reason="Measured."),
    )


def test_a_value_of_the_command_line_is_changed_in_its_place() -> None:
    batch = render(ask("--mem", "300G", "-p", "gpu", "a.sh"), [change_to("mem", "216G")])
    assert (batch.content, batch.options) == (SCRIPT, ("--mem=216G", "--partition=gpu"))


def test_an_option_that_the_user_did_not_set_is_added_to_the_command_line() -> None:
    batch = render(ask("-p", "gpu", "a.sh"), [change_to("exclude", "n3", "n3 is suspect."), change_to("reboot", "")])
    assert batch.options == ("--partition=gpu", "--exclude=n3", "--reboot")
    assert batch.changes[0] == RequestChange(
        option="exclude", old=None, new="n3", where="added", reason="n3 is suspect."
    )


def test_an_added_option_goes_on_the_command_line_even_if_the_script_sets_it() -> None:
    script = b"#!/bin/sh\n#SBATCH --begin=16:00\n"
    batch = render(ask("a.sh", script=script), [], added=[change_to("begin", "2026-11-21T16:10:00")])
    assert (batch.content, batch.options) == (script, ("--begin=2026-11-21T16:10:00",))
    assert (batch.changes[0].old, batch.changes[0].where) == ("16:00", "added")


def test_a_switch_count_variable_is_overridden_because_it_takes_no_time() -> None:
    batch = render(ask("a.sh", environ={"SBATCH_REQ_SWITCH": "1"}), [change_to("switches", "1@30:00")])
    assert (batch.environ, batch.options) == ({}, ("--switches=1@30:00",))


def test_a_flag_that_was_revoked_is_added_again() -> None:
    assert render(ask("a.sh"), [change_to("requeue", "")]).changes == ()
    assert render(ask("--no-requeue", "a.sh"), [change_to("requeue", "")]).options == ("--no-requeue", "--requeue")


def test_a_change_to_the_current_value_changes_nothing() -> None:
    assert render(ask("a.sh"), [change_to("mem", "500G"), change_to("exclusive", "")]).changes == ()


def test_a_decision_to_keep_a_value_is_recorded_with_its_reason() -> None:
    batch = render(
        ask("a.sh"), [change_to("mem", None, "Never run before."), change_to("nodelist", None, "Nothing is free.")]
    )
    assert (batch.content, batch.options) == (SCRIPT, ())
    assert batch.changes == (
        RequestChange(option="mem", old="500G", new="500G", where="a.sh:2", reason="Never run before."),
        RequestChange(option="nodelist", old=None, new=None, where="kept", reason="Nothing is free."),
    )


def test_later_changes_see_the_earlier_ones() -> None:
    batch = render(ask("a.sh"), [change_to("mem", "216G"), change_to("mem", "300G")])
    assert b"--mem=300G # plenty" in batch.content
    assert [change.old for change in batch.changes] == ["500G", "216G"]


@pytest.mark.parametrize(
    ("argv", "environ", "asked", "message"),
    [
        ([], {}, change_to("mem-per-gpu", "64G"), r"--mem-per-gpu and --mem \(a.sh:2\) exclude each other"),
        ([], {"SBATCH_CPUS_PER_GPU": "4"}, change_to("cpus-per-task", "8"), "SBATCH_CPUS_PER_GPU"),
        (["-c4"], {}, change_to("cpus-per-gpu", "8"), "command line"),
        (["--tres-per-task=cpu=4"], {}, change_to("cpus-per-task", "8"), "both set CPUs"),
        ([], {}, change_to("colour", "red"), "no option --colour"),
        ([], {}, change_to("hold", "yes"), "flag"),
        ([], {}, change_to("job-name", "a\nb"), "cannot be written"),
    ],
)
def test_a_change_that_sbatch_would_refuse_is_an_error(argv, environ, asked: OptionChange, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render(ask(*argv, "a.sh", environ=environ), [asked])


def test_two_changes_that_exclude_each_other_are_an_error() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        render(ask("a.sh"), [change_to("cpus-per-task", "8"), change_to("cpus-per-gpu", "8")])


def test_a_memory_option_that_is_overridden_is_no_conflict() -> None:
    request = ask("a.sh", environ={"SBATCH_MEM_PER_GPU": "64G"})  # the script's --mem beats it
    assert find_conflict(request, "mem") is None
    assert find_conflict(request, "mem-per-gpu") is not None
