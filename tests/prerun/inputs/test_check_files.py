"""Sound files of every format, made by the format's own writer, are sound; broken ones are found."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from data_files import SOUND

from slurmwrap.prerun.inputs import check_files
from slurmwrap.prerun.inputs.check_files import CheckStopped, FileChecker, FileFault, RateLimiter, format_fault
from slurmwrap.prerun.inputs.library_readers import LibraryReaders
from slurmwrap.prerun.inputs.opened_files import JobPython
from slurmwrap.store.sound_files import SoundFiles

HERE = JobPython(sys.executable, {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]})
# Part of the file that remains.
CUTS = (0.2, 0.5, 0.9, 0.999)
# A shortened file of these formats is as sound as the whole: nothing marks their end.
ENDLESS = ("a.dat", "b.wav", "c.pth", "b.pkl", "c.pkl")
# What a bit in the middle shows: checksums of the format itself, or compression that no longer fits.
CHECKED = ("a.zip", "b.zip", "a.gz", "a.tar.gz", "a.png", "a.npz", "b.npz", "b.parquet", "a.pt")
# The same, if the library of the format is there.
CHECKED_BY_LIBRARY = ("a.tfrecord",)


@pytest.fixture(scope="module")
def readers() -> Iterator[LibraryReaders]:
    """One child for all tests: the import of TensorFlow takes many seconds."""
    found = LibraryReaders([HERE])
    yield found
    found.close()


NO_READERS = LibraryReaders([])


def make_checker(tmp_path: Path, readers: LibraryReaders = NO_READERS, *, rate: float = 0.0) -> FileChecker:
    limiter = RateLimiter(rate, threading.Event())
    # All files are older than SETTLED_S for this checker.
    return FileChecker(known=SoundFiles(str(tmp_path / "state")), limiter=limiter, readers=readers, now=lambda: 4e9)


def check(tmp_path: Path, readers: LibraryReaders = NO_READERS, *paths: Path) -> list[FileFault]:
    summary = make_checker(tmp_path, readers).check_all({str(path): "opened" for path in paths})
    assert summary.complete
    return summary.faults


def make(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / "data"
    folder.mkdir(exist_ok=True)
    SOUND[name](folder / name)
    return folder / name


@pytest.mark.parametrize("name", SOUND)
def test_a_file_as_its_own_writer_made_it_is_sound(tmp_path: Path, readers: LibraryReaders, name: str) -> None:
    path = make(tmp_path, name)
    assert check(tmp_path, NO_READERS, path) == []
    assert check(tmp_path / "again", readers, path) == []


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", [name for name in SOUND if name not in ENDLESS])
def test_a_truncated_file_is_found(tmp_path: Path, readers: LibraryReaders, name: str, cut: float) -> None:
    path = make(tmp_path, name)
    raw = path.read_bytes()
    # Padding at the end of an archive is no part of it.
    content = len(raw.rstrip(b"\0")) if name.endswith((".tar", ".gz")) else len(raw)
    path.write_bytes(raw[: int(content * cut)])
    if name == "a.jpg" and cut == 0.999:
        path.write_bytes(raw[:-2])
    found = check(tmp_path, readers, path)
    assert found, f"{int(content * cut)} of {len(raw)} bytes"
    assert found[0].text


@pytest.mark.parametrize("name", CHECKED + CHECKED_BY_LIBRARY)
def test_a_changed_byte_is_found_where_the_format_has_checksums(
    tmp_path: Path, readers: LibraryReaders, name: str
) -> None:
    path = make(tmp_path, name)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 0x40
    path.write_bytes(raw)
    found = check(tmp_path, readers, path)
    assert [fault.certain for fault in found] == [True]


@pytest.mark.parametrize("name", ["a.h5", "b.hdf5"])
def test_a_changed_byte_in_a_compressed_dataset_is_found_by_h5py(
    tmp_path: Path, readers: LibraryReaders, name: str
) -> None:
    path = make(tmp_path, name)
    with pytest.importorskip("h5py").File(path) as file:
        at = file["deep/zipped"].id.get_chunk_info(1).byte_offset + 40
    raw = bytearray(path.read_bytes())
    raw[at : at + 8] = bytes(8)
    path.write_bytes(raw)
    found = check(tmp_path, readers, path)
    assert found
    assert found[0].certain


@pytest.mark.parametrize("suffix", [".npy", ".jpg", ".png", ".tar", ".h5", ".parquet", ".safetensors", ".flac", ".pt"])
def test_an_empty_file_a_web_page_and_a_pointer_of_git_lfs_are_found(tmp_path: Path, suffix: str) -> None:
    texts = {
        "empty": b"",
        "page": b"\n<!DOCTYPE html><html><body>404 Not Found</body></html>",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n",
    }
    paths = [tmp_path / f"{name}{suffix}" for name in texts]
    for path, content in zip(paths, texts.values(), strict=True):
        path.write_bytes(content)
    if suffix == ".jpg":
        paths[1] = paths[1].rename(tmp_path / "page.jpg")
    found = {Path(fault.path).stem: fault for fault in check(tmp_path, NO_READERS, *paths)}
    assert {name: fault.text for name, fault in found.items()} == {
        "empty": "is empty",
        "page": "is a web page, not the data itself",
        "pointer": "is a Git LFS pointer, not the data itself (git lfs pull)",
    }
    assert found["pointer"].certain
    assert found["empty"].certain


def test_files_whose_suffix_names_another_format_are_no_certain_fault(tmp_path: Path) -> None:
    (tmp_path / "old.gz").write_bytes(b"x\x9c" + bytes(range(256)))
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "comments.json").write_text('{"lr": 1, // rate\n}')
    found = check(tmp_path, NO_READERS, *tmp_path.iterdir())
    assert {Path(fault.path).name for fault in found} == {"old.gz", "empty.csv", "comments.json"}
    assert not any(fault.certain for fault in found)


def test_a_jpeg_without_its_end_mark_counts_only_if_the_decoder_refuses_it(
    tmp_path: Path, readers: LibraryReaders
) -> None:
    path = make(tmp_path, "a.jpg")
    path.write_bytes(path.read_bytes()[:-40_00])
    assert [fault.certain for fault in check(tmp_path, NO_READERS, path)] == [False]
    assert [fault.certain for fault in check(tmp_path / "again", readers, path)] == [True]


def test_a_broken_sample_inside_a_shard_is_named(tmp_path: Path) -> None:
    path = make(tmp_path, "web-000.tar")
    raw = path.read_bytes()
    end = raw.index(b"\xff\xd9")
    path.write_bytes(raw[:end] + b"\0\0" + raw[end + 2 :])
    (fault,) = check(tmp_path, NO_READERS, path)
    assert fault.text == "holds a broken sample: 000000.jpg is truncated: no end-of-image marker"
    assert not fault.certain


def test_a_file_found_sound_is_not_read_again_by_another_job_until_it_changes(tmp_path: Path) -> None:
    path = make(tmp_path, "a.zip")
    first = make_checker(tmp_path)
    assert first.check_all({str(path): ""}).read == 1
    first.known.flush()  # type: ignore[attr-defined]
    again = make_checker(tmp_path).check_all({str(path): ""})
    assert (again.known, again.read, again.bytes) == (1, 0, 0)
    os.utime(path, ns=(1, 2))
    assert make_checker(tmp_path).check_all({str(path): ""}).read == 1


def test_a_file_that_vanishes_or_changes_meanwhile_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grows, gone = tmp_path / "grows.npy", tmp_path / "gone.npy"
    for path in (grows, gone):
        path.write_bytes(b"\x93NUMPY\x01\x00")
    plain = check_files.find_format_fault

    def find(stream: object, size: int, suffix: str, cap: int) -> str | None:
        found = plain(stream, size, suffix, cap)  # type: ignore[arg-type]
        grows.write_bytes(b"\x93NUMPY\x01\x00" + bytes(size))
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(check_files, "find_format_fault", find)
    monkeypatch.setattr(check_files, "find_content_fault", lambda stream, size, suffix: None)
    assert check(tmp_path, NO_READERS, grows, gone, tmp_path / "missing.npy") == []


def test_a_file_that_was_just_written_is_checked_again_when_it_has_settled(tmp_path: Path) -> None:
    path = make(tmp_path, "a.npy")
    raw = path.read_bytes()
    path.write_bytes(raw[:1000])
    times = [path.stat().st_mtime + 1]
    checker = make_checker(tmp_path)
    checker.now = lambda: times[0]
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        times[0] += seconds
        os.utime(path, (times[0] - 100, times[0] - 100))

    checker.limiter.sleep = sleep
    assert len(checker.check_all({str(path): ""}).faults) == 1
    assert slept == [pytest.approx(59.0)]


def test_a_fifo_a_directory_and_a_device_are_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "folder.npy").mkdir()
    assert check(tmp_path, NO_READERS, tmp_path / "pipe.npy", tmp_path / "folder.npy", Path("/dev/null")) == []


def test_an_input_output_error_is_found_and_no_permission_is_only_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path, "a.dat")

    def fail(stream: object, size: int, suffix: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(check_files, "find_content_fault", fail)
    (fault,) = check(tmp_path, NO_READERS, path)
    assert (fault.text, fault.certain) == ("cannot be read: Input/output error", True)
    refused = check_files._describe_open_error(PermissionError(13, "Permission denied"))
    assert not isinstance(refused, str)
    assert not refused.certain


def test_the_rate_of_all_reads_together_is_limited(tmp_path: Path) -> None:
    times = [100.0]
    limiter = RateLimiter(1000.0, threading.Event(), lambda: times[0], lambda s: times.__setitem__(0, times[0] + s))
    for _ in range(50):
        limiter.take(100)
    assert times[0] - 100.0 == pytest.approx(5.0)
    limiter.stop.set()
    with pytest.raises(CheckStopped):
        limiter.take(1)


def test_the_check_ends_within_a_file_when_it_is_stopped(tmp_path: Path) -> None:
    path = make(tmp_path, "a.dat")
    checker = make_checker(tmp_path)
    checker.limiter.stop.set()
    assert not checker.check_all({str(path): ""}).complete


def test_a_library_that_crashes_or_is_missing_proves_nothing(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o755)
    crashing = LibraryReaders([JobPython(str(program), {})])
    assert crashing.read("x", "image", 1) == ("unavailable", "")
    assert not LibraryReaders([JobPython("/nonexistent/python", {})]).has("image")
    (tmp_path / "PIL.py").write_text("raise ImportError('not here')")
    bare = LibraryReaders([JobPython(sys.executable, {"PYTHONPATH": str(tmp_path)})])
    assert bare.read(str(tmp_path / "missing.png"), "image", 1) == ("unavailable", "")
    assert not bare.has("image"), "it is not asked again"
    assert bare.read(str(tmp_path / "x"), "no such reader", 1) == ("unavailable", "KeyError")
    assert bare.has("no such reader")
    bare.close()


def test_a_fault_is_described_with_file_and_place() -> None:
    fault = FileFault(path="/home/ada/run/data/a.npy", text="is truncated", offset=12345)
    assert format_fault(fault, "/home/ada/run") == "data/a.npy is truncated (at byte 12,345)"
