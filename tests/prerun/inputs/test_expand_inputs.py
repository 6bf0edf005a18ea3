"""The files that a job will read, found from those that its trial opened."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from slurmwrap.prerun.inputs import expand_inputs
from slurmwrap.prerun.inputs.opened_files import OpenedFiles


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def make(root: Path, *names: str) -> list[str]:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return [str(root / name) for name in names]


def expand(root: Path, files: Iterable[str] = (), **more: tuple[str, ...]) -> set[str]:
    words = more.pop("words", ())
    located = {key: tuple(str(root / one) for one in value) for key, value in more.items()}
    opened = OpenedFiles(files=tuple(str(root / name) for name in files), **located)  # type: ignore[arg-type]
    found = expand_inputs.expand_inputs(opened, (), words, str(root))
    return {path.removeprefix(f"{root}/") for path in found}


def test_one_opened_shard_stands_for_all_shards_of_its_set(root: Path) -> None:
    make(root, *(f"d/train-{n:05d}-of-00004.tfrecord" for n in range(4)), "d/other.tfrecord", "d/train.txt")
    assert expand(root, ["d/train-00002-of-00004.tfrecord"]) == {f"d/train-{n:05d}-of-00004.tfrecord" for n in range(4)}
    make(root, *(f"w/data-{n:03d}.tar" for n in range(3)), "w/val-000.tar", "w/data-003.tar.part")
    assert expand(root, ["w/data-001.tar"]) == {"w/data-000.tar", "w/data-001.tar", "w/data-002.tar"}


def test_samples_of_one_class_stand_for_the_other_listed_classes(root: Path) -> None:
    files = [f"train/{c}/{n}.jpg" for c in ("cat", "dog", "owl") for n in "abc"]
    make(root, *files, "train/dog/notes.md", "other/x.jpg", "train/labels.jpg")
    opened = ["train/cat/a.jpg", "train/dog/b.jpg"]
    listed = ("train", "train/cat", "train/dog", "train/owl")
    assert expand(root, opened, directories=listed) == set(files)
    assert expand(root, opened[:1], directories=listed) == {opened[0]}, "one sample proves nothing"


def test_old_checkpoints_next_to_the_opened_one_are_left_out(root: Path) -> None:
    make(root, "ckpt/step-1.pt", "ckpt/step-2.pt", "ckpt/step-3.pt", "ckpt/model.safetensors", "ckpt/old.safetensors")
    opened = ["ckpt/step-3.pt", "ckpt/model.safetensors"]
    assert expand(root, opened, directories=("ckpt",), patterns=("ckpt/*.pt",)) == set(opened)


def test_a_pattern_takes_what_it_matches_and_no_more(root: Path) -> None:
    make(root, "d/train_a.npz", "d/train_b.npz", "d/train_c.npz", "d/spoilt.npz", "d/train_a.json")
    found = expand(root, ["d/train_a.npz", "d/train_b.npz"], patterns=("d/train_*",))
    assert found == {"d/train_a.npz", "d/train_b.npz", "d/train_c.npz"}


@pytest.mark.parametrize("name", ["list.txt", "list.csv", "list.json", "list.jsonl"])
@pytest.mark.parametrize("base", ["images/", "", "/"])
def test_a_manifest_names_files_from_the_place_of_an_opened_one(root: Path, name: str, base: str) -> None:
    make(root, *(f"images/{n}.jpg" for n in "abcd"), "elsewhere/c.jpg")
    shown = {"images/": "", "": "images/", "/": f"{root}/images/"}[base]
    rows = [f"{shown}{n}.jpg" for n in "abc"]
    lines = {
        "list.txt": "\n".join(f"{row} 3" for row in rows),
        "list.csv": "path,label\n" + "\n".join(f"{row},3" for row in rows),
        "list.json": json.dumps({"images": [{"file_name": row, "w": 1.5} for row in rows]}),
        "list.jsonl": "\n".join(json.dumps({"audio": row}) for row in rows),
    }
    (root / name).write_text(lines[name])
    assert expand(root, [name, "images/b.jpg"]) == {name, "images/a.jpg", "images/b.jpg", "images/c.jpg"}
    assert expand(root, [name]) == {name}, "a list of which nothing was opened proves nothing"


def test_braces_and_stars_of_the_command_line_are_expanded(root: Path) -> None:
    make(root, *(f"s/{n:03d}.tar" for n in range(3)), "s/readme", "t/a.bin", "t/b.bin")
    words = ("python", "train.py", "--data=s/{000..005}.tar", "t/*.bin", "$DATA/{0..9}.tar", "s3://b/{0..9}.tar")
    assert expand(root, words=words) == {f"s/{n:03d}.tar" for n in range(3)}
    assert expand(root, ["t/a.bin"], words=words[3:4]) == {"t/a.bin", "t/b.bin"}


def test_braces_keep_the_width_of_the_first_number() -> None:
    assert list(expand_inputs.expand_braces("a{08..11}b")) == ["a08b", "a09b", "a10b", "a11b"]
    assert list(expand_inputs.expand_braces("{1..2}{3..2}")) == ["13", "12", "23", "22"]


def test_no_more_files_than_the_limit_are_taken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expand_inputs, "MAX_FILES", 5)
    make(root, *(f"d/{n}.tar" for n in range(9)))
    assert len(expand(root, ["d/1.tar"])) == 5
