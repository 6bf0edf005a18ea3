"""Sound data files, each made by a writer of its own format."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import struct
import tarfile
import wave
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmwrap.prerun.inputs.content_checks import compute_masked_crc32c

_DATA = random.Random(7).randbytes(300_000)
Writer = Callable[[Path], None]


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.bin", _DATA)
        archive.writestr("dir/b.txt", "b" * 5000)
        archive.comment = b"a comment"


def write_zip_without_compression(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.bin", _DATA)
        archive.writestr("empty", b"")


def write_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(_DATA[:100_000]) + gzip.compress(b"second member" * 1000) + bytes(512))


def write_tar(path: Path, **more: object) -> None:
    with tarfile.open(path, "w", **more) as archive:  # type: ignore[call-overload]
        for name, content in (("a.bin", _DATA), ("x" * 150 + ".txt", b"long name"), ("empty.cls", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "a.bin"
        archive.addfile(link)


def write_old_tar(path: Path) -> None:
    write_tar(path, format=tarfile.GNU_FORMAT)


def write_compressed_tar(path: Path) -> None:
    plain = path.with_suffix(".plain")
    write_tar(plain)
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


def write_webdataset(path: Path) -> None:
    image, array = path.with_suffix(".jpg"), path.with_suffix(".npy")
    write_jpeg(image)
    write_npy(array)
    samples = {"jpg": image.read_bytes(), "npy": array.read_bytes(), "json": b'{"label": 3}', "cls": b"3"}
    with tarfile.open(path, "w") as archive:
        for number in range(5):
            for suffix, content in samples.items():
                member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    image.unlink()
    array.unlink()


def write_image(path: Path, **more: object) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = image.frombytes("RGB", (200, 150), _DATA[:90_000])
    preview = io.BytesIO()
    picture.resize((20, 15)).save(preview, "JPEG")
    picture.save(path, **more)


def write_png(path: Path) -> None:
    write_image(path)


def write_jpeg(path: Path) -> None:
    write_image(path, quality=90)


def write_progressive_jpeg(path: Path) -> None:
    write_image(path, progressive=True, quality=75)


def write_jpeg_with_preview(path: Path) -> None:
    """An application segment with a whole JPEG image inside, as cameras write it."""
    write_jpeg(path)
    raw = path.read_bytes()
    preview = b"Exif\0\0" + raw[:2000] + b"\xff\xd9"
    path.write_bytes(raw[:2] + b"\xff\xe1" + struct.pack(">H", len(preview) + 2) + preview + raw[2:])


def write_npy(path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.save(path, numpy.arange(50_000, dtype="f8").reshape(100, 500))


def write_object_npy(path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.save(path, numpy.array([{"a": 1}, None], dtype=object), allow_pickle=True)


def write_npz(path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.savez(path, x=numpy.arange(50_000), y=numpy.ones(3))


def write_compressed_npz(path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.savez_compressed(path, x=numpy.arange(50_000))


def write_parquet(path: Path, **more: object) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"x": list(range(20_000)), "s": [str(n % 97) for n in range(20_000)]})
    parquet.write_table(table, path, row_group_size=5000, **more)


def write_parquet_with_checksums(path: Path) -> None:
    write_parquet(path, write_page_checksum=True, compression="zstd")


def write_arrow_file(path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"x": list(range(20_000))})
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3000)


def write_arrow_stream(path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"x": list(range(20_000)), "s": ["a", "b"] * 10_000})
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3000)


def write_feather(path: Path) -> None:
    arrow, feather = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.feather")
    feather.write_feather(arrow.table({"x": list(range(20_000))}), str(path), compression="lz4")


def write_hdf5(path: Path, **more: object) -> None:
    h5py, numpy = pytest.importorskip("h5py"), pytest.importorskip("numpy")
    with h5py.File(path, "w", **more) as file:
        file["plain"] = numpy.arange(50_000)
        file.create_dataset("deep/zipped", data=numpy.arange(60_000).reshape(600, 100), chunks=True, compression="gzip")
        file.create_dataset("checked", data=numpy.arange(9000.0), chunks=(1000,), fletcher32=True)
        file["text"] = "a text"
        file["texts"] = ["a", "b"]
        file["nothing"] = h5py.Empty("f4")


def write_new_hdf5(path: Path) -> None:
    write_hdf5(path, libver="latest")


def write_tfrecord(path: Path) -> None:
    tensorflow = pytest.importorskip("tensorflow")
    with tensorflow.io.TFRecordWriter(str(path)) as writer:
        for number in range(200):
            writer.write(_DATA[number : 997 + 3 * number])


def write_tfrecord_by_hand(path: Path) -> None:
    """As TensorFlow's record_writer.h says, for environments without it."""
    with path.open("wb") as stream:
        for number in range(20):
            length, data = struct.pack("<Q", 100 + number), _DATA[number : 100 + 2 * number]
            stream.write(length + struct.pack("<I", compute_masked_crc32c(length)))
            stream.write(data + struct.pack("<I", compute_masked_crc32c(data)))


def write_safetensors(path: Path) -> None:
    numpy, library = pytest.importorskip("numpy"), pytest.importorskip("safetensors.numpy")
    library.save_file({"w": numpy.ones((300, 300), "f4"), "b": numpy.zeros(3)}, str(path), {"format": "np"})


def write_torch(path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.arange(50_000), "step": 3}, path)


def write_torch_without_checksums(path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("this torch always writes checksums")
    torch.serialization.set_crc32_options(False)
    try:
        write_torch(path)
    finally:
        torch.serialization.set_crc32_options(True)


def write_old_torch(path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.arange(5000)}, path, _use_new_zipfile_serialization=False)


def write_json_lines(path: Path) -> None:
    path.write_text("".join(json.dumps({"n": n, "text": "é" * 20}) + "\n" for n in range(3000)), encoding="utf-8")


def write_json(path: Path) -> None:
    path.write_text(json.dumps({"images": [{"id": n, "nan": float("nan")} for n in range(3000)]}, indent=1))


def write_wav(path: Path) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(_DATA[:64_000])


def write_wav_to_a_pipe(path: Path) -> None:
    """The writer could not go back to fill in the lengths."""
    write_wav(path)
    raw = path.read_bytes()
    path.write_bytes(raw[:4] + b"\xff" * 4 + raw[8:40] + b"\xff" * 4 + raw[44:])


def write_flac(path: Path) -> None:
    soundfile, numpy = pytest.importorskip("soundfile"), pytest.importorskip("numpy")
    soundfile.write(path, numpy.frombuffer(_DATA[:200_000], "<i2"), 16_000, format="FLAC")


def write_stereo_flac(path: Path) -> None:
    soundfile, numpy = pytest.importorskip("soundfile"), pytest.importorskip("numpy")
    tones = numpy.sin(numpy.arange(99_999.0)).reshape(-1, 3)[:, :2]
    soundfile.write(path, tones, 44_100, format="FLAC", subtype="PCM_24")


def write_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"x": list(range(5000))}))


def write_compressed_pickle(path: Path) -> None:
    """As joblib.dump(compress=3) does."""
    path.write_bytes(zlib.compress(pickle.dumps({"x": list(range(5000))})))


def write_pickle_and_more(path: Path) -> None:
    path.write_bytes(pickle.dumps({"rows": 3}) + _DATA[:1000] + b"x")


def write_unknown(path: Path) -> None:
    path.write_bytes(_DATA)


# File name -> writer.
SOUND: dict[str, Writer] = {
    "a.zip": write_zip,
    "b.zip": write_zip_without_compression,
    "a.gz": write_gzip,
    "a.tar": write_tar,
    "b.tar": write_old_tar,
    "a.tar.gz": write_compressed_tar,
    "web-000.tar": write_webdataset,
    "a.png": write_png,
    "a.jpg": write_jpeg,
    "b.jpg": write_progressive_jpeg,
    "c.jpeg": write_jpeg_with_preview,
    "a.npy": write_npy,
    "b.npy": write_object_npy,
    "a.npz": write_npz,
    "b.npz": write_compressed_npz,
    "a.parquet": write_parquet,
    "b.parquet": write_parquet_with_checksums,
    "a.arrow": write_arrow_file,
    "b.arrow": write_arrow_stream,
    "a.feather": write_feather,
    "a.h5": write_hdf5,
    "b.hdf5": write_new_hdf5,
    "a.tfrecord": write_tfrecord,
    "b.tfrecord-00000-of-00001": write_tfrecord_by_hand,
    "a.safetensors": write_safetensors,
    "a.pt": write_torch,
    "b.pt": write_torch_without_checksums,
    "c.pth": write_old_torch,
    "a.jsonl": write_json_lines,
    "a.json": write_json,
    "a.wav": write_wav,
    "b.wav": write_wav_to_a_pipe,
    "a.flac": write_flac,
    "b.flac": write_stereo_flac,
    "a.pkl": write_pickle,
    "b.pkl": write_compressed_pickle,
    "c.pkl": write_pickle_and_more,
    "a.dat": write_unknown,
}
