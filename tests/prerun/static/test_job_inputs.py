"""Data files: those that a job names, their digest, and the faults that slurmwrap finds in them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from slurmwrap.prerun.static import job_inputs
from slurmwrap.sbatch.job_request import JobRequest, Script


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 5000)
        archive.writestr("archive/data/0", os.urandom(5000))
    return buffer.getvalue()


def npy(shape: str = "(100, 3)", descr: str = "<f4", extra: int = 1200) -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + b"\x01" * extra


def safetensors() -> bytes:
    header = json.dumps({"__metadata__": {"a": "b"}, "w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}})
    return struct.pack("<Q", len(header)) + header.encode() + b"\x01" * 36


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b"\0" * 13) + chunk(b"IDAT", b"\1" * 500) + chunk(b"IEND", b"")


def hdf5(size: int = 2048) -> bytes:
    head = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + b"\x04\0\x10\0" + b"\0" * 4
    return (head + struct.pack("<QQQ", 0, 2**64 - 1, 2048)).ljust(size, b"\x01")


def parquet() -> bytes:
    return b"PAR1" + b"\x01" * 500 + struct.pack("<I", 100) + b"PAR1"


JPEG = b"\xff\xd8\xff\xe0" + b"\x01" * 500 + b"\xff\xd9" + b"trailing"
WHOLE = {
    "model.pt": zipped(),
    "data.npz": zipped(),
    "data.npy": npy(),
    "objects.npy": npy(descr="|O") + b".",
    "scalar.npy": npy(shape="()", extra=4),
    "model.safetensors": safetensors(),
    "image.png": png(),
    "photo.jpg": JPEG,
    "table.parquet": parquet(),
    "data.h5": hdf5(),
    "logs.gz": gzip.compress(os.urandom(5000)),
    "config.json": b'{"a": [1, NaN]}',
    "lines.json": b'{"a": 1}\n{"a": 2}\n',
    "lines.jsonl": b'{"a": 1}\n\n{"a": 2}',
    "state.pkl": b"\x80\x04K\x01.",
}
CUT = {name: content for name, content in WHOLE.items() if name not in ("objects.npy", "lines.json")}


@pytest.mark.parametrize("name", WHOLE)
def test_a_complete_file_has_no_fault(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(WHOLE[name])
    assert job_inputs.inspect(str(tmp_path / name)) is None


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("left", [0.4, 0.7, 0.97])
def test_a_truncated_file_has_a_fault(tmp_path: Path, name: str, left: float) -> None:
    content = CUT[name].removesuffix(b"trailing")
    (tmp_path / name).write_bytes(content[: max(3, int(len(content) * left))])
    assert job_inputs.inspect(str(tmp_path / name)) is not None


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.pt", b"", "is empty"),
        ("a.txt", b"", None),
        ("a.bin", b"\0" * 4096, None),
        ("a.npy", b"\0" * 4096, "holds only zeros"),
        ("a.npy", b"x" * 4096, "does not begin like a NumPy file"),
        ("a.safetensors", b"<!DOCTYPE html><html>", "is a web page, not the data itself"),
        (
            "a.bin",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:x",
            "is a Git LFS pointer, not the data itself (git lfs pull)",
        ),
        ("a.safetensors", struct.pack("<Q", 9) + b"not json!", "is corrupt: its header is no safetensors header"),
        ("a.npz", zipped().replace(b"xxxx", b"yyyy", 1), "is corrupt: wrong checksum in 'archive/data.pkl'"),
        ("a.json", b'{"a": 1,}', "is not valid JSON: Expecting property name enclosed in double quotes: line 1"),
        ("a.jsonl", b'{"a": 1}\n{"a"', "is not valid JSON lines: line 2: Expecting ':' delimiter: line 1"),
        ("a.json", b"\xff\xfe{", None),
        ("a.py", b"\0\1\2", None),
        ("a.json", b"[" * 200_000, None),
    ],
)
def test_faults_are_described(tmp_path: Path, name: str, content: bytes, fault: str | None) -> None:
    (tmp_path / name).write_bytes(content)
    found = job_inputs.inspect(str(tmp_path / name))
    assert found == fault or (fault is not None and found is not None and found.startswith(fault))


def test_special_files_have_no_fault_and_a_missing_file_has_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    assert job_inputs.inspect(str(tmp_path / "pipe.pt")) is None
    assert job_inputs.inspect(str(tmp_path)) is None
    assert job_inputs.inspect(str(tmp_path / "none.pt")) == "does not exist"


def test_the_digest_covers_the_size_and_both_ends_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "data"
    content = bytearray(os.urandom(3 << 20))
    path.write_bytes(content)
    expected = hashlib.sha256(b"3145728\n" + content[: 1 << 20] + content[-(1 << 20) :]).hexdigest()
    assert job_inputs.digest(str(path)) == expected
    content[3 << 19] ^= 1  # the digest does not include the middle
    path.write_bytes(content)
    assert job_inputs.digest(str(path)) == expected
    content[-1] ^= 1
    path.write_bytes(content)
    assert job_inputs.digest(str(path)) != expected
    path.write_bytes(b"ab")
    assert job_inputs.digest(str(path)) == hashlib.sha256(b"2\nabab").hexdigest()


def test_named_files_come_from_the_arguments_and_the_script(tmp_path: Path) -> None:
    for name in ("train.py", "a.pt", "b.json", "c.npz", "r.json"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    options = "--cfg b.json --data=$X/c.npz --dir sub --save-results r.json --lr 0.1"
    text = f'#!/bin/bash\nX={tmp_path}\nsrun python train.py {options} "$@"\n'
    script = Script(path="j", name="j", content=text.encode())
    request = JobRequest(script=script, args=("--input", "a.pt", "missing.pt"), chdir=str(tmp_path))
    assert job_inputs.list_named_files(request) == tuple(str(tmp_path / name) for name in ("a.pt", "b.json", "c.npz"))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("srun cat data.gz | python -c 'x'", ["data.gz"]),
        ("zcat data.gz > result.txt", ["data.gz"]),
        ('D=data.gz; zcat "$D" | head', ["data.gz"]),
        ("tar xf data.tar", ["data.tar"]),
        ("tar -xzf data.tar -C sub", ["data.tar"]),
        ("tar -czf data.tar a.txt", []),
        ("cp data.tar a.txt", ["data.tar"]),
        ("dd if=data.gz of=a.txt", ["data.gz"]),
        ("sort -o result.txt a.txt", ["a.txt"]),
        ("mpirun -np 4 ./sim --input data.gz --log result.txt", ["data.gz"]),
        ("./sim < a.txt", ["a.txt"]),
        ('cd "$SLURM_SUBMIT_DIR/sub" && ./sim x.npz', ["sub/x.npz"]),
        ("if [ -f a.txt ]; then rm a.txt; touch a.txt; echo a.txt >> a.txt; fi", []),
        ("$TOOL a.txt", []),
        ("cat d\udce4ta.npz", ["d\udce4ta.npz"]),
    ],
)
def test_files_that_commands_read_are_named_and_files_they_write_are_not(
    tmp_path: Path, body: str, named: list[str]
) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("data.gz", "data.tar", "a.txt", "result.txt", "sub/x.npz", "d\udce4ta.npz"):
        (tmp_path / name).touch()
    content = f"#!/bin/bash\n{body}\n".encode(errors="surrogateescape")
    request = JobRequest(script=Script(path=None, name="s", content=content), chdir=str(tmp_path))
    found = job_inputs.list_named_files(request, {"SLURM_SUBMIT_DIR": str(tmp_path)})
    assert found == tuple(f"{tmp_path}/{name}" for name in named)
