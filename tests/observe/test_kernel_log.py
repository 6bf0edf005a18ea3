"""Reading a node's kernel log from a mark on: the real /dev/kmsg where we may, files as they grow and are replaced."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurmwrap.observe import kernel


def lines(source: str, mark: dict[str, object] | None, at: float | None = None) -> list[str]:
    return [text for text, _ in kernel.since(source, mark, at, time.monotonic() + 5)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text("before\n")
    return path


def test_only_lines_after_the_mark_are_read(log: Path) -> None:
    mark = kernel.mark(f"file:{log}")
    log.write_text("before\nafter 1\n\nafter \x1b[31m2\n")
    assert lines(f"file:{log}", mark) == ["after 1", "after \x1b[31m2"]


def test_a_replaced_or_cut_file_is_read_from_its_start(log: Path) -> None:
    mark = kernel.mark(f"file:{log}")
    log.write_text("cut\n")
    assert lines(f"file:{log}", mark) == ["cut"]
    replaced = log.with_name("new")
    replaced.write_text("a replaced file, longer than the old one\n")
    replaced.rename(log)
    assert lines(f"file:{log}", mark) == ["a replaced file, longer than the old one"]


def test_a_file_that_appears_later_is_read_whole_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    source = f"file:{tmp_path / 'kmsg'}"
    mark = kernel.mark(source)
    assert lines(source, mark) == []
    (tmp_path / "kmsg").write_text("first\n")
    assert lines(source, mark) == ["first"]


def test_a_flood_costs_its_beginning(log: Path) -> None:
    mark = kernel.mark(f"file:{log}")
    log.write_text("x" * 99 + "\n" + ("y" * 99 + "\n") * 30_000 + "last\n")
    found = lines(f"file:{log}", mark)
    assert sum(len(line) + 1 for line in found) == 1 << 20 and found[-1] == "last"


def test_without_a_mark_nothing_is_attributed_to_the_job(log: Path) -> None:
    assert lines(f"file:{log}", None, at=time.time()) == []
    assert lines(kernel.KMSG, None) == []


def test_a_mark_of_another_source_is_no_mark(log: Path) -> None:
    assert lines(f"file:{log}", {"source": "/dev/kmsg", "seq": 0}) == []


def test_a_link_or_a_fifo_is_not_a_kernel_log(tmp_path: Path, log: Path) -> None:
    (tmp_path / "link").symlink_to(log)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        assert kernel.mark(f"file:{tmp_path / name}") is None
        with pytest.raises(OSError, match=r"symbolic|regular"):
            lines(f"file:{tmp_path / name}", {"source": f"file:{tmp_path / name}", "inode": 0, "offset": 0})


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
def test_what_dmesg_and_syslog_put_before_a_line_is_removed(line: str, text: str) -> None:
    assert kernel.strip_prefix(line) == text


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
def test_records_of_dev_kmsg(record: bytes, parsed: tuple[int, float, str] | None) -> None:
    assert kernel.parse_record(record) == parsed


@pytest.mark.skipif(not os.access(kernel.KMSG, os.R_OK) or os.geteuid() != 0, reason="needs root and /dev/kmsg")
def test_a_line_that_a_program_writes_to_the_real_log_moves_the_mark_and_is_not_the_kernels_word() -> None:
    before = kernel.mark(kernel.KMSG)
    if before is None:
        pytest.skip("/dev/kmsg cannot be read here")
    with open(kernel.KMSG, "wb", buffering=0) as stream:  # noqa: PTH123 - one write, one record
        stream.write(b"slurmwrap test: NVRM: Xid (PCI:0000:05:00): 79\n")
    after = kernel.mark(kernel.KMSG)
    assert after is not None and after["boot"] == before["boot"] and after["seq"] > before["seq"]
    raw = [record for record in kernel._records() if b"slurmwrap test: NVRM" in record]
    assert raw and int(raw[-1].split(b",")[0]) >> 3 != 0
    assert not any("slurmwrap test" in line for line in lines(kernel.KMSG, before))
