"""The reconciler's log: each event becomes text on stderr or fields in the journal."""

from __future__ import annotations

import io
import os
import socket
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from slurmwrap.config.load_config import Config
from slurmwrap.config.load_config import LogSection as LogKeys
from slurmwrap.console import Console
from slurmwrap.host.journal import Journal
from slurmwrap.model.job_run import ActionRecord, JobRun
from slurmwrap.reconcile import event_log
from slurmwrap.reconcile.event_log import Event, EventKind, EventLog, record_of
from slurmwrap.store.deserialize import record_from_json


def find_failed_run(day: dict[str, Any]) -> JobRun:
    failed = next(run for run in day["attempts"] if run["diagnosis"] and len(run["nodes"]) > 1)
    return record_from_json(JobRun, failed)


def make_action(**changed: str) -> ActionRecord:
    known = {"rule": "drain", "mode": "act", "verb": "drain", "target": "n1", "key": "", "value": "slurmwrap: xid 79"}
    return ActionRecord(action_id=1, attempt=None, intended_at=1.0, **{**known, "reason": "xid 79", **changed})


def test_a_diagnosed_run_is_logged_with_job_user_category_and_nodes(day: dict[str, Any]) -> None:
    record = find_failed_run(day)
    assert record.diagnosis is not None
    event = event_log.make_judged_event(record)
    why = f"{record.diagnosis.category}, {record.decision}: {record.decision_reason}"
    assert event.text == f"job {record.address} of {record.user}: {why}"
    fields = list(record_of(event))
    assert fields[:4] == [
        ("MESSAGE", event.text),
        ("PRIORITY", "6"),
        ("SYSLOG_IDENTIFIER", "slurmwrap"),
        ("SLURMWRAP_EVENT", "judged"),
    ]
    values = dict(fields)
    assert values["SLURM_JOB_ID"] == record.address
    assert values["SLURMWRAP_CATEGORY"] == record.diagnosis.category
    assert values["SLURMWRAP_DECISION"] == record.decision
    assert tuple(value for name, value in fields if name == "SLURM_NODE") == record.nodes


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (
            make_action(),
            Event(
                kind=EventKind.ACTED,
                text="done: drain n1 slurmwrap: xid 79",
                fields=(
                    ("SLURM_NODE", "n1"),
                    ("SLURMWRAP_RULE", "drain"),
                    ("SLURMWRAP_VERB", "drain"),
                    ("SLURMWRAP_REASON", "xid 79"),
                ),
            ),
        ),
        (
            make_action(rule="resize", verb="update job", target="77_2", key="MinMemoryNode", value="9", reason=""),
            Event(
                kind=EventKind.ACTED,
                text="done: update job 77_2 MinMemoryNode=9",
                fields=(("SLURM_JOB_ID", "77_2"), ("SLURMWRAP_RULE", "resize"), ("SLURMWRAP_VERB", "update job")),
            ),
        ),
        (
            make_action(rule="block_input", verb="block input", target="/d/x", key="site", value="ab", reason=""),
            Event(
                kind=EventKind.ACTED,
                text="done: block input /d/x site=ab",
                fields=(
                    ("SLURMWRAP_INPUT", "/d/x"),
                    ("SLURMWRAP_RULE", "block_input"),
                    ("SLURMWRAP_VERB", "block input"),
                ),
            ),
        ),
    ],
)
def test_an_action_is_logged_with_a_node_job_or_input_field(action: ActionRecord, wanted: Event) -> None:
    assert event_log.make_acted_event(action) == wanted


def test_an_action_that_slurm_refused_is_a_warning_with_the_error() -> None:
    event = event_log.make_refused_action_event(make_action(error="Invalid node name\nspecified"))
    assert dict(record_of(event))["PRIORITY"] == "4"
    assert dict(record_of(event))["MESSAGE"] == "not done: drain n1 : Invalid node name\\nspecified"
    assert event.fields[-1] == ("SLURMWRAP_ERROR", "Invalid node name\nspecified")


def make_console() -> Console:
    return Console("slurmwrap", io.StringIO())


def output_of(console: Console) -> str:
    assert isinstance(console.stream, io.StringIO)
    return console.stream.getvalue()


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(tmp_path / "socket"))
    listening.settimeout(20)
    return listening


def test_events_on_stderr_are_escaped_text(listener: socket.socket, tmp_path: Path) -> None:
    with listener, closing(Journal(str(tmp_path / "socket"))) as journal:
        console = make_console()
        EventLog.of(Config(), console, {}, journal).tell(event_log.make_note_event("\x1b[2Jhello"))
        assert output_of(console) == "slurmwrap: \\x1b[2Jhello\n"


def test_with_log_to_journal_the_journal_gets_the_fields(listener: socket.socket, tmp_path: Path) -> None:
    with listener, closing(Journal(str(tmp_path / "socket"))) as journal:
        console = make_console()
        log = EventLog.of(Config(log=LogKeys(to="journal")), console, {}, journal)
        log.tell(event_log.make_rejected_files_event(3))
        assert output_of(console) == ""
        assert listener.recv(1 << 16).decode().splitlines() == [
            "MESSAGE=3 spool files were rejected",
            "PRIORITY=4",
            "SYSLOG_IDENTIFIER=slurmwrap",
            "SLURMWRAP_EVENT=refused",
            "SLURMWRAP_COUNT=3",
        ]


def test_the_journal_gets_the_fields_where_stderr_is_the_journal(listener: socket.socket, tmp_path: Path) -> None:
    stderr_stat = os.fstat(2)
    with listener, closing(Journal(str(tmp_path / "socket"))) as journal:
        console = make_console()
        environ = {"JOURNAL_STREAM": f"{stderr_stat.st_dev}:{stderr_stat.st_ino}"}
        EventLog.of(Config(), console, environ, journal).note("hello")
        assert (output_of(console), listener.recv(1 << 16).splitlines()[0]) == ("", b"MESSAGE=hello")


def test_a_missing_journal_is_reported_and_events_go_to_stderr(tmp_path: Path) -> None:
    console = make_console()
    log = EventLog.of(Config(log=LogKeys(to="journal")), console, {}, Journal(str(tmp_path / "none")))
    log.note("hello")
    assert output_of(console) == (
        "slurmwrap: log.to is journal, but no journald is listening here: events go to stderr\nslurmwrap: hello\n"
    )


def test_lines_lost_by_a_full_journal_are_reported_once(listener: socket.socket, tmp_path: Path) -> None:
    with listener, closing(Journal(str(tmp_path / "socket"))) as journal:
        log = EventLog(make_console(), journal, both=False)
        while not journal.lost:
            log.note("x")
        log.note("lost too")
        receive_first_lines(listener)
        log.note("again")
        assert receive_first_lines(listener) == [
            "MESSAGE=again",
            "MESSAGE=error: 2 lines are lost, because journald could not take them",
        ]
        log.note("and on")
        assert receive_first_lines(listener) == ["MESSAGE=and on"]


def receive_first_lines(listener: socket.socket) -> list[str]:
    """Return the first line of each record that is waiting."""
    listener.setblocking(False)
    lines = []
    with suppress(BlockingIOError):
        while True:
            lines.append(listener.recv(1 << 16).splitlines()[0].decode())
    return lines


def test_the_newest_twenty_tracebacks_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kept = tmp_path / "slurmwrap"
    kept.mkdir()
    for number in range(30):
        old = kept / f"fault-{number}-1.log"
        old.write_text("old")
        os.utime(old, (number, number))
    (kept / "user.db").write_text("")
    console = make_console()
    console.fault(RuntimeError("no"))
    names = {path.name for path in kept.iterdir()} - {"user.db"}
    assert {name for name in names if name.endswith("-1.log") and int(name.split("-")[1]) < 30} == {
        f"fault-{number}-1.log" for number in range(11, 30)
    }
    assert len(names) == 20
    assert output_of(console).startswith("slurmwrap: RuntimeError: no (details: ")
