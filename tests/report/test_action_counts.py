"""Commands that the report prints: exact, and safe for the shell with any Reason or name."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from slurmwrap.model.job_run import ActionRecord
from slurmwrap.report.action_counts import format_scontrol_line, list_advised_actions
from slurmwrap.report.night_report import ToDo

DRAIN = ActionRecord(
    action_id=1,
    attempt=None,
    rule="drain",
    mode="advise",
    verb="drain",
    target="n1",
    key="",
    value="slurmwrap: Xid 79",
    reason="conclusive fault",
    intended_at=1.0,
)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "scontrol update NodeName=n1 State=DRAIN Reason='slurmwrap: Xid 79'"),
        ({"verb": "resume", "value": ""}, "scontrol update NodeName=n1 State=RESUME"),
        ({"verb": "requeue", "target": "77_2"}, "scontrol requeue 77_2"),
        ({"verb": "requeuehold", "target": "77_2"}, "scontrol requeuehold 77_2"),
        ({"verb": "release", "target": "77"}, "scontrol release 77"),
        ({"verb": "cancel", "target": "77"}, "scancel 77"),
        (
            {"verb": "update job", "target": "77", "key": "StdOut", "value": "/home/a b/$(x).out"},
            "scontrol update JobId=77 StdOut='/home/a b/$(x).out'",
        ),
        (
            {"verb": "block input", "target": "/data/a b.npz", "reason": "it isn't a zip file"},
            "slurmwrap inputs block '/data/a b.npz' --reason 'it isn'\"'\"'t a zip file'",
        ),
    ],
)
def test_scontrol_command_of_each_verb(changes: dict[str, str], line: str) -> None:
    assert format_scontrol_line(replace(DRAIN, **changes)) == line  # type: ignore[arg-type]


def test_a_reason_is_quoted_as_one_shell_word() -> None:
    reason = 'it\'s `rm -rf /`; $(reboot) "x"\n'
    assert shlex.split(format_scontrol_line(replace(DRAIN, value=reason)))[-1] == f"Reason={reason}"


def test_drains_with_one_reason_share_a_command_and_done_drains_get_a_resume_command() -> None:
    done = replace(DRAIN, mode="act", done_at=2.0, target="n7")
    actions = (
        replace(DRAIN, target="n2"),
        DRAIN,
        done,
        replace(done, target="n6"),
        replace(done, target="n8", error="refused"),
        replace(DRAIN, target="n9", value="slurmwrap: other", reason=""),
        replace(DRAIN, mode="observe", target="n4"),
        replace(DRAIN, verb="requeue", target="81"),
    )
    assert list_advised_actions(actions) == (
        ToDo(
            why="conclusive fault",
            command="scontrol update NodeName='n[1-2]' State=DRAIN Reason='slurmwrap: Xid 79'",
        ),
        ToDo(why="advised", command="scontrol update NodeName=n9 State=DRAIN Reason='slurmwrap: other'"),
        ToDo(
            why="drained by slurmwrap; once they are repaired",
            command="slurmwrap nodes repaired 'n[6-7]' --resume",
        ),
    )


def test_without_drains_no_action_is_listed() -> None:
    assert list_advised_actions((replace(DRAIN, verb="requeue"),)) == ()
