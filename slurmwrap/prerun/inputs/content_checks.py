"""Read a data file completely and check what its format allows to check. Standard library only.

Structure comes from static/file_formats.py. Here are the checks that need the whole file: checksums of zip, gzip, PNG
and TFRecord, the headers of tar with the samples of webdataset inside, the messages of arrow, and the ends of FLAC and
WAV. A file of another format is read to its end, so that an input/output error shows.

Sources: APPNOTE.TXT (zip), RFC 1952 (gzip), the PNG specification, POSIX pax (tar), Arrow's columnar format,
TensorFlow's record_writer.h, RFC 9639 (FLAC), Microsoft's RIFF description.
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import IO

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.static.file_formats import MIB, find_format_fault

# A sample inside a tar file is checked up to this size.
_MEMBER_CAP = 16 * MIB
_PICKLE_CAP = 256 * MIB
_MEMBER_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".npy", ".npz", ".json", ".flac", ".wav"))
_NEVER_EMPTY = frozenset(
    (
        *(".npy", ".npz", ".safetensors", ".parquet", ".h5", ".hdf5", ".png", ".jpg", ".jpeg", ".gz", ".tgz", ".zip"),
        *(".flac", ".wav", ".feather", ".arrow", ".pt", ".pth", ".ckpt", ".tar"),
    )
)
_ZIP_SUFFIXES = (".zip", ".npz", ".pt", ".pth")
_BLOCK = 512
# Bytes of missing samples that make a WAV file truncated: writers disagree about the last padding bytes.
_WAV_SLACK = 16
# Bytes at the end of a FLAC file in which its last frame begins: the largest frame of 8 channels of 32 bits.
_FLAC_TAIL = 4 * MIB


@dataclass(frozen=True, slots=True)
class ContentFault:
    """What is wrong with a file. `text` follows the file's name in a sentence; `offset` in bytes, None if unknown.

    `certain` False: some readers accept such a file, so one of them has to refuse it before it counts.
    """

    text: str
    offset: int | None = None
    certain: bool = True


Check = Callable[[IO[bytes], int], "ContentFault | None"]


def find_content_fault(stream: IO[bytes], size: int, suffix: str) -> ContentFault | None:
    """Read the file of `size` bytes open in `stream` to its end and return what is wrong with it; None if nothing is.

    `suffix`: in lower case with its dot. Raise OSError if a read fails.
    """
    head = stream.read(_BLOCK)
    stream.seek(0)
    check = _select_check(head, suffix)
    if check is not None and not _is_placeholder(head, size):
        return check(stream, size)
    text = find_format_fault(stream, size, suffix)
    stream.seek(0)
    _read_rest(stream)
    return ContentFault(text, certain=is_certain(text, suffix)) if text else None


def is_certain(text: str, suffix: str) -> bool:
    """Return whether the fault `text` of find_format_fault stops every program that reads the file.

    An empty list, table or record file may be meant; a name may have the suffix of another format; JSON is read by
    parsers with extensions of their own; decoders accept a JPEG without its last two bytes.
    """
    if text == "is empty":
        return suffix in _NEVER_EMPTY
    if "not the data itself" in text:
        return True
    if "does not end with STOP" in text:
        # Other data may follow a pickle, and a library may compress it.
        return False
    return not text.startswith("does not begin like") and suffix not in (".json", ".csv", ".jpg", ".jpeg")


def _is_placeholder(head: bytes, size: int) -> bool:
    """Return whether the file is empty, zeros, a web page or a Git LFS pointer: find_format_fault describes these."""
    start = head[:64].lstrip().lower()
    return size == 0 or not head[:64].strip(b"\0") or start.startswith((b"<!doctype html", b"<html", b"version https:"))


def _select_check(head: bytes, suffix: str) -> Check | None:
    for magic, check in _MAGIC:
        if head.startswith(magic):
            return check
    if head[257:262] == b"ustar" or (suffix == ".tar" and _parse_tar_header(head) is not None):
        return _check_tar
    if is_tfrecord(head):
        return _check_tfrecord
    if suffix in _ZIP_SUFFIXES and not head.startswith((b"\x80", b"PK")) and head.strip(b"\0"):
        # A program that unpacks itself, or another file, may precede the archive; else _check_zip reports nothing.
        return _check_prefixed_zip
    if head[:4] == b"\xff\xff\xff\xff" and suffix in (".arrow", ".arrows", ".feather", ".ipc"):
        return _check_arrow_stream
    if suffix in (".pkl", ".pickle"):
        return _check_pickle
    return _check_json_lines if suffix in (".jsonl", ".ndjson") else None


def _read_rest(stream: IO[bytes]) -> int:
    """Read to the end and return the number of bytes."""
    count = 0
    while chunk := stream.read(MIB):
        count += len(chunk)
    return count


def _skip(stream: IO[bytes], count: int) -> int:
    """Read `count` bytes and drop them. Return how many there were."""
    left = count
    while left and (chunk := stream.read(min(left, MIB))):
        left -= len(chunk)
    return count - left


def _check_zip(stream: IO[bytes], size: int) -> ContentFault | None:
    try:
        with zipfile.ZipFile(stream) as archive:
            for member in archive.infolist():
                if member.header_offset + member.compress_size > size:
                    return ContentFault("is truncated: its zip directory names bytes beyond its end", size)
            for member in archive.infolist():
                # Encrypted, or compressed by a method that this Python lacks.
                if member.flag_bits & 1 or member.compress_type not in (0, 8, 12, 14):
                    continue
                if fault := _check_zip_member(archive, member):
                    return fault
    except zipfile.BadZipFile as error:
        return ContentFault(f"is truncated or corrupt: {str(error)[:1].lower()}{str(error)[1:]}")
    except (NotImplementedError, RuntimeError, ValueError, struct.error):
        stream.seek(0)
        _read_rest(stream)
    return None


def _check_prefixed_zip(stream: IO[bytes], size: int) -> ContentFault | None:
    if zipfile.is_zipfile(stream):
        stream.seek(0)
        return _check_zip(stream, size)
    stream.seek(0)
    _read_rest(stream)
    return None


def _check_zip_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> ContentFault | None:
    if not member.CRC and member.file_size:
        # torch.save writes no checksums after set_crc32_options(False).
        return None
    try:
        with archive.open(member) as content:
            _read_rest(content)
    except zipfile.BadZipFile as error:
        wrong = "wrong checksum" if "CRC" in str(error) else str(error)
        return ContentFault(f"is corrupt: {wrong} in '{member.filename}'", member.header_offset)
    except (zlib.error, EOFError, ValueError) as error:
        return ContentFault(f"is corrupt: {error} in '{member.filename}'", member.header_offset)
    return None


def _check_gzip(stream: IO[bytes], size: int) -> ContentFault | None:
    unpacker, chunk, at = zlib.decompressobj(wbits=31), b"", 0
    while True:
        if not chunk:
            chunk = stream.read(MIB)
            at += len(chunk)
            if not chunk:
                return ContentFault("is truncated: the gzip stream does not end", size)
        try:
            unpacker.decompress(chunk, MIB)
        except zlib.error as error:
            return ContentFault(f"is corrupt: {error}", max(0, at - len(chunk)))
        chunk = unpacker.unconsumed_tail
        if unpacker.eof:
            # Another member may follow, or padding, which gzip(1) ignores.
            chunk = unpacker.unused_data
            if len(chunk) < 2:
                more = stream.read(MIB)
                chunk, at = chunk + more, at + len(more)
            if chunk[:2] != b"\x1f\x8b":
                _read_rest(stream)
                return None
            unpacker = zlib.decompressobj(wbits=31)


def _check_png(stream: IO[bytes], size: int) -> ContentFault | None:
    stream.read(8)
    at = 8
    while True:
        head = stream.read(8)
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        if len(head) < 8:
            return ContentFault("is truncated: no IEND chunk", size)
        if at + 12 + length > size:
            return ContentFault("is truncated inside a chunk", size)
        found = zlib.crc32(kind)
        left = length
        while left:
            part = stream.read(min(left, MIB))
            if not part:
                return ContentFault("is truncated inside a chunk", size)
            found, left = zlib.crc32(part, found), left - len(part)
        # The first letter of a critical chunk is a capital; a wrong checksum of another is only a warning.
        if found != int.from_bytes(stream.read(4), "big") and kind[:1].isupper():
            return ContentFault(f"is corrupt: wrong checksum in its {kind.decode('latin-1')} chunk", at)
        at += 12 + length
        if kind == b"IEND":
            _read_rest(stream)
            return None


def _check_tar(stream: IO[bytes], size: int) -> ContentFault | None:
    at = 0
    while True:
        head = stream.read(_BLOCK)
        if not head:
            # Two blocks of zeros end an archive. Readers accept one or none, and miss what was cut off.
            return ContentFault("may be truncated: it has no end-of-archive mark", size, certain=False)
        if not head.strip(b"\0"):
            _read_rest(stream)
            return None
        if len(head) < _BLOCK:
            return ContentFault("is truncated inside a tar header", size)
        parsed = _parse_tar_header(head)
        if parsed is None:
            return ContentFault("is corrupt: a tar header has a wrong checksum", at)
        name, length = parsed
        # The map of a sparse file of GNU tar goes on in blocks of its own.
        extended = head[156:157] == b"S" and head[482] != 0
        while extended:
            more = stream.read(_BLOCK)
            at += _BLOCK
            extended = len(more) == _BLOCK and more[504] != 0
        padded = -(-length // _BLOCK) * _BLOCK
        suffix = os.path.splitext(name)[1].lower()
        if suffix in _MEMBER_SUFFIXES and 0 < length <= _MEMBER_CAP:
            content = stream.read(length)
            count = len(content) + _skip(stream, padded - length)
            text = find_format_fault(io.BytesIO(content), length, suffix) if len(content) == length else None
            if text:
                # What a loader does with a broken sample is up to the program.
                return ContentFault(f"holds a broken sample: {name} {text}", at, certain=False)
        else:
            count = _skip(stream, padded)
        if count < length:
            return ContentFault(f"is truncated inside '{name}'", size)
        if count < padded:
            return ContentFault("may be truncated: it has no end-of-archive mark", size, certain=False)
        at += _BLOCK + padded


def _parse_tar_header(head: bytes) -> tuple[str, int] | None:
    """Return (name, length of the content) of one header; None if it is no tar header."""
    try:
        written = int(head[148:156].split(b"\0")[0].strip() or b"0", 8)
        raw = head[124:136]
        length = int.from_bytes(raw[1:], "big") if raw[0] & 0x80 else int(raw.split(b"\0")[0].strip() or b"0", 8)
    except (ValueError, IndexError):
        return None
    if len(head) < _BLOCK or length < 0:
        return None
    others = head[:148] + b" " * 8 + head[156:]
    # Some old writers summed signed characters.
    if written not in (sum(others), sum(byte - 256 if byte > 127 else byte for byte in others)):
        return None
    # Links, devices and directories have no content, whatever the header says.
    content = length if head[156:157] not in (b"1", b"2", b"3", b"4", b"5", b"6") else 0
    return head[:100].split(b"\0")[0].decode("utf-8", "replace"), content


def _make_crc32c_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC32C = _make_crc32c_table()


def compute_masked_crc32c(data: bytes) -> int:
    """Return TensorFlow's masked CRC-32C of a few bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC32C[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def is_tfrecord(head: bytes) -> bool:
    """Return whether a file that begins with `head` is a TFRecord file: the checksum of the first length is right."""
    return len(head) >= 12 and compute_masked_crc32c(head[:8]) == int.from_bytes(head[8:12], "little")


def _check_tfrecord(stream: IO[bytes], size: int) -> ContentFault | None:
    """Check the lengths of all records. reader_child.py checks the checksums of their content."""
    at = 0
    while head := stream.read(12):
        if len(head) < 12:
            return ContentFault("is truncated inside the length of a record", size)
        if not is_tfrecord(head):
            return ContentFault("is corrupt: the length of a record has a wrong checksum", at)
        length = int.from_bytes(head[:8], "little")
        if at + 16 + length > size or _skip(stream, length + 4) < length + 4:
            return ContentFault("is truncated inside a record", size)
        at += 16 + length
    return None


def _check_arrow_file(stream: IO[bytes], size: int) -> ContentFault | None:
    stream.seek(max(0, size - 10))
    tail = stream.read(10)
    stream.seek(0)
    _read_rest(stream)
    if tail[4:] != b"ARROW1":
        return ContentFault("is truncated: no Arrow footer", size)
    if not 0 < int.from_bytes(tail[:4], "little", signed=True) <= size - 18:
        return ContentFault("is corrupt: its footer is longer than the file", size - 10)
    return None


def _check_arrow_stream(stream: IO[bytes], size: int) -> ContentFault | None:
    """Follow the messages: a mark, the length of the metadata, the metadata, and the body whose length they name."""
    at = 0
    while at < size:
        head = stream.read(8)
        if len(head) < 8:
            # Nothing but the mark of the end may be left out.
            return None if head == b"\xff\xff\xff\xff" else ContentFault("is truncated between two messages", size)
        if head[:4] != b"\xff\xff\xff\xff":
            _read_rest(stream)
            return ContentFault("is corrupt: no message begins here", at)
        length = int.from_bytes(head[4:], "little", signed=True)
        if length <= 0:
            _read_rest(stream)
            return None
        metadata = stream.read(length)
        body = _parse_body_length(metadata) if len(metadata) == length else None
        if len(metadata) < length or at + 8 + length + (body or 0) > size:
            return ContentFault("is truncated inside a message", size)
        if body is None:
            _read_rest(stream)
            return None
        _skip(stream, body)
        at += 8 + length + body
    return None


def _parse_body_length(metadata: bytes) -> int | None:
    """Return bodyLength of Arrow's flatbuffer `Message`, its fourth field; None if it cannot be read."""
    try:
        table = struct.unpack_from("<I", metadata, 0)[0]
        fields = table - struct.unpack_from("<i", metadata, table)[0]
        if struct.unpack_from("<H", metadata, fields)[0] < 12:
            return 0
        at = struct.unpack_from("<H", metadata, fields + 4 + 2 * 3)[0]
        body: int = struct.unpack_from("<q", metadata, table + at)[0] if at else 0
    except struct.error:
        return None
    return body if body >= 0 else None


def _check_json_lines(stream: IO[bytes], size: int) -> ContentFault | None:
    at = 0
    while lines := stream.readlines(MIB):
        if not _is_json_array(lines) and (fault := _find_broken_line(lines, at, size)):
            return fault
        at += sum(map(len, lines))
    return None


def _is_json_array(lines: list[bytes]) -> bool:
    """Return whether the lines are JSON, one value each. One call for many lines is ten times faster than one each."""
    values = [line for line in lines if line.strip()]
    try:
        return len(json.loads(b"[" + b",".join(values) + b"]")) == len(values)
    except (ValueError, RecursionError):
        return False


def _find_broken_line(lines: list[bytes], at: int, size: int) -> ContentFault | None:
    """Return the fault of the first line that is no JSON. `at`: the position of the lines in the file."""
    for line in lines:
        try:
            if line.strip():
                json.loads(line)
        except UnicodeDecodeError:
            pass
        except (ValueError, RecursionError) as error:
            cut = " and is truncated there" if not line.endswith(b"\n") and at + len(line) >= size else ""
            return ContentFault(f"holds a line that is no JSON{cut}: {error}", at)
        at += len(line)
    return None


def _check_pickle(stream: IO[bytes], size: int) -> ContentFault | None:
    """Follow the operations of the first pickle to its end without executing them."""
    fault = None
    if size <= _PICKLE_CAP and stream.read(1) == b"\x80":
        stream.seek(0)
        try:
            for _ in pickletools.genops(stream):
                pass
        except ValueError as error:
            if any(word in str(error) for word in ("exhausted", "not enough", "expected", "no newline")):
                fault = ContentFault("is truncated inside its pickle", size)
    _read_rest(stream)
    return fault


def _check_wav(stream: IO[bytes], size: int) -> ContentFault | None:
    at, fault = 12, None
    stream.seek(12)
    while at + 8 <= size:
        head = stream.read(8)
        length = int.from_bytes(head[4:8], "little")
        if head[:4] == b"data":
            # Programs that write to a pipe leave one of these lengths.
            unknown = length in (0, 0x7FFFFFFF) or length >= 0xFFFFFF00
            if not unknown and at + 8 + length > size + _WAV_SLACK:
                fault = ContentFault(f"is truncated: {size} bytes, its header promises {at + 8 + length}", size)
            break
        at += 8 + length + length % 2
        stream.seek(at)
    stream.seek(0)
    _read_rest(stream)
    return fault


def _check_flac(stream: IO[bytes], size: int) -> ContentFault | None:
    """Follow the metadata, and find the last frame: its number must be that of the end of the stream."""
    stream.seek(4)
    at, info = 4, b""
    last = False
    while not last:
        head = stream.read(4)
        if len(head) < 4:
            return ContentFault("is truncated inside its metadata", size)
        length, last = int.from_bytes(head[1:], "big"), bool(head[0] & 0x80)
        if head[0] & 0x7F == 0:
            info = stream.read(min(length, 64))
        at += 4 + length
        if at > size:
            return ContentFault("is truncated inside its metadata", size)
        stream.seek(at)
    stream.seek(max(at, size - _FLAC_TAIL))
    tail = stream.read(_FLAC_TAIL)
    stream.seek(0)
    _read_rest(stream)
    total = int.from_bytes(info[13:18], "big") & 0xFFFFFFFFF if len(info) >= 18 else 0
    largest = int.from_bytes(info[2:4], "big") if len(info) >= 18 else 0
    if not total:
        # The length is not known to the writer of a stream.
        return None
    start, end = _find_last_frame(tail, largest)
    # Padding or tags after the audio may hide the last frame, so a decoder decides.
    if end < total:
        return ContentFault(f"is truncated: its frames end at sample {end} of {total}", size, certain=False)
    if _compute_crc16(tail[start:-2]) != int.from_bytes(tail[-2:], "big"):
        return ContentFault("is truncated or corrupt: wrong checksum in its last frame", size, certain=False)
    return None


def _find_last_frame(tail: bytes, block: int) -> tuple[int, int]:
    """Return (position in `tail`, number of the sample after it) of the last frame header; (0, 0) if there is none.

    `block`: the samples of a frame with a fixed size.
    """
    at = len(tail)
    while (at := tail.rfind(b"\xff", 0, at)) >= 0:
        head = tail[at : at + 16]
        if len(head) >= 6 and head[1] & 0xFE == 0xF8 and (end := _parse_frame_end(head, block)) is not None:
            return at, end
    return 0, 0


def _parse_frame_end(head: bytes, block: int) -> int | None:
    """Return the number of the sample after the frame that begins with `head`; None if it is no frame header."""
    code, at = head[2] >> 4, 5
    number = head[4]
    if number >= 0xC0:
        width = 8 - (number ^ 0xFF).bit_length()
        number &= (1 << (7 - width)) - 1 if width < 7 else 0
        for byte in head[5 : 4 + width]:
            number, at = number << 6 | (byte & 0x3F), at + 1
    if code == 0:
        return None
    size = 192 if code == 1 else 576 << (code - 2) if code <= 5 else 256 << max(0, code - 8)
    if code in (6, 7):
        width = code - 5
        size, at = int.from_bytes(head[at : at + width], "big") + 1, at + width
    rate = head[2] & 0x0F
    at += {12: 1, 13: 2, 14: 2}.get(rate, 0)
    if at >= len(head) or _compute_crc8(head[:at]) != head[at]:
        return None
    return number + size if head[1] & 1 else number * block + size


def _compute_crc8(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ 0x07) & 0xFF if crc & 0x80 else crc << 1
    return crc


def _compute_crc16(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc = (crc << 8) & 0xFFFF ^ _CRC16[crc >> 8 ^ byte]
    return crc


def _make_crc16_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        crc = value << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x8005) & 0xFFFF if crc & 0x8000 else crc << 1
        table.append(crc)
    return tuple(table)


_CRC16 = _make_crc16_table()
_MAGIC: tuple[tuple[bytes, Check], ...] = (
    (b"PK\x03\x04", _check_zip),
    (b"\x1f\x8b", _check_gzip),
    (b"\x89PNG\r\n\x1a\n", _check_png),
    (b"ARROW1", _check_arrow_file),
    (b"fLaC", _check_flac),
    (b"RIFF", _check_wav),
)
