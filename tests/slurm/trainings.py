"""Training scripts of tests/scripts: copied to a user's home and pre-run on a lab, many at the same time.

This module also compares the user's files before and after the pre-runs and lists the processes that are left.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import re
import shutil
import stat
import sys
import sysconfig
import time
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from realslurm import Lab
from waiting import wait_for

DATA = Path(__file__).parents[1] / "scripts"
# gsub with more time for its static stage: checks skipped after two seconds would give no warning.
PATIENT_GSUB = (
    sys.executable,
    "-c",
    "import runpy; from slurmwrap.prerun.static import static_stage; static_stage.BUDGET_S = 120.0; "
    "runpy.run_module('slurmwrap.gsub.gsub_main', run_name='__main__', alter_sys=True)",
)
_HOMES = Path("/home")
_PREFIX = "slurmwrap-test-"
WRITERS_FILE = "results_of_another_job.csv"
# The files of slurmwrap, and caches, which may be written.
_NOT_THE_USERS = (".local/state/slurmwrap", ".cache")


def find_layer(verdict: Mapping[str, Any]) -> str:
    """What counted the steps, also if the script then ran to its end with shortened epochs."""
    reason = str(verdict.get("reason", ""))
    if "shortened epochs" in reason or " ran on one GPU, then " in reason:
        return "explicit" if re.match(r"\d+ steps? ran", reason) else "optimizer"
    return str(verdict.get("layer", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected result of the pre-run."""

    verdict: str = "pass"
    steps: int | str = 3  # "some": at least three
    layer: str = "optimizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One script of good/, or a mutant of it."""

    name: str
    folder: Path
    script: str
    args: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    quick: bool = False
    venv: bool = False
    expected: Expected = field(default_factory=Expected)
    without_overlay: Expected = field(default_factory=Expected)
    edits: tuple[Mapping[str, Any], ...] = ()  # file, old, new

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed on this machine."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of gsub to one training. `verdict` is its JSON output, empty if there is none."""

    exit_code: int
    stdout: str
    stderr: str
    verdict: Mapping[str, Any]

    @property
    def stopped_by(self) -> str:
        """ "static": refused before anything was submitted; "trial": failed on one GPU; "none"; or "fault"."""
        if not self.verdict:  # sbatch or gsub refused; "details:" is in the message of an internal error of slurmwrap
            return "static" if self.exit_code and "(details: " not in self.stderr else "fault"
        if self.verdict["layer"] == "static":
            return "static"
        return "trial" if self.result.verdict == "fail" else "none"

    @property
    def warnings(self) -> list[str]:
        """The warnings of the static stage."""
        return [line for line in self.stderr.splitlines() if line.startswith("gsub: warning: ")]

    def as_expected(self, wanted: Expected) -> Expected:
        """The result, with the steps as "some" if `wanted` has that and there were enough."""
        enough = wanted.steps == "some" and isinstance(self.result.steps, int) and self.result.steps >= 3
        return replace(self.result, steps="some") if enough else self.result

    @property
    def result(self) -> Expected:
        """The fields for which the tables have expected values."""
        found = self.verdict
        outcome = found.get("verdict") or found.get(
            "outcome", ""
        )  # of gsub --json, or of the verdict file of the pre-run
        return Expected(verdict=outcome, steps=found.get("steps", 0), layer=find_layer(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A good script with one bug, and the stage that stops it: "static", "trial" or "none" (then with that verdict)."""

    training: Training
    bug: str
    kind: str
    stage: str
    verdict: str = ""
    warned: bool = False  # the static stage prints a warning and does not refuse it
    quick: bool = False


def mutants() -> dict[str, Mutant]:
    """tests/scripts/mutants/bugs.toml."""
    good = good_trainings()
    return {name: _mutant(name, dict(row), good) for name, row in _table("mutants/bugs.toml").items()}


def _mutant(name: str, row: dict[str, Any], good: Mapping[str, Training]) -> Mutant:
    base, edits = good[row.pop("base")], tuple(row.pop("edits"))
    return Mutant(training=replace(base, name=name, edits=edits), **row)


def good_trainings() -> dict[str, Training]:
    """tests/scripts/expected.toml."""
    return {name: _good(name, row) for name, row in _table("expected.toml").items()}


def _good(name: str, row: Mapping[str, Any]) -> Training:
    expected_keys = ("verdict", "steps", "layer")
    expected_fields = {key: value for key, value in row.items() if key in expected_keys}
    rest = {key: value for key, value in row.items() if key not in (*expected_keys, "without_overlay")}
    lists = {key: tuple(rest.pop(key)) for key in ("args", "options", "needs") if key in rest}
    return Training(
        name=name,
        folder=DATA / "good" / name,
        expected=Expected(**expected_fields),
        without_overlay=Expected(**{**expected_fields, **row.get("without_overlay", {})}),
        **lists,
        **rest,
    )


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((DATA / name).read_text(encoding="utf-8"))


# --- copies in a home -------------------------------------------------------------------------------------------------


def lay_out(training: Training, home: Path, user: str) -> Path:
    """Copies the folder of the training to `home`. It belongs to `user`."""
    folder = home / training.name
    shutil.copytree(training.folder, folder, symlinks=True)
    for edit in training.edits:
        _edit(folder / edit["file"], edit)
    if training.venv:
        _make_venv(folder / "env")
    account = pwd.getpwnam(user)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
    return folder


def _edit(path: Path, edit: Mapping[str, Any]) -> None:
    """One change of a mutant: `old` → `new`, a whole `content`, `remove`, DOS line ends or a file `mode`."""
    if edit.get("remove"):
        path.unlink()
    elif "content" in edit:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(edit["content"], encoding="utf-8")
    elif "old" in edit:
        text = path.read_text(encoding="utf-8")
        assert text.count(edit["old"]) >= 1, f"{path} does not hold {edit['old']!r}"
        path.write_text(text.replace(edit["old"], edit["new"], 1), encoding="utf-8")
    if edit.get("dos"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    if "keep_bytes" in edit:
        path.write_bytes(path.read_bytes()[: edit["keep_bytes"]])
    if "mode" in edit:
        path.chmod(int(edit["mode"], 8))


def _make_venv(directory: Path) -> None:
    """Makes a venv as `python -m venv` does, with the packages of this environment."""
    (directory / "bin").mkdir(parents=True)
    site = directory / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    site.mkdir(parents=True)
    (site / "here.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    base = Path(sys.base_prefix) / "bin"
    (directory / "pyvenv.cfg").write_text(f"home = {base}\ninclude-system-site-packages = false\n")
    for name in ("python", "python3"):
        (directory / "bin" / name).symlink_to(base / f"python{sys.version_info[0]}.{sys.version_info[1]}")
    (directory / "bin/activate").write_text(
        "deactivate () {\n    PATH=$_OLD_VIRTUAL_PATH\n    export PATH\n    unset VIRTUAL_ENV\n}\n"
        f"VIRTUAL_ENV={directory}\nexport VIRTUAL_ENV\n_OLD_VIRTUAL_PATH=$PATH\n"
        "PATH=$VIRTUAL_ENV/bin:$PATH\nexport PATH\n"
    )


# --- pre-run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingHome:
    """The home of a user on a lab, with trainings in it."""

    lab: Lab
    user: str
    home: Path
    tmp: Path  # outside the home, as /tmp is
    overlay: str = "auto"

    def gsub(self, training: Training, *words: str) -> Answer:
        """Runs gsub with these words before the script, in the folder of the training."""
        folder = self.home / training.name
        env = {
            "HOME": str(self.home),
            # the cache of torch.compile there is named after the user, and each session makes a new user
            "TMPDIR": str(self.tmp),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "",  # set by the tests, not by users
            "SLURMWRAP_PRERUN_OVERLAY": self.overlay,
        }
        command = [*PATIENT_GSUB, *words, *training.options, *filter(None, [training.script]), *training.args]
        done = self.lab.run(command, user=self.user, cwd=folder, timeout=900, env=env)
        if job := re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout):
            self.lab.run(["scancel", job[1]], user=self.user)
        verdict = _json(done.stdout) or self._verdict_of(folder)
        return Answer(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr, verdict=verdict)

    def _verdict_of(self, directory: Path) -> dict[str, Any]:
        for spec in (self.home / ".local/state/slurmwrap/prerun").glob("*/spec.json"):
            with suppress(OSError):
                if _json(spec.read_text()).get("chdir") == str(directory):
                    return _json((spec.parent / "verdict.json").read_text())
        return {}

    def gsub_all(self, trainings: Iterable[Training], *words: str) -> dict[str, Answer]:
        """Runs gsub for many trainings, two more at a time than cores: half of their time they wait for Slurm."""
        with ThreadPoolExecutor((os.cpu_count() or 2) + 2) as pool:
            futures = {t.name: pool.submit(self.gsub, t, *words) for t in trainings}
            return {name: future.result() for name, future in futures.items()}

    def close(self) -> None:
        """Removes the home."""
        shutil.rmtree(self.home, ignore_errors=True)

    def wait_for_processes(self) -> list[str]:
        """Waits for the end of the processes of pre-runs of this home. Returns those that are left."""
        return wait_for(lambda: _processes_of(self.home), lambda found: not found, timeout=60)


def _json(text: str) -> dict[str, Any]:
    try:
        plain = json.loads(text)
    except ValueError:
        return {}
    return plain if isinstance(plain, dict) else {}


def _processes_of(home: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            theirs = process.environ().get("HOME") == str(home) or process.cwd().startswith(f"{home}/")
            if theirs and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
    return found


def open_training_home(lab: Lab, user: str, overlay: str, trainings: Iterable[Training]) -> TrainingHome:
    """A new home of `user` with these trainings; close() removes it.

    It is not below /var/tmp, where the other homes of the test users are: slurmwrap reports no error for paths there,
    because they may differ on the nodes.
    """
    _remove_leftovers()
    home = _HOMES / f"{_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
    tmp = lab.dir / f"tmp_{home.name}"
    for folder in (home, home / ".local", home / ".local/state", home / ".cache", tmp):
        folder.mkdir()
        shutil.chown(folder, user, pwd.getpwnam(user).pw_gid)
    for training in trainings:
        lay_out(training, home, user)
    return TrainingHome(lab=lab, user=user, home=home, tmp=tmp, overlay=overlay)


def _remove_leftovers() -> None:
    """Removes homes of test sessions that have ended."""
    for home in _HOMES.glob(f"{_PREFIX}*"):
        if not Path(f"/proc/{home.name.removeprefix(_PREFIX).partition('-')[0]}").exists():
            shutil.rmtree(home, ignore_errors=True)


# --- the user's files -------------------------------------------------------------------------------------------------


def snapshot(home: Path, overlay: str) -> dict[str, tuple[Any, ...]]:
    """Relative path → mode, size, modification time and link target of each file and directory of the user.

    Without an overlay a pre-run makes and removes directories of the script, so the times of directories are left out.
    """
    found = {}
    for folder, folders, files in os.walk(home):
        inside = Path(folder).relative_to(home)
        folders[:] = [f for f in folders if str(inside / f) not in _NOT_THE_USERS]
        for name in (".", *files, *(f for f in folders if (Path(folder) / f).is_symlink())):
            path = Path(folder) / name
            with suppress(FileNotFoundError):
                state = path.lstat()
                link = str(path.readlink()) if path.is_symlink() else ""
                folder_there = stat.S_ISDIR(state.st_mode)
                time_ns = 0 if folder_there and overlay == "off" else state.st_mtime_ns
                found[str(inside / name)] = (oct(state.st_mode), 0 if folder_there else state.st_size, time_ns, link)
    return found


def changes(
    before: Mapping[str, Any], after: Mapping[str, Any], folder: str, except_for: Collection[str] = ()
) -> list[str]:
    """The files that were made, changed or removed in `folder` (relative; "." for the home itself)."""
    found = []
    for path in sorted(before.keys() | after.keys()):
        if path.split("/")[0] != folder or Path(path).name in except_for or before.get(path) == after.get(path):
            continue
        word = "made" if path not in before else "removed" if path not in after else "changed"
        found.append(f"{word} {path}: {before.get(path)} -> {after.get(path)}")
    return found


@dataclass(slots=True)
class OtherJob:
    """Another job of the same user. It writes to the folder of every training during the pre-runs."""

    context: TrainingHome
    folders: Sequence[Path]
    job: str = ""

    def start(self) -> None:
        """Submits the job and waits until it has written its first lines."""
        stop = self.context.home / ".cache/stop"
        files = " ".join(str(f / WRITERS_FILE) for f in self.folders)
        script = (
            f"#!/bin/bash\n#SBATCH --output=/dev/null --mem=50\ni=0\nwhile [ ! -e {stop} ]; do\n"
            f"    for f in {files}; do echo $i >> $f; done\n    i=$((i + 1))\n    sleep 0.5\ndone\n"
        )
        self.job = self.context.lab.submit("-n1", user=self.context.user, script=script)
        last = self.folders[-1] / WRITERS_FILE
        assert wait_for(lambda: last.is_file() and last.stat().st_size > 0, bool, timeout=60)

    def end(self) -> None:
        """Makes the job end by itself, so that its last line is complete."""
        self.context.lab.run(["touch", self.context.home / ".cache/stop"], user=self.context.user)
        self.context.lab.wait_job(self.job, {"COMPLETED"}, timeout=60)

    def written(self, directory: Path) -> tuple[int, bool]:
        """(number of lines, whether they are complete and in order)."""
        lines = (directory / WRITERS_FILE).read_text().split()
        return len(lines), lines == [str(i) for i in range(len(lines))]
