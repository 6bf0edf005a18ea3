"""Training scripts of tests/scripts as tests use them: laid out in a user's home, and pre-run on a lab, many at once.

What is asked of a pre-run beside its verdict is looked at here too: the user's files before and after, and processes.
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
# gsub whose static stage has the time that it needs here: what it skips after two seconds is not warned of.
PATIENT_GSUB = (
    sys.executable,
    "-c",
    "import runpy; from slurmwrap.prerun.static import static_stage; static_stage.BUDGET_S = 120.0; "
    "runpy.run_module('slurmwrap.gsub.gsub_main', run_name='__main__', alter_sys=True)",
)
_HOMES = Path("/home")
_PREFIX = "slurmwrap-test-"
WRITERS_FILE = "results_of_another_job.csv"
# slurmwrap's own, and caches, which exist to be written.
_NOT_THE_USERS = (".local/state/slurmwrap", ".cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the pre-run has to say."""

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
        """Packages that are not installed here."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What gsub said of one training. `verdict` is its JSON, empty where it gave none."""

    exit_code: int
    stdout: str
    stderr: str
    verdict: Mapping[str, Any]

    @property
    def stopped_by(self) -> str:
        """ "static": refused before anything was submitted; "trial": failed on one GPU; "none"; or "fault"."""
        if not self.verdict:  # sbatch or gsub refused; "details:" names a fault of slurmwrap's own
            return "static" if self.exit_code and "(details: " not in self.stderr else "fault"
        if self.verdict["layer"] == "static":
            return "static"
        return "trial" if self.said.verdict == "fail" else "none"

    @property
    def warnings(self) -> list[str]:
        """What the static stage remarked on without refusing."""
        return [line for line in self.stderr.splitlines() if line.startswith("gsub: warning: ")]

    def as_expected(self, wanted: Expected) -> Expected:
        """What it said, in the words of `wanted`."""
        enough = wanted.steps == "some" and isinstance(self.said.steps, int) and self.said.steps >= 3
        return replace(self.said, steps="some") if enough else self.said

    @property
    def said(self) -> Expected:
        """The part of it that a table expects."""
        found = self.verdict
        outcome = found.get("verdict") or found.get("outcome", "")  # gsub --json, and the trial's own file
        return Expected(verdict=outcome, steps=found.get("steps", 0), layer=found.get("layer", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A good script with one bug, and who stops it: "static", "trial" or "none" (then with that verdict)."""

    training: Training
    bug: str
    kind: str
    stage: str
    verdict: str = ""
    warned: bool = False  # the static stage remarks on it, without refusing
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
    looked_at = ("verdict", "steps", "layer")
    said = {key: value for key, value in row.items() if key in looked_at}
    rest = {key: value for key, value in row.items() if key not in (*looked_at, "without_overlay")}
    lists = {key: tuple(rest.pop(key)) for key in ("args", "options", "needs") if key in rest}
    return Training(
        name=name,
        folder=DATA / "good" / name,
        expected=Expected(**said),
        without_overlay=Expected(**{**said, **row.get("without_overlay", {})}),
        **lists,
        **rest,
    )


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((DATA / name).read_text(encoding="utf-8"))


# --- laid out ---------------------------------------------------------------------------------------------------------


def lay_out(training: Training, home: Path, user: str) -> Path:
    """The training's folder as `user`'s own below `home`."""
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
    """As `python -m venv` leaves it, with the packages of this environment."""
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
class Ground:
    """A user's home on a lab with trainings in it."""

    lab: Lab
    user: str
    home: Path
    tmp: Path  # outside the home, as /tmp is
    overlay: str = "auto"

    def gsub(self, training: Training, *words: str) -> Answer:
        """gsub with these words before the script, in the training's folder; waits for the answer."""
        folder = self.home / training.name
        env = {
            "HOME": str(self.home),
            "TMPDIR": str(
                self.tmp
            ),  # torch.compile's cache there is named after the user, whom each session makes anew
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "",  # the tests' own habit, not the user's
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
        """The same for many, a few more at once than there are cores: they wait for Slurm as long as they compute."""
        with ThreadPoolExecutor((os.cpu_count() or 2) + 2) as pool:
            futures = {t.name: pool.submit(self.gsub, t, *words) for t in trainings}
            return {name: future.result() for name, future in futures.items()}

    def close(self) -> None:
        """Removes the home."""
        shutil.rmtree(self.home, ignore_errors=True)

    def left(self) -> list[str]:
        """Processes that belong to pre-runs of this home, once they had time to go."""
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


def open_ground(lab: Lab, user: str, overlay: str, trainings: Iterable[Training]) -> Ground:
    """A fresh home of `user`, with these trainings laid out; close() removes it.

    Not below /var/tmp, where the users' own homes are: a path there may differ on the nodes, and is never an error.
    """
    _remove_leftovers()
    home = _HOMES / f"{_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
    tmp = lab.dir / f"tmp_{home.name}"
    for folder in (home, home / ".local", home / ".local/state", home / ".cache", tmp):
        folder.mkdir()
        shutil.chown(folder, user, pwd.getpwnam(user).pw_gid)
    for training in trainings:
        lay_out(training, home, user)
    return Ground(lab=lab, user=user, home=home, tmp=tmp, overlay=overlay)


def _remove_leftovers() -> None:
    """Homes of sessions that are no longer there."""
    for home in _HOMES.glob(f"{_PREFIX}*"):
        if not Path(f"/proc/{home.name.removeprefix(_PREFIX).partition('-')[0]}").exists():
            shutil.rmtree(home, ignore_errors=True)


# --- the user's files -------------------------------------------------------------------------------------------------


def snapshot(home: Path, overlay: str) -> dict[str, tuple[Any, ...]]:
    """Relative path → kind and mode, size, modification time, target of each of the user's files and directories.

    Without an overlay a folder that the script made is made and removed again: the time of its parent is left out then.
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
    """What was made, changed or removed in `folder` (relative; "." for the home itself)."""
    said = []
    for path in sorted(before.keys() | after.keys()):
        if path.split("/")[0] != folder or Path(path).name in except_for or before.get(path) == after.get(path):
            continue
        word = "made" if path not in before else "removed" if path not in after else "changed"
        said.append(f"{word} {path}: {before.get(path)} -> {after.get(path)}")
    return said


@dataclass(slots=True)
class OtherJob:
    """Another job of the same user that writes into every training's folder while they are pre-run."""

    context: Ground
    folders: Sequence[Path]
    job: str = ""

    def start(self) -> None:
        """Returns once its first lines are there."""
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
        """Lets it end by itself, so that its last line is whole."""
        self.context.lab.run(["touch", self.context.home / ".cache/stop"], user=self.context.user)
        self.context.lab.wait_job(self.job, {"COMPLETED"}, timeout=60)

    def written(self, directory: Path) -> tuple[int, bool]:
        """(lines, whether they are all there and in order)."""
        lines = (directory / WRITERS_FILE).read_text().split()
        return len(lines), lines == [str(i) for i in range(len(lines))]
