"""Caches that a trial fills for the job that follows, as an ordinary user; all else it writes is gone with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import allow

from slurmwrap.config.config_defaults import CACHES
from slurmwrap.prerun.isolation.download_caches import Cache, drop_cleaned_caches, find_caches, move_filled_caches

UID = 54321  # no account of this machine
DRIVER = """
import json, os, sys
from slurmwrap.config.config_defaults import CACHES
from slurmwrap.prerun.isolation import overlay as module
from slurmwrap.prerun.trial.supervisor import run_trial
from slurmwrap.prerun.trial.trial_spec import TrialSpec

home, overlay, environ = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
trial = home + "/state/trial"
module.PROBE_S = 600.0  # a busy machine
spec = TrialSpec(trial_dir=trial, script=trial + "/script", chdir=home + "/work", overlay=overlay, caches=CACHES,
                 time_limit_s=600.0)
result = run_trial(spec, environ={"HOME": home, "PATH": "/usr/bin:/bin", "USER": "ada", **environ})
print(json.dumps({"layer": result.layer, "error": result.error, "code": result.exit_code,
                  "output": open(spec.output).read() if os.path.exists(spec.output) else ""}))
"""
# As huggingface_hub does it: a lock, a file of another name, one rename.
DOWNLOAD = """\
import fcntl, os, sys
hub = os.path.expanduser(sys.argv[1])
os.makedirs(hub + "/.locks/models--gpt2", exist_ok=True)
with open(hub + "/.locks/models--gpt2/b1.lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.makedirs(hub + "/models--gpt2/blobs", exist_ok=True)
    with open(hub + "/models--gpt2/blobs/b1.incomplete", "w") as file:
        file.write("weights")
    os.rename(hub + "/models--gpt2/blobs/b1.incomplete", hub + "/models--gpt2/blobs/b1")
with open(os.path.expanduser("~/results.txt"), "w") as file:
    file.write("accuracy")
"""
HUB = ".cache/huggingface/hub"


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="slurmwrap-home-", dir="/var/tmp"))
    (folder / "work").mkdir()
    (folder / "work" / "get.py").write_text(DOWNLOAD)
    (folder / "state" / "trial").mkdir(parents=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run(home: Path, script: str, overlay: str = "auto", **environ: str) -> dict[str, Any]:
    identity: dict[str, Any] = {}
    (home / "state" / "trial" / "script").write_text(f"#!/bin/bash\n{script}\n")
    if os.geteuid() == 0:
        identity = {"user": UID, "group": UID, "extra_groups": []}
        for path in (home, *home.rglob("*")):
            os.chown(path, UID, UID, follow_symlinks=False)
    argv = [sys.executable, "-c", DRIVER, str(home), overlay, json.dumps(environ)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=allow(60), cwd="/", **identity)
    except OSError as error:
        pytest.skip(f"an ordinary user cannot run {sys.executable}: {error}")
    if "slurmwrap" in done.stderr and "ModuleNotFoundError" in done.stderr:
        pytest.skip("an ordinary user cannot read this checkout")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    if overlay == "auto" and "overlay" in found["error"]:
        pytest.skip(found["error"])
    return found


def names(home: Path) -> set[str]:
    """Files and directories of the home, but for the trial's own."""
    found = {str(path.relative_to(home)) for path in home.rglob("*")}
    return {name for name in found if not name.startswith("state")}


def test_the_first_download_of_all_is_there_for_the_job_and_a_file_beside_it_is_not(home: Path) -> None:
    before = names(home)
    found = run(home, f"python3 get.py ~/{HUB} && cat ~/results.txt")
    assert (found["code"], found["output"].strip()) == (0, "accuracy"), found
    assert (home / HUB / "models--gpt2/blobs/b1").read_text() == "weights"
    assert all(name.startswith(".cache") for name in names(home) - before)
    assert not (home / ".cache/torch").exists()  # nothing was put into it


@pytest.mark.parametrize("overlay", ["auto", "off"])
def test_a_cache_that_is_there_is_filled_and_what_lies_beside_it_stays(home: Path, overlay: str) -> None:
    (home / HUB / "models--bert").mkdir(parents=True)
    (home / ".cache/huggingface/token").write_text("secret")
    before = names(home)
    script = f'python3 get.py ~/{HUB}; python3 -c \'open("{home}/.cache/huggingface/token", "w").write("other")\''
    found = run(home, script, overlay)
    assert found["code"] == 0, found
    assert {n for n in names(home) - before if HUB not in n} == set()
    assert (home / HUB / "models--gpt2/blobs/b1").read_text() == "weights"
    assert (home / ".cache/huggingface/token").read_text() == "secret"


def test_a_variable_that_the_script_sets_moves_the_cache(home: Path) -> None:
    before = names(home)
    found = run(home, "export HF_HOME=$HOME/hf\npython3 get.py $HF_HOME/hub")
    assert found["code"] == 0, found
    assert (home / "hf/hub/models--gpt2/blobs/b1").exists()
    assert all(name.startswith("hf") for name in names(home) - before)


def test_a_variable_that_names_the_project_opens_nothing(home: Path) -> None:
    (home / "work/datasets").mkdir()
    (home / "work/datasets/mine.csv").write_text("1,2")
    before = names(home)
    found = run(home, "echo 3 >> datasets/mine.csv; mkdir -p hub; echo x > hub/x", HF_HOME=str(home / "work"))
    assert found["code"] == 0, found
    assert (home / "work/datasets/mine.csv").read_text() == "1,2"
    assert names(home) == before


def test_a_script_that_empties_a_cache_does_not_in_its_trial(home: Path) -> None:
    (home / HUB / "models--bert").mkdir(parents=True)
    found = run(home, "rm -rf ~/.cache/huggingface; ls -A ~/.cache | grep -x huggingface || true")
    assert (found["code"], found["output"].strip()) == (0, ""), found
    assert (home / HUB / "models--bert").is_dir()


def test_a_trial_without_a_download_leaves_nothing(home: Path) -> None:
    before = names(home)
    assert run(home, "ls -A ~/.cache/huggingface")["code"] == 0
    assert names(home) == before


FILES = (
    "home/proj/train.py",
    "home/data/a.csv",
    "home/hf/hub/models--a/x",
    "home/hf/token",
    "big/cache/hub/version.txt",
)


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A home, and another file system's directory to which one of its links leads."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "home/linked").symlink_to(tmp_path / "big/hub")
    (tmp_path / "home/wrong").symlink_to(tmp_path / "home/data")
    (tmp_path / "trial").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "environ", "found"),
    [
        ("~/hf/hub", {}, "home/hf/hub"),
        ("$HF_HOME/hub:~/hf/hub", {}, "home/hf/hub"),
        ("$HF_HOME/hub", {}, ""),
        ("$HF_HOME/hub", {"HF_HOME": "home/hf"}, "home/hf/hub"),
        ("$HF_HOME/xet", {"HF_HOME": "home/hf"}, "home/hf/xet"),  # not there yet
        ("~/.cache/pip", {"XDG_CACHE_HOME": "home/hf"}, "home/hf/pip"),
        ("$HF_HOME/hub:~/hf/hub", {"HF_HOME": "home/proj"}, ""),  # where the job runs
        ("$HF_HOME/hub", {"HF_HOME": "home"}, ""),
        ("$HF_HOME/hub", {"HF_HOME": "."}, ""),  # what holds the home
        ("$HF_HOME/hub", {"HF_HOME": "home/data"}, ""),  # the user's own files lie there
        ("$HF_HUB_CACHE", {"HF_HUB_CACHE": "home/data"}, ""),
        ("$HF_HUB_CACHE", {"HF_HUB_CACHE": "home"}, ""),
        ("$HF_HUB_CACHE", {"HF_HUB_CACHE": "home/proj/.cache"}, "home/proj/.cache"),
        ("~/linked", {}, "big/hub"),
        ("~/wrong", {}, ""),
        ("~", {}, ""),
        ("relative", {}, ""),
    ],
)
def test_only_what_looks_like_a_cache_is_let_through(
    places: Path, line: str, environ: dict[str, str], found: str
) -> None:
    known = {"HOME": f"{places}/home", **{name: f"{places}/{value}" for name, value in environ.items()}}
    own = [f"{places}/home/proj"]
    caches = find_caches([line], known, kept_from=own, folder=f"{places}/trial")
    assert [one.place for one in caches] == ([f"{places}/{found}".rstrip("/")] if found else [])


def test_by_default_a_home_without_caches_has_one_place_for_each(places: Path) -> None:
    caches = find_caches(CACHES, {"HOME": f"{places}/home"}, kept_from=[], folder=f"{places}/trial")
    assert [one.place.removeprefix(f"{places}/home/") for one in caches] == [
        ".cache/huggingface/hub",
        ".cache/huggingface/datasets",
        ".cache/huggingface/xet",
        ".cache/torch/hub",
        ".triton/cache",
        ".cache/pip",
        ".cache/uv",
    ]
    assert not any(one.is_there for one in caches)


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("python train.py", ["/h/.cache/pip", "/h/.triton/cache"]),
        ("rm -rf /h/.cache", ["/h/.triton/cache"]),
        ("rm -rf /h/.triton/cache/ab", ["/h/.cache/pip"]),
        ("rm -rf $SOMEWHERE", []),
        ("pip cache purge", []),
        ("python -m pip cache purge", []),
    ],
)
def test_what_a_command_of_the_script_removes_is_not_let_through(line: str, left: list[str]) -> None:
    caches = [Cache(place=place, source=place) for place in ("/h/.cache/pip", "/h/.triton/cache")]
    assert [one.place for one in drop_cleaned_caches(caches, f"#!/bin/bash\n{line}\n", "/h", (), {})] == left


def test_where_a_job_made_the_cache_meanwhile_only_what_it_lacks_is_added(tmp_path: Path) -> None:
    for name in ("new/models--a/theirs", "new/models--b/x", "hub/models--a/ours"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    move_filled_caches([Cache(place=f"{tmp_path}/hub", source=f"{tmp_path}/new")])
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("hub/*/*")) == [
        "hub/models--a/ours",
        "hub/models--b/x",
    ]
