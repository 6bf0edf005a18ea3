"""Find truncated and corrupt data files by their magic numbers and headers. Bounded reads, standard library only.

Every check returns None unless the file contradicts itself: its own header promises bytes that do not exist.
Sources: APPNOTE.TXT (zip), RFC 1952 (gzip), numpy.lib.format, the safetensors README, PNG and HDF5 specifications.
"""

from __future__ import annotations

import ast
import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import IO

MIB = 1 << 20
# Bytes that one check reads at most.
READ_CAP = 64 * MIB
# Checksums are verified if all members of a zip file together have at most this size.
_ZIP_CRC_CAP = 16 * MIB
# Formats with a magic number of their own. _DATA_SUFFIXES adds others in which an empty file is certainly wrong.
_SUFFIXES_WITH_MAGIC = frozenset(
    (
        *(".npy", ".npz", ".safetensors", ".parquet", ".h5", ".hdf5", ".png", ".jpg", ".jpeg", ".gz", ".tgz", ".zip"),
        *(".flac", ".wav", ".feather"),
    )
)
_DATA_SUFFIXES = _SUFFIXES_WITH_MAGIC | {
    ".pt",
    ".pth",
    ".ckpt",
    ".bin",
    ".pkl",
    ".pickle",
    ".json",
    ".jsonl",
    ".ndjson",
    ".arrow",
    ".tfrecord",
    ".tfrecords",
    ".tar",
    ".csv",
}


def find_format_fault(stream: IO[bytes], size: int, suffix: str, cap: int = READ_CAP) -> str | None:
    """Return what is wrong with the file of `size` bytes open in `stream`. `suffix` is in lower case with its dot.

    `cap`: the bytes that a check may read which reads the whole content; with 0 only headers and ends are read.
    """
    if size == 0:
        return "is empty" if suffix in _DATA_SUFFIXES else None
    head = stream.read(64)
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return "is a Git LFS pointer, not the data itself (git lfs pull)"
    if suffix in _SUFFIXES_WITH_MAGIC | {".pt", ".pth"} and head.strip(b"\0") == b"":
        return _find_zeros(stream, size)
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html")) and suffix in _DATA_SUFFIXES:
        return "is a web page, not the data itself"
    check = _select_check_by_magic(head) or _BY_SUFFIX.get(suffix)
    if check is None:
        return _find_wrong_magic(head, suffix)
    stream.seek(0)
    return check(stream, size, cap)


def _select_check_by_magic(head: bytes) -> Callable[[IO[bytes], int, int], str | None] | None:
    return next((check for magic, check in _MAGIC if head.startswith(magic)), None)


def _find_wrong_magic(head: bytes, suffix: str) -> str | None:
    expected = {".npy": "NumPy", ".npz": "zip", ".parquet": "Parquet", ".png": "PNG", ".gz": "gzip", ".zip": "zip"}
    # An empty or split archive begins in another way than _MAGIC.
    if head.startswith(b"PK"):
        return None
    return f"does not begin like a {expected[suffix]} file" if suffix in expected else None


def _find_zeros(stream: IO[bytes], size: int) -> str | None:
    stream.seek(max(0, size - 64))
    return "holds only zeros" if size <= 64 or stream.read(64).strip(b"\0") == b"" else None


def _check_zip(stream: IO[bytes], size: int, cap: int) -> str | None:
    try:
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            last = max((m.header_offset + m.compress_size for m in members), default=0)
            if last > size:
                return "is truncated: its zip directory names bytes beyond its end"
            small = sum(m.file_size for m in members) <= min(cap, _ZIP_CRC_CAP)
            bad = archive.testzip() if small else None
            return f"is corrupt: wrong checksum in '{bad}'" if bad else None
    except zipfile.BadZipFile as error:
        return f"is truncated or corrupt: {str(error)[:1].lower()}{str(error)[1:]}"
    except (zlib.error, EOFError, struct.error, ValueError) as error:
        return f"is corrupt: {error}"
    except (NotImplementedError, RuntimeError):
        # This Python lacks the compression method, or the archive has a password.
        return None


def _check_gzip(stream: IO[bytes], size: int, cap: int) -> str | None:
    unpacker, seen = zlib.decompressobj(wbits=31), 0
    while seen < cap and (chunk := stream.read(MIB)):
        seen += len(chunk)
        try:
            while chunk:
                unpacker.decompress(chunk, 4 * MIB)
                chunk = unpacker.unconsumed_tail
                if unpacker.eof:
                    # The first member is complete; more may follow.
                    return None
        except zlib.error as error:
            return f"is corrupt: {error}"
    return "is truncated: the gzip stream does not end" if seen >= size else None


def _check_npy(stream: IO[bytes], size: int, cap: int) -> str | None:
    head = stream.read(12)
    if len(head) < 12:
        return "is truncated inside its header"
    wide = head[6] >= 2
    length = int.from_bytes(head[8:12] if wide else head[8:10], "little")
    start = (12 if wide else 10) + length
    stream.seek(12 if wide else 10)
    text = stream.read(min(length, MIB)).decode("latin-1")
    if size < start:
        return "is truncated inside its header"
    try:
        header = ast.literal_eval(text)
        item, shape = str(header["descr"]), tuple(header["shape"])
        promised = start + math.prod(shape) * _parse_item_bytes(item)
        if item == "|O" and size > start:
            # Objects are a pickle.
            return _check_pickle(stream, size, cap)
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        return None
    return f"is truncated: {size} bytes, its header promises {promised}" if size < promised else None


def _parse_item_bytes(descr: str) -> int:
    found = re.fullmatch(r"[<>|=]?([biufcSVM?])(\d+)(\[.*\])?", descr)
    # Objects and structures promise no fixed number of bytes.
    return int(found[2]) if found else 0


def _check_safetensors(stream: IO[bytes], size: int, cap: int) -> str | None:
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > size - 8:
        return f"is truncated: {size} bytes, its header alone promises {8 + length}"
    if length > READ_CAP:
        return None
    try:
        header = json.loads(stream.read(length))
        ends = [int(v["data_offsets"][1]) for k, v in header.items() if k != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return "is corrupt: its header is no safetensors header"
    promised = 8 + length + max(ends, default=0)
    return f"is truncated: {size} bytes, its header promises {promised}" if size < promised else None


def _check_json(stream: IO[bytes], size: int, cap: int) -> str | None:
    if size > cap:
        return None
    raw = stream.read(size)
    try:
        json.loads(raw)
    except UnicodeDecodeError:
        return None
    except ValueError as error:
        # The file may contain JSON lines under the name .json.
        whole = _check_lines(raw) if "Extra data" in str(error) else str(error)
        return f"is not valid JSON: {whole}" if whole else None
    except RecursionError:
        return None
    return None


def _check_json_lines(stream: IO[bytes], size: int, cap: int) -> str | None:
    if size > cap:
        return None
    wrong = _check_lines(stream.read(size))
    return f"is not valid JSON lines: {wrong}" if wrong else None


def _check_lines(raw: bytes) -> str | None:
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            if line.strip():
                json.loads(line)
        except UnicodeDecodeError:
            return None
        except (ValueError, RecursionError) as error:
            return f"line {number}: {error}"
    return None


def _check_png(stream: IO[bytes], size: int, cap: int) -> str | None:
    at = 8
    for _ in range(100_000):
        stream.seek(at)
        head = stream.read(8)
        if len(head) < 8:
            return "is truncated: no IEND chunk"
        at += 12 + int.from_bytes(head[:4], "big")
        if at > size:
            return "is truncated inside a chunk"
        if head[4:] == b"IEND":
            return None
    return None


def _check_jpeg(stream: IO[bytes], size: int, cap: int) -> str | None:
    if size > cap:
        return None
    raw = stream.read(size)
    # A preview inside an application segment ends like an image, so the search begins with the image's own data.
    at = 2
    while raw[at : at + 1] == b"\xff" and raw[at + 1 : at + 2] not in (b"\xda", b"\xd9", b""):
        if raw[at + 1 : at + 2] == b"\xff":
            at += 1
            continue
        at += 2 + max(2, int.from_bytes(raw[at + 2 : at + 4], "big"))
        if at > size:
            return "is truncated inside a segment of its header"
    return None if raw.find(b"\xff\xd9", at) >= 0 else "is truncated: no end-of-image marker"


def _check_parquet(stream: IO[bytes], size: int, cap: int) -> str | None:
    if size < 12:
        return "is truncated: shorter than a Parquet footer"
    stream.seek(size - 8)
    tail = stream.read(8)
    if tail[4:] not in (b"PAR1", b"PARE"):
        return "is truncated: no Parquet footer"
    return "is corrupt: its footer is longer than the file" if int.from_bytes(tail[:4], "little") > size - 12 else None


def _check_hdf5(stream: IO[bytes], size: int, cap: int) -> str | None:
    head = stream.read(64)
    if len(head) < 48:
        return "is truncated inside its superblock"
    version = head[8]
    # Offsets of base address and end-of-file address for the usual 8-byte offsets, by superblock version.
    width, base, end = (head[9], 12, 28) if version >= 2 else (head[13], 24 + 4 * version, 40 + 4 * version)
    if width != 8 or version > 3 or any(head[base : base + 8]):
        return None
    promised = int.from_bytes(head[end : end + 8], "little")
    return f"is truncated: {size} bytes, its superblock promises {promised}" if size < promised < 1 << 62 else None


def _check_pickle(stream: IO[bytes], size: int, cap: int) -> str | None:
    stream.seek(size - 1)
    return None if stream.read(1) == b"." else "is truncated: the pickle does not end with STOP"


_MAGIC: tuple[tuple[bytes, Callable[[IO[bytes], int, int], str | None]], ...] = (
    (b"PK\x03\x04", _check_zip),
    (b"\x1f\x8b", _check_gzip),
    (b"\x93NUMPY", _check_npy),
    (b"\x89PNG\r\n\x1a\n", _check_png),
    (b"\xff\xd8\xff", _check_jpeg),
    (b"PAR1", _check_parquet),
    (b"\x89HDF\r\n\x1a\n", _check_hdf5),
)
_BY_SUFFIX = {
    ".safetensors": _check_safetensors,
    ".json": _check_json,
    ".jsonl": _check_json_lines,
    ".ndjson": _check_json_lines,
    ".pkl": _check_pickle,
    ".pickle": _check_pickle,
}
