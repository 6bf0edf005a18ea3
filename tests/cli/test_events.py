"""The reconciler's log: text and fields from one place, to stderr or to the journal."""

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


def a_failure(day: dict[str, Any]) -> JobRun:
    found = next(one for one in day["attempts"] if one["diagnosis"] and len(one["nodes"]) > 1)
    return record_from_json(JobRun, found)


def an_action(**changed: str) -> ActionRecord:
    known = {"rule": "drain", "mode": "act", "verb": "drain", "target": "n1", "key": "", "value": "slurmwrap: xid 79"}
    return ActionRecord(action_id=1, attempt=None, intended_at=1.0, **{**known, "reason": "xid 79", **changed})


def test_a_judged_run_is_found_by_job_user_category_and_each_node(day: dict[str, Any]) -> None:
    record = a_failure(day)
    assert record.diagnosis is not None
    found = event_log.make_judged_event(record)
    why = f"{record.diagnosis.category}, {record.decision}: {record.decision_reason}"
    assert found.text == f"job {record.address} of {record.user}: {why}"
    fields = list(record_of(found))
    assert fields[:4] == [
        ("MESSAGE", found.text),
        ("PRIORITY", "6"),
        ("SYSLOG_IDENTIFIER", "slurmwrap"),
        ("SLURMWRAP_EVENT", "judged"),
    ]
    told = dict(fields)
    assert told["SLURM_JOB_ID"] == record.address
    assert told["SLURMWRAP_CATEGORY"] == record.diagnosis.category
    assert told["SLURMWRAP_DECISION"] == record.decision
    assert tuple(value for name, value in fields if name == "SLURM_NODE") == record.nodes


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (
            an_action(),
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
            an_action(rule="resize", verb="update job", target="77_2", key="MinMemoryNode", value="9", reason=""),
            Event(
                kind=EventKind.ACTED,
                text="done: update job 77_2 MinMemoryNode=9",
                fields=(("SLURM_JOB_ID", "77_2"), ("SLURMWRAP_RULE", "resize"), ("SLURMWRAP_VERB", "update job")),
            ),
        ),
        (
            an_action(rule="block_input", verb="block input", target="/d/x", key="site", value="ab", reason=""),
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
def test_an_action_names_its_target_by_what_it_is(action: ActionRecord, wanted: Event) -> None:
    assert event_log.make_acted_event(action) == wanted


def test_what_slurm_refused_is_a_warning_with_slurms_words() -> None:
    found = event_log.make_refused_action_event(an_action(error="Invalid node name\nspecified"))
    assert dict(record_of(found))["PRIORITY"] == "4"
    assert dict(record_of(found))["MESSAGE"] == "not done: drain n1 : Invalid node name\\nspecified"
    assert found.fields[-1] == ("SLURMWRAP_ERROR", "Invalid node name\nspecified")


def console() -> Console:
    return Console("slurmwrap", io.StringIO())


def said(one: Console) -> str:
    assert isinstance(one.stream, io.StringIO)
    return one.stream.getvalue()


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.bind(str(tmp_path / "socket"))
    found.settimeout(20)
    return found


def test_on_a_terminal_it_is_text(listener: socket.socket, tmp_path: Path) -> None:
    with listener, closing(Journal(str(tmp_path / "socket"))) as journal:
        one = console()
        EventLog.of(Config(), one, {}, journal).tell(event_log.make_note_event("\x1b[2Jhello"))
        assert said(one) == "slurmwrap: \\x1b[2Jhello\n"


def test_where_the_journal_was_asked_for_it_gets_the_fields(listener: socket.socket, tmp_path: Path) -> None:
    with listener, closing(Journal(str(tmp_path / "socket"))) as journal:
        one = console()
        log = EventLog.of(Config(log=LogKeys(to="journal")), one, {}, journal)
        log.tell(event_log.make_rejected_files_event(3))
        assert said(one) == ""
        assert listener.recv(1 << 16).decode().splitlines() == [
            "MESSAGE=3 spool files were rejected",
            "PRIORITY=4",
            "SYSLOG_IDENTIFIER=slurmwrap",
            "SLURMWRAP_EVENT=refused",
            "SLURMWRAP_COUNT=3",
        ]


def test_where_stderr_is_the_journal_it_gets_the_fields_too(listener: socket.socket, tmp_path: Path) -> None:
    found = os.fstat(2)
    with listener, closing(Journal(str(tmp_path / "socket"))) as journal:
        one = console()
        environ = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        EventLog.of(Config(), one, environ, journal).note("hello")
        assert (said(one), listener.recv(1 << 16).splitlines()[0]) == ("", b"MESSAGE=hello")


def test_a_journal_that_is_not_there_is_told_and_stderr_has_to_do(tmp_path: Path) -> None:
    one = console()
    log = EventLog.of(Config(log=LogKeys(to="journal")), one, {}, Journal(str(tmp_path / "none")))
    log.note("hello")
    assert said(one) == (
        "slurmwrap: log.to is journal, but no journald is listening here: events go to stderr\nslurmwrap: hello\n"
    )


def test_what_a_full_journal_lost_is_owned_up_to_once(listener: socket.socket, tmp_path: Path) -> None:
    with listener, closing(Journal(str(tmp_path / "socket"))) as journal:
        log = EventLog(console(), journal, both=False)
        while not journal.lost:
            log.note("x")
        log.note("lost too")
        heard(listener)
        log.note("again")
        assert heard(listener) == [
            "MESSAGE=again",
            "MESSAGE=error: 2 lines are lost, because journald could not take them",
        ]
        log.note("and on")
        assert heard(listener) == ["MESSAGE=and on"]


def heard(listener: socket.socket) -> list[str]:
    """The first lines of all records that wait."""
    listener.setblocking(False)
    found = []
    with suppress(BlockingIOError):
        while True:
            found.append(listener.recv(1 << 16).splitlines()[0].decode())
    return found


def test_of_tracebacks_the_newest_twenty_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kept = tmp_path / "slurmwrap"
    kept.mkdir()
    for number in range(30):
        old = kept / f"fault-{number}-1.log"
        old.write_text("old")
        os.utime(old, (number, number))
    (kept / "user.db").write_text("")
    one = console()
    one.fault(RuntimeError("no"))
    names = {path.name for path in kept.iterdir()} - {"user.db"}
    assert {name for name in names if name.endswith("-1.log") and int(name.split("-")[1]) < 30} == {
        f"fault-{number}-1.log" for number in range(11, 30)
    }
    assert len(names) == 20
    assert said(one).startswith("slurmwrap: RuntimeError: no (details: ")
