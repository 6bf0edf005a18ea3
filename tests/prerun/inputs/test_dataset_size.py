"""The size of the data, from a few opened files: a directory per class, numbered shards, one mapped file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from slurmwrap.prerun.inputs.dataset_size import (
    SAMPLED,
    DatasetFiles,
    find_mount,
    is_local_mount,
    measure_dataset_files,
)
from slurmwrap.prerun.inputs.opened_files import OpenedFiles

MIB = 1 << 20


def write(folder: Path, names: Iterable[str], size: int) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with (folder / name).open("wb") as stream:
            stream.truncate(size)
    return [f"{folder}/{name}" for name in names]


def measure(*files: str, listed: Iterable[Path] = ()) -> DatasetFiles | None:
    return measure_dataset_files(OpenedFiles(files=files, directories=tuple(map(str, listed))), lambda: 0.0)


def test_all_listed_directories_beside_that_of_an_opened_file_belong_to_the_data(tmp_path: Path) -> None:
    kinds = [tmp_path / "train" / kind for kind in ("cat", "dog", "emu")]
    paths = [path for kind in kinds for path in write(kind, ("a.jpg", "b.jpg"), MIB)]
    write(kinds[0], ("labels.csv",), 50 * MIB)
    validation = tmp_path / "val" / "cat"
    write(validation, ("z.jpg",), 50 * MIB)
    found = measure(paths[0], listed=[tmp_path / "train", *kinds, tmp_path / "val", validation])
    assert found is not None
    assert found.mib == 6.0
    assert found.largest.startswith(f"{tmp_path}/train/")
    # Nothing is listed: only what was opened is known to be read.
    alone = measure(paths[0])
    assert alone is not None
    assert alone.mib == 1.0


def test_shards_are_those_whose_names_differ_in_digits(tmp_path: Path) -> None:
    shards = write(tmp_path, [f"train-{number:04d}.tar" for number in range(7)], MIB)
    write(tmp_path, ("val-0000.tar", "train.tar"), 50 * MIB)
    found = measure(shards[3])
    assert found is not None
    assert found.mib == 7.0


def test_a_mapped_file_counts_and_weights_do_not(tmp_path: Path) -> None:
    (tokens,) = write(tmp_path, ("train.bin",), 3 * MIB)
    (weights,) = write(tmp_path, ("model.safetensors",), 50 * MIB)
    assert measure(tokens, weights) == DatasetFiles(mib=3.0, largest=tokens)
    assert measure(weights) is None


def test_the_sizes_of_many_files_are_those_of_a_sample(tmp_path: Path) -> None:
    count = 4 * SAMPLED
    files = write(tmp_path, [f"{number:05d}.npy" for number in range(count)], 1024)
    found = measure(files[0])
    assert found is not None
    assert found.mib == pytest.approx(count * 1024 / MIB, rel=0.01)


def test_a_search_that_takes_too_long_leaves_the_size_unknown(tmp_path: Path) -> None:
    (file,) = write(tmp_path, ("a0.bin",), MIB)
    times = iter(range(0, 1000, 100))
    found = measure_dataset_files(OpenedFiles(files=(file,)), lambda: float(next(times)))
    assert found == DatasetFiles(mib=None, largest=file)


def test_the_mount_of_a_path_is_found() -> None:
    assert find_mount("/proc/self/status") == "/proc"
    assert find_mount("/") == "/"
    assert not is_local_mount("/proc")
    assert not is_local_mount("/no/mount")
