"""Download caches that a trial of an ordinary user fills for the later job; its other writes are discarded."""

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
# The steps of huggingface_hub: take a lock, write a file with a temporary name, rename it.
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


def run_trial_in_home(home: Path, script: str, overlay: str = "auto", **environ: str) -> dict[str, Any]:
    identity: dict[str, Any] = {}
    (home / "state" / "trial" / "script").write_text(f"#!/bin/bash\n{script}\n")
    if os.geteuid() == 0:
        identity = {"user": UID, "group": UID, "extra_groups": []}
        for path in (home, *home.rglob("*")):
            os.chown(path, UID, UID, follow_symlinks=False)
    argv = [sys.executable, "-c", DRIVER, str(home), overlay, json.dumps(environ)]
    try:
        process = subprocess.run(argv, capture_output=True, text=True, timeout=allow(60), cwd="/", **identity)
    except OSError as error:
        pytest.skip(f"an ordinary user cannot run {sys.executable}: {error}")
    if "slurmwrap" in process.stderr and "ModuleNotFoundError" in process.stderr:
        pytest.skip("an ordinary user cannot read this checkout")
    assert process.returncode == 0, process.stderr
    result: dict[str, Any] = json.loads(process.stdout)
    if overlay == "auto" and "overlay" in result["error"]:
        pytest.skip(result["error"])
    return result


def list_names(home: Path) -> set[str]:
    """Files and directories of the home, except those of the trial."""
    names = {str(path.relative_to(home)) for path in home.rglob("*")}
    return {name for name in names if not name.startswith("state")}


def test_the_first_download_stays_in_the_cache_and_other_new_files_are_discarded(home: Path) -> None:
    before = list_names(home)
    result = run_trial_in_home(home, f"python3 get.py ~/{HUB} && cat ~/results.txt")
    assert (result["code"], result["output"].strip()) == (0, "accuracy"), result
    assert (home / HUB / "models--gpt2/blobs/b1").read_text() == "weights"
    assert all(name.startswith(".cache") for name in list_names(home) - before)
    assert not (home / ".cache/torch").exists()  # the trial put no file into it


@pytest.mark.parametrize("overlay", ["auto", "off"])
def test_an_existing_cache_is_filled_and_files_outside_it_stay_unchanged(home: Path, overlay: str) -> None:
    (home / HUB / "models--bert").mkdir(parents=True)
    (home / ".cache/huggingface/token").write_text("secret")
    before = list_names(home)
    script = f'python3 get.py ~/{HUB}; python3 -c \'open("{home}/.cache/huggingface/token", "w").write("other")\''
    result = run_trial_in_home(home, script, overlay)
    assert result["code"] == 0, result
    assert {name for name in list_names(home) - before if HUB not in name} == set()
    assert (home / HUB / "models--gpt2/blobs/b1").read_text() == "weights"
    assert (home / ".cache/huggingface/token").read_text() == "secret"


def test_a_cache_variable_that_the_script_sets_is_followed(home: Path) -> None:
    before = list_names(home)
    result = run_trial_in_home(home, "export HF_HOME=$HOME/hf\npython3 get.py $HF_HOME/hub")
    assert result["code"] == 0, result
    assert (home / "hf/hub/models--gpt2/blobs/b1").exists()
    assert all(name.startswith("hf") for name in list_names(home) - before)


def test_a_cache_variable_that_names_the_project_makes_nothing_writable(home: Path) -> None:
    (home / "work/datasets").mkdir()
    (home / "work/datasets/mine.csv").write_text("1,2")
    before = list_names(home)
    result = run_trial_in_home(
        home, "echo 3 >> datasets/mine.csv; mkdir -p hub; echo x > hub/x", HF_HOME=str(home / "work")
    )
    assert result["code"] == 0, result
    assert (home / "work/datasets/mine.csv").read_text() == "1,2"
    assert list_names(home) == before


def test_a_script_that_empties_a_cache_leaves_it_unchanged_in_its_trial(home: Path) -> None:
    (home / HUB / "models--bert").mkdir(parents=True)
    result = run_trial_in_home(home, "rm -rf ~/.cache/huggingface; ls -A ~/.cache | grep -x huggingface || true")
    assert (result["code"], result["output"].strip()) == (0, ""), result
    assert (home / HUB / "models--bert").is_dir()


def test_a_trial_without_a_download_leaves_no_new_files(home: Path) -> None:
    before = list_names(home)
    assert run_trial_in_home(home, "ls -A ~/.cache/huggingface")["code"] == 0
    assert list_names(home) == before


FILES = (
    "home/proj/train.py",
    "home/data/a.csv",
    "home/hf/hub/models--a/x",
    "home/hf/token",
    "big/cache/hub/version.txt",
)


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A home, and a directory of another file system that a link in the home points to."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "home/linked").symlink_to(tmp_path / "big/hub")
    (tmp_path / "home/wrong").symlink_to(tmp_path / "home/data")
    (tmp_path / "trial").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "environ", "expected"),
    [
        ("~/hf/hub", {}, "home/hf/hub"),
        ("$HF_HOME/hub:~/hf/hub", {}, "home/hf/hub"),
        ("$HF_HOME/hub", {}, ""),
        ("$HF_HOME/hub", {"HF_HOME": "home/hf"}, "home/hf/hub"),
        ("$HF_HOME/xet", {"HF_HOME": "home/hf"}, "home/hf/xet"),  # does not exist yet
        ("~/.cache/pip", {"XDG_CACHE_HOME": "home/hf"}, "home/hf/pip"),
        ("$HF_HOME/hub:~/hf/hub", {"HF_HOME": "home/proj"}, ""),  # the directory in which the job runs
        ("$HF_HOME/hub", {"HF_HOME": "home"}, ""),
        ("$HF_HOME/hub", {"HF_HOME": "."}, ""),  # contains the home
        ("$HF_HOME/hub", {"HF_HOME": "home/data"}, ""),  # contains the user's own files
        ("$HF_HUB_CACHE", {"HF_HUB_CACHE": "home/data"}, ""),
        ("$HF_HUB_CACHE", {"HF_HUB_CACHE": "home"}, ""),
        ("$HF_HUB_CACHE", {"HF_HUB_CACHE": "home/proj/.cache"}, "home/proj/.cache"),
        ("~/linked", {}, "big/hub"),
        ("~/wrong", {}, ""),
        ("~", {}, ""),
        ("relative", {}, ""),
    ],
)
def test_only_directories_that_look_like_a_cache_are_accepted(
    places: Path, line: str, environ: dict[str, str], expected: str
) -> None:
    full_environ = {"HOME": f"{places}/home", **{name: f"{places}/{value}" for name, value in environ.items()}}
    job_directories = [f"{places}/home/proj"]
    caches = find_caches([line], full_environ, kept_from=job_directories, folder=f"{places}/trial")
    assert [cache.place for cache in caches] == ([f"{places}/{expected}".rstrip("/")] if expected else [])


def test_a_home_without_caches_gets_the_default_directory_of_each_cache(places: Path) -> None:
    caches = find_caches(CACHES, {"HOME": f"{places}/home"}, kept_from=[], folder=f"{places}/trial")
    assert [cache.place.removeprefix(f"{places}/home/") for cache in caches] == [
        ".cache/huggingface/hub",
        ".cache/huggingface/datasets",
        ".cache/huggingface/xet",
        ".cache/torch/hub",
        ".triton/cache",
        ".cache/pip",
        ".cache/uv",
    ]
    assert not any(cache.is_there for cache in caches)


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
def test_a_cache_that_a_command_of_the_script_cleans_is_dropped(line: str, left: list[str]) -> None:
    caches = [Cache(place=place, source=place) for place in ("/h/.cache/pip", "/h/.triton/cache")]
    assert [cache.place for cache in drop_cleaned_caches(caches, f"#!/bin/bash\n{line}\n", "/h", (), {})] == left


def test_a_cache_that_another_job_made_meanwhile_gets_only_missing_entries(tmp_path: Path) -> None:
    for name in ("new/models--a/theirs", "new/models--b/x", "hub/models--a/ours"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    move_filled_caches([Cache(place=f"{tmp_path}/hub", source=f"{tmp_path}/new")])
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("hub/*/*")) == [
        "hub/models--a/ours",
        "hub/models--b/x",
    ]
