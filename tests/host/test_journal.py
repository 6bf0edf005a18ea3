"""The sender of journal records, with a datagram socket, and with a separate real journald read by journalctl."""

from __future__ import annotations

import array
import json
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from waiting import allow, wait_for

from slurmwrap.host.journal import MOST, Journal, encode_datagram, is_our_stderr

FORGED = "a\nPRIORITY=0\n"


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """A datagram socket in place of journald's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "socket"))
        found.settimeout(20)
        yield found


@pytest.fixture
def journal(listener: socket.socket) -> Iterator[Journal]:
    with closing(Journal(str(listener.getsockname()))) as found:
        yield found


def test_each_field_is_sent_as_a_line_and_may_occur_twice(listener: socket.socket, journal: Journal) -> None:
    assert journal.is_there()
    assert journal.send([("MESSAGE", "ok"), ("SLURM_NODE", "n1"), ("SLURM_NODE", "n2")])
    assert listener.recv(1 << 16) == b"MESSAGE=ok\nSLURM_NODE=n1\nSLURM_NODE=n2\n"


def test_a_value_with_a_line_break_is_sent_with_its_length() -> None:
    assert encode_datagram([("A", FORGED)]) == b"A\n" + struct.pack("<Q", len(FORGED)) + FORGED.encode() + b"\n"


def test_invalid_field_names_are_left_out_and_arbitrary_values_are_sent() -> None:
    assert encode_datagram([("_UID", "0"), ("lower", "x"), ("A B", "x"), ("A=1\nB", "x"), ("", "x")]) == b""
    assert encode_datagram([("A", "\udcff\x00é")]) == b"A=\\udcff\x00\xc3\xa9\n"
    assert encode_datagram([("A", "x" * (MOST + 1))]) == b"A=" + b"x" * MOST + b"\n"


def test_a_record_too_large_for_a_datagram_is_sent_as_a_sealed_file(listener: socket.socket, journal: Journal) -> None:
    fields = [(f"F{number}", "x" * MOST) for number in range(8)]
    assert journal.send(fields)
    data, ancillary, _, _ = listener.recvmsg(1 << 16, socket.CMSG_SPACE(4))
    ((_, kind, raw),) = ancillary
    descriptor = array.array("i", raw)[0]
    try:
        assert (data, kind) == (b"", socket.SCM_RIGHTS)
        with pytest.raises(PermissionError):
            os.write(descriptor, b"y")
        assert os.pread(descriptor, 1 << 20, 0) == encode_datagram(fields)
    finally:
        os.close(descriptor)


def test_without_journald_records_are_lost_and_counted(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "none"))
    assert not journal.is_there()
    assert [journal.send([("A", "1")]), journal.send([("A", "2")])] == [False, False]
    assert journal.lost == 2


def test_a_full_journald_socket_does_not_block_the_sender(listener: socket.socket, journal: Journal) -> None:
    sent = 0
    while journal.send([("A", "x")]):
        sent += 1
        assert sent < 100_000
    assert journal.lost == 1
    assert listener.recv(1 << 10) == b"A=x\n"
    assert journal.send([("A", "y")])


def test_a_restarted_journald_receives_the_next_record(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    journal = Journal(str(path))
    with closing(journal):
        for word in ("before", "after"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
                found.bind(str(path))
                assert journal.send([("A", word)])
                assert found.recv(100) == f"A={word}\n".encode()
            path.unlink()
        assert journal.lost == 0


def test_stderr_is_the_journal_only_if_journal_stream_names_the_same_file(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        found = os.fstat(file.fileno())
        named = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert is_our_stderr(named, file.fileno())
        assert not is_our_stderr({"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"}, file.fileno())
        assert not is_our_stderr({"JOURNAL_STREAM": "nonsense"}, file.fileno())
        assert not is_our_stderr({}, file.fileno())
    assert not is_our_stderr(named, file.fileno() if not file.closed else 10_000)


@pytest.fixture
def journald() -> Iterator[str]:
    """Starts a real journald as `LogNamespace=` does, and returns the name of its journal namespace."""
    program = Path("/lib/systemd/systemd-journald")
    if os.geteuid() != 0 or not program.exists() or not shutil.which("journalctl"):
        pytest.skip("a journald of its own needs root and Debian's systemd package")
    name = f"swtest{os.getpid()}"
    daemon = subprocess.Popen(
        [program, name], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        socket = Path(f"/run/systemd/journal.{name}/socket")
        if not wait_for(lambda: daemon.poll() is not None or socket.is_socket(), bool, timeout=20, pause=0.02):
            pytest.fail("journald does not answer")
        if daemon.poll() is not None:
            pytest.skip("journald does not run here")
        yield name
    finally:
        daemon.terminate()
        daemon.wait(allow(20))
        for kept in (*Path("/var/log/journal").glob(f"*.{name}"), *Path("/run/log/journal").glob(f"*.{name}")):
            shutil.rmtree(kept)
        shutil.rmtree(f"/run/systemd/journal.{name}", ignore_errors=True)


def test_a_real_journald_stores_all_fields_and_can_filter_by_them(journald: str) -> None:
    head = [("MESSAGE", "job 7"), ("PRIORITY", "4"), ("SYSLOG_IDENTIFIER", "slurmwrap")]
    with closing(Journal(f"/run/systemd/journal.{journald}/socket")) as journal:
        assert journal.send([*head, ("SLURM_NODE", "n1"), ("SLURM_NODE", "n2"), ("SLURMWRAP_ERROR", FORGED)])
        assert journal.send([*head[1:], ("MESSAGE", "job 8"), *((f"F{number}", "x" * MOST) for number in range(8))])
    argv = ["journalctl", f"--namespace={journald}", "-o", "json", "--all", "SYSLOG_IDENTIFIER=slurmwrap"]
    rows = wait_for(lambda: read_journal(argv), lambda rows: len(rows) >= 2, timeout=20)
    assert [row["MESSAGE"] for row in rows] == ["job 7", "job 8"]
    stored = {name: rows[0][name] for name in ("PRIORITY", "SLURM_NODE", "SLURMWRAP_ERROR", "_UID")}
    assert stored == {"PRIORITY": "4", "SLURM_NODE": ["n1", "n2"], "SLURMWRAP_ERROR": FORGED, "_UID": "0"}
    assert len(rows[1]["F7"]) == MOST
    assert [row["MESSAGE"] for row in read_journal([*argv, "SLURM_NODE=n2"])] == ["job 7"]


def read_journal(argv: list[str]) -> list[dict[str, object]]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=allow(30))
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
