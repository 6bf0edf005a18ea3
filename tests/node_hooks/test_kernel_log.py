"""Reading a kernel log from a mark on: the real /dev/kmsg where permitted, and files that grow or are replaced."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.node_hooks import kernel_log


def read_lines(source: str, mark: dict[str, object] | None, at: float | None = None) -> list[str]:
    return [text for text, _ in kernel_log.since(source, mark, at, time.monotonic() + allow(5)).lines]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text("before\n")
    return path


def test_only_lines_after_the_mark_are_read(log: Path) -> None:
    mark = kernel_log.mark(f"file:{log}")
    log.write_text("before\nafter 1\n\nafter \x1b[31m2\n")
    assert read_lines(f"file:{log}", mark) == ["after 1", "after \x1b[31m2"]


def test_a_replaced_or_truncated_file_is_read_from_its_start(log: Path) -> None:
    mark = kernel_log.mark(f"file:{log}")
    log.write_text("cut\n")
    assert read_lines(f"file:{log}", mark) == ["cut"]
    replaced = log.with_name("new")
    replaced.write_text("a replaced file, longer than the old one\n")
    replaced.rename(log)
    assert read_lines(f"file:{log}", mark) == ["a replaced file, longer than the old one"]


def test_a_file_that_appears_later_is_read_whole_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    source = f"file:{tmp_path / 'kmsg'}"
    mark = kernel_log.mark(source)
    assert read_lines(source, mark) == []
    (tmp_path / "kmsg").write_text("first\n")
    assert read_lines(source, mark) == ["first"]


def test_of_a_flood_only_the_last_mebibyte_is_read(log: Path) -> None:
    mark = kernel_log.mark(f"file:{log}")
    log.write_text("x" * 99 + "\n" + ("y" * 99 + "\n") * 30_000 + "last\n")
    found = kernel_log.since(f"file:{log}", mark, None, time.monotonic() + allow(5))
    assert sum(len(line) + 1 for line, _ in found.lines) == 1 << 20 and found.lines[-1][0] == "last"
    assert found.lost == "more than 1048576 bytes: lines lost"


def test_without_a_mark_no_line_is_attributed_to_the_job(log: Path) -> None:
    assert read_lines(f"file:{log}", None, at=time.time()) == []
    assert read_lines(kernel_log.KMSG, None) == []


def test_a_mark_of_another_source_is_ignored(log: Path) -> None:
    assert read_lines(f"file:{log}", {"source": "/dev/kmsg", "seq": 0}) == []


def test_a_link_or_a_fifo_is_not_a_kernel_log(tmp_path: Path, log: Path) -> None:
    (tmp_path / "link").symlink_to(log)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        assert kernel_log.mark(f"file:{tmp_path / name}") is None
        with pytest.raises(OSError, match=r"symbolic|regular"):
            read_lines(f"file:{tmp_path / name}", {"source": f"file:{tmp_path / name}", "inode": 0, "offset": 0})


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("[12345.678901] NVRM: Xid", "NVRM: Xid"),
        ("[    0.000000] Linux version", "Linux version"),
        ("<4>[   12.5] nfs: server a OK", "nfs: server a OK"),
        ("Nov 20 12:00:01 n3 kernel: [12345.6] NVRM: Xid", "NVRM: Xid"),
        ("Nov  2 12:00:01 n3 kernel: NVRM: Xid", "NVRM: Xid"),
        ("2026-11-20T12:00:01.123456+00:00 n3 kernel: NVRM: Xid", "NVRM: Xid"),
        ("NVRM: Xid (PCI:0000:05:00): 79", "NVRM: Xid (PCI:0000:05:00): 79"),
        ("Nov 20 12:00:01 n3 sshd[1]: NVRM: Xid", "Nov 20 12:00:01 n3 sshd[1]: NVRM: Xid"),
    ],
)
def test_the_prefixes_of_dmesg_and_syslog_are_removed(line: str, text: str) -> None:
    assert kernel_log.strip_prefix(line) == text


@pytest.mark.parametrize(
    ("record", "parsed"),
    [
        (b"6,344,1320147,-;NVRM: Xid\n SUBSYSTEM=pci\n DEVICE=+pci\n", (344, 1.320147, "NVRM: Xid")),
        (b"6,344,1320147,-,caller=T1;text; with semicolon\n", (344, 1.320147, "text; with semicolon")),
        (b"4,1,0,c;\xff\n", (1, 0.0, "\ufffd")),
        (b"12,1,0,-;NVRM: Xid written by a program: facility 1\n", None),
        (b"30,1,0,-;systemd\n", None),
        (b"garbage", None),
    ],
)
def test_records_of_dev_kmsg_are_parsed(record: bytes, parsed: tuple[int, float, str] | None) -> None:
    assert kernel_log.parse_record(record) == parsed


def make_record(sequence: int, text: str) -> bytes:
    return b"6,%d,%d,-;%s\n" % (sequence, sequence * 1000, text.encode())


class Ring:
    """/dev/kmsg as read(2) returns it: one record per call, EPIPE after an overrun, EAGAIN at the end."""

    def __init__(self, *answers: bytes | type[OSError]) -> None:
        self.answers = list(answers)

    def read(self) -> bytes:
        answer = self.answers.pop(0) if self.answers else BlockingIOError
        if isinstance(answer, bytes):
            return answer
        raise answer


def read_ring(after: int, *answers: bytes | type[OSError]) -> tuple[list[str], str]:
    found = kernel_log._kmsg(kernel_log.records(Ring(*answers).read), {"boot": kernel_log.boot(), "seq": after}, None)
    return [text for text, _ in found.lines], found.lost


def test_records_before_the_mark_are_not_read() -> None:
    assert read_ring(5, make_record(4, "old"), make_record(5, "old"), make_record(6, "new")) == (["new"], "")


def test_a_ring_that_wrapped_past_the_mark_reports_lost_lines() -> None:
    assert read_ring(5, make_record(9, "a"), make_record(10, "b")) == (
        ["a", "b"],
        "the kernel's ring buffer wrapped: lines lost",
    )


def test_records_overwritten_during_the_read_are_reported_as_lost() -> None:
    found = read_ring(5, make_record(6, "a"), BrokenPipeError, make_record(20, "b"))
    assert found == (["a", "b"], "the kernel's ring buffer wrapped: lines lost")


def test_a_ring_without_new_records_reports_no_loss() -> None:
    assert read_ring(5, make_record(4, "old"), make_record(5, "old")) == ([], "")
    assert read_ring(5) == ([], "")


def test_with_a_mark_of_an_earlier_boot_the_whole_ring_is_read() -> None:
    found = kernel_log._kmsg(
        kernel_log.records(Ring(make_record(900, "a")).read), {"boot": "another", "seq": 99_999}, None
    )
    assert ([text for text, _ in found.lines], found.lost) == (["a"], "")


# A real journalctl needs journald; this stand-in prints the same format and records its arguments.
JOURNALCTL = """#!/bin/sh
echo "$@" >{asked}
cat <<'END'
[  100.000001] n0 kernel: before
[  200.500000] n0 kernel: NVRM: Xid (PCI:0000:05:00): 79, x
[  200.600000] n0 systemd[1]: NVRM: not the kernel's word
                              a second line
[  200.700000] n0 kernel: after
END
"""


@pytest.fixture
def journalctl(tmp_path: Path) -> Path:
    path = tmp_path / "journalctl"
    path.write_text(JOURNALCTL.format(asked=tmp_path / "asked"))
    path.chmod(0o755)
    return path


def read_journal(program: Path, marked: dict[str, object], at: float | None) -> list[str]:
    found = kernel_log._journal(marked, at, time.monotonic() + 5, (str(program),))
    return [text for text, _ in found.lines]


def requested_since(program: Path) -> float:
    words = program.with_name("asked").read_text().split()
    return float(next(word for word in words if word.startswith("--since=@"))[len("--since=@") :])


@pytest.mark.parametrize("jump", [-86400.0, 0.0, 86400.0])
def test_the_journal_is_read_from_the_mark_even_if_the_clock_jumped(journalctl: Path, jump: float) -> None:
    """The mark's wall time was taken before the jump; the monotonic clock does not jump."""
    elapsed = time.clock_gettime(time.CLOCK_MONOTONIC) - 150.0
    mark = {"source": "journal", "boot": kernel_log.boot(), "monotonic": 150.0}
    found = read_journal(journalctl, mark, time.time() - elapsed - jump)
    assert found == ["NVRM: Xid (PCI:0000:05:00): 79, x", "after"]
    assert requested_since(journalctl) <= time.time() - elapsed + 1


def test_after_a_reboot_the_whole_journal_of_this_boot_is_read(journalctl: Path) -> None:
    mark = {"source": "journal", "boot": "another", "monotonic": 150.0}
    assert read_journal(journalctl, mark, time.time()) == ["before", "NVRM: Xid (PCI:0000:05:00): 79, x", "after"]


def test_a_hanging_journalctl_raises_an_error_at_the_deadline(journalctl: Path) -> None:
    journalctl.write_text("#!/bin/sh\nkill -STOP $$\n")
    with pytest.raises(OSError, match="journalctl was late"):
        kernel_log._journal({}, time.time(), time.monotonic() + 0.3, (str(journalctl),))


@pytest.mark.skipif(not os.access(kernel_log.KMSG, os.R_OK) or os.geteuid() != 0, reason="needs root and /dev/kmsg")
def test_a_line_that_a_program_writes_to_dev_kmsg_moves_the_mark_and_is_dropped() -> None:
    before = kernel_log.mark(kernel_log.KMSG)
    if before is None:
        pytest.skip("/dev/kmsg cannot be read here")
    with open(kernel_log.KMSG, "wb", buffering=0) as stream:  # noqa: PTH123 - one write, one record
        stream.write(b"slurmwrap test: NVRM: Xid (PCI:0000:05:00): 79\n")
    after = kernel_log.mark(kernel_log.KMSG)
    assert after is not None and after["boot"] == before["boot"] and after["seq"] > before["seq"]
    raw = [record for record in kernel_log._ring() if b"slurmwrap test: NVRM" in record]
    assert raw and int(raw[-1].split(b",")[0]) >> 3 != 0
    assert not any("slurmwrap test" in line for line in read_lines(kernel_log.KMSG, before))
