"""Private overlays, entered by an ordinary user: the changes of a command are discarded with its overlay."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurmwrap.prerun.isolation import overlay, overlay_enter
from slurmwrap.prerun.isolation.overlay import Overlay
from slurmwrap.prerun.trial.trial_spec import TrialSpec

UID = 54321  # no account of this machine; these tests need no user name
DRIVER = """
import json, os, subprocess, sys
from slurmwrap.prerun.isolation.overlay import plan
from slurmwrap.prerun.trial.trial_spec import TrialSpec

home, script, programs = sys.argv[1], sys.argv[2], sys.argv[3:]
spec = TrialSpec(trial_dir=home + "/state/trial", script="", chdir=home + "/work")
environ = {"HOME": home, "PATH": os.environ["PATH"], "USER": "ada"}
found = plan(spec, environ, programs=programs)
done = subprocess.run(found.command(["bash", "-c", script]), cwd=spec.chdir, capture_output=True, text=True)
upper = found.upper(home + "/work/new.txt")
seen = open(upper).read() if upper and os.path.exists(upper) else None
found.remove()
print(json.dumps({"roots": found.roots, "left_out": found.left_out, "reason": found.reason, "out": done.stdout,
                  "err": done.stderr, "code": done.returncode, "upper": seen, "left": os.path.exists(found.folder)}))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A home of UID, on a path that all users may enter (other users cannot enter pytest's directories)."""
    folder = Path(tempfile.mkdtemp(prefix="slurmwrap-test-", dir="/var/tmp"))
    (folder / "work").mkdir()
    (folder / "work" / "old.txt").write_text("old")
    (folder / "work" / "sub").mkdir()
    (folder / "state" / "trial").mkdir(parents=True)
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, UID, UID)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def user_options(groups: Sequence[int] = ()) -> dict[str, Any]:
    return {"user": UID, "group": UID, "extra_groups": list(groups)} if os.geteuid() == 0 else {}


def run_in_planned_overlay(home: Path, script: str, *programs: str, groups: Sequence[int] = ()) -> dict[str, Any]:
    """Plans an overlay as an ordinary user and runs a script in it."""
    argv = [sys.executable, "-c", DRIVER, str(home), script, *programs]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd="/", **user_options(groups))
    except OSError as error:
        pytest.skip(f"an ordinary user cannot run {sys.executable}: {error}")
    if "slurmwrap" in done.stderr and "ModuleNotFoundError" in done.stderr:
        pytest.skip("an ordinary user cannot read this checkout")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run_in_overlay(home: Path, script: str, *, groups: Sequence[int] = ()) -> dict[str, Any]:
    found = run_in_planned_overlay(home, script, groups=groups)
    if not found["roots"]:
        pytest.skip(f"no overlay here: {found['reason']}")
    return found


def read_contents(home: Path) -> dict[str, str]:
    return {str(p.relative_to(home)): p.read_text() if p.is_file() else "" for p in sorted(home.rglob("*"))}


def test_changes_of_a_command_are_discarded_with_its_overlay(home: Path) -> None:
    before = read_contents(home)
    script = "echo new > new.txt; rm old.txt; mv sub moved 2> /dev/null || cp -r sub moved; rm -r sub; mkdir sub; ls -x"
    result = run_in_overlay(home, script)
    assert (result["out"].split(), result["code"]) == (["moved", "new.txt", "sub"], 0)
    assert result["upper"] == "new\n"
    assert not result["left"]
    assert read_contents(home) == before


def test_the_directory_of_the_trial_is_not_covered_by_the_overlay(home: Path) -> None:
    assert run_in_overlay(home, "echo said > ../state/trial/output")["code"] == 0
    assert (home / "state" / "trial" / "output").read_text() == "said\n"


def test_the_command_keeps_its_uid_and_has_no_capabilities(home: Path) -> None:
    uid = UID if os.geteuid() == 0 else os.geteuid()
    result = run_in_overlay(home, "id -u; stat -c %u old.txt; pwd; grep CapEff /proc/self/status")
    assert result["out"].split() == [str(uid), str(uid), str(home / "work"), "CapEff:", "0000000000000000"]


def test_other_processes_can_write_to_the_covered_directory_meanwhile(home: Path) -> None:
    waiting = home / "state" / "trial"
    script = f"""
        echo mine > both.txt; touch {waiting}/ready
        for i in $(seq 2000); do [ -e {waiting}/go ] && break; sleep 0.01; done
        cat both.txt theirs.txt; echo more >> mine.txt; ls
    """
    argv = [sys.executable, "-c", DRIVER, str(home), script]
    trial = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd="/", **user_options())
    while trial.poll() is None and not (waiting / "ready").exists():
        pass
    if trial.poll() is None:
        (home / "work" / "both.txt").write_text("another job's\n")
        (home / "work" / "theirs.txt").write_text("theirs\n")
        (waiting / "go").write_text("")
    found = json.loads(trial.communicate(timeout=60)[0])
    if not found["roots"]:
        pytest.skip(f"no overlay here: {found['reason']}")
    assert found["out"] == "mine\ntheirs\nboth.txt\nmine.txt\nold.txt\nsub\ntheirs.txt\n"
    assert (home / "work" / "both.txt").read_text() == "another job's\n"
    assert (home / "work" / "theirs.txt").read_text() == "theirs\n"
    assert not (home / "work" / "mine.txt").exists()


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to a group")
GROUP = UID + 1
STAGING = """
set -e
echo more >> old.txt; cp old.txt sub/copy.txt; mv sub/copy.txt sub/moved.txt; mkdir -p runs/a; cp -r sub runs/a
tar cf runs/all.tar sub; rm -r sub; tar xf runs/all.tar; dd if=/dev/zero of=sub/zeros bs=1k count=1 2> /dev/null
mv old.txt sub/old.txt; echo new > new.txt; cat sub/old.txt; find . | LC_ALL=C sort
"""


@NEEDS_ROOT
def test_data_is_staged_in_a_directory_of_a_secondary_group_and_nothing_is_left(home: Path) -> None:
    # The project directory of a group: setgid, so that all its files belong to the group.
    for path in (home / "work", *(home / "work").rglob("*")):
        os.chown(path, UID, GROUP)
    (home / "work").chmod(0o2770)
    (home / "work" / "old.txt").chmod(0o660)
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in (home / "work").rglob("*"))
    result = run_in_overlay(home, STAGING, groups=[GROUP])
    assert (result["code"], result["err"], result["left_out"]) == (0, "", [])
    assert result["out"].split() == [
        *(
            "oldmore",
            ".",
            "./new.txt",
            "./runs",
            "./runs/a",
            "./runs/a/sub",
            "./runs/a/sub/moved.txt",
            "./runs/all.tar",
        ),
        *("./sub", "./sub/moved.txt", "./sub/old.txt", "./sub/zeros"),
    ]
    assert result["upper"] == "new\n" and not result["left"]
    assert sorted((str(path), path.lstat().st_mtime_ns) for path in (home / "work").rglob("*")) == before


@NEEDS_ROOT
def test_what_a_colleague_owns_in_the_group_directory_stays_closed_to_the_trial(home: Path) -> None:
    theirs = home / "work" / "theirs"
    theirs.mkdir(mode=0o755)
    (theirs / "table.csv").write_text("1,2\n")
    for path, owner in ((home / "work", UID), (theirs, UID + 7), (theirs / "table.csv", UID + 7)):
        os.chown(path, owner, GROUP)
    (home / "work").chmod(0o2770)
    script = "cat theirs/table.csv; echo 3 >> theirs/table.csv; touch theirs/new; rm theirs/table.csv; echo $?"
    result = run_in_overlay(home, script, groups=[GROUP])
    assert result["out"] == "1,2\n1\n" and result["err"].count("Permission denied") == 3


def test_a_program_that_needs_setuid_runs_without_an_overlay(home: Path) -> None:
    found = run_in_planned_overlay(home, "true", "bash", "podman")
    assert (found["roots"], found["reason"]) == ([], "podman cannot work in a user namespace")


@pytest.mark.parametrize(("mode", "needs"), [(0o755, False), (0o4755, True)])
def test_apptainer_needs_setuid_if_its_starter_has_the_bit(mode: int, needs: bool, tmp_path: Path) -> None:
    program, starter = tmp_path / "bin/apptainer", tmp_path / "libexec/apptainer/bin/starter-suid"
    for path in (program, starter):
        path.parent.mkdir(parents=True)
        path.touch()
    starter.chmod(mode)
    assert overlay.needs_setuid("apptainer", str(program)) is needs
    assert not overlay.needs_setuid("apptainer", "")
    assert not overlay.needs_setuid("bwrap", str(program))


def test_an_overlay_that_is_off_leaves_the_command_unchanged(tmp_path: Path) -> None:
    spec = TrialSpec(trial_dir=str(tmp_path), script="", overlay="off")
    found = overlay.plan(spec, {})
    assert (found, found.command(["a", "b"])) == (Overlay(reason="switched off"), ("a", "b"))


def test_a_missing_interpreter_gives_the_same_message_as_slurm(home: Path) -> None:
    result = run_in_overlay(home, "true")
    parameters = json.dumps({"layers": [], "keep": []})
    argv = [sys.executable, "-I", "-S", overlay_enter.__file__, "run", parameters, "/no/such/shell"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd="/", **user_options())
    assert result["code"] == 0
    assert (done.returncode, done.stderr) == (
        2,
        "slurmstepd: error: execve(): bad interpreter(/no/such/shell): No such file or directory\n",
    )


@pytest.mark.parametrize(("climbs", "covered"), [(True, ["lab/ada", "scratch"]), (False, ["lab/ada/w", "scratch"])])
def test_the_highest_directory_that_belongs_to_the_user_is_covered(
    climbs: bool, covered: list[str], tmp_path: Path
) -> None:
    for name in ("lab/ada/w/run", "scratch/x", "shared"):
        (tmp_path / name).mkdir(parents=True)
    own = {str(tmp_path / name) for name in ("lab/ada", "lab/ada/w", "lab/ada/w/run", "scratch", "scratch/x")}
    named = [*(str(tmp_path / n) for n in ("lab/ada/w/new/dir", "lab/ada/w/run", "scratch", "scratch/x", "shared"))]
    found = overlay_enter.select_roots(
        [*named, "", "relative", "/", "/etc", "/proc/self"],
        own.__contains__,
        str(tmp_path / "shared").__eq__,
        climbs=climbs,
    )
    assert found == (
        [*(str(tmp_path / name) for name in covered), str(tmp_path / "shared")],
        [str(tmp_path / "shared")],
    )


def test_a_group_directory_is_covered_up_to_one_that_everyone_may_write_to(tmp_path: Path) -> None:
    run = tmp_path / "scratch" / "group" / "ada" / "run"
    run.mkdir(parents=True)
    (tmp_path / "scratch").chmod(0o1777)
    found = overlay_enter.select_roots([str(run)], lambda folder: False, lambda folder: True, climbs=True)
    assert found == ([str(tmp_path / "scratch" / "group")], [str(run)])


TRIAL = """
import json, sys
from slurmwrap.prerun.trial.supervisor import run_trial
from slurmwrap.prerun.trial.trial_spec import TrialSpec

home = sys.argv[1]
spec = TrialSpec(trial_dir=home + "/state/trial", script=home + "/state/trial/script", chdir=home + "/work")
result = run_trial(spec, environ={"HOME": home, "PATH": sys.argv[2], "USER": "ada"})
print(json.dumps([result.layer, result.exit_code, result.error, result.logs[0].text]))
"""


def test_a_trial_that_writes_to_a_directory_of_another_group_repeats_without_overlay(home: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(home / "work" / "sub", UID, UID + 1)
    code = "import os; open('sub/new.txt', 'w').write('x'); print('wrote', os.path.exists('sub/new.txt'))"
    (home / "state" / "trial" / "script").write_text(f'#!/bin/bash\npython3 -c "{code}"\n')
    argv = [sys.executable, "-c", TRIAL, str(home), os.environ["PATH"]]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, **user_options())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["exit", 0, "", "wrote True\n"]
    assert list((home / "work" / "sub").iterdir()) == []


def test_layers_of_a_killed_supervisor_are_removed_by_the_next_one(tmp_path: Path) -> None:
    living, dead = tmp_path / "slurmwrap-overlay-living", tmp_path / "slurmwrap-overlay-dead"
    for folder in (living, dead):
        (folder / "0" / "upper").mkdir(parents=True)
    held = overlay._lock_folder(str(living))
    os.close(overlay._lock_folder(str(dead)))
    (tmp_path / "slurmwrap-overlay-begun").mkdir()
    overlay._remove_leftovers(str(tmp_path))
    os.close(held)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["slurmwrap-overlay-begun", "slurmwrap-overlay-living"]


def test_layers_that_use_most_of_the_free_space_count_as_filling_the_disk(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    found = [Overlay(folder=str(tmp_path), room=room).is_filling_disk() for room in (0, free, 10 * free)]
    assert found == [False, False, True]


def test_covered_paths_have_a_path_in_the_upper_layer() -> None:
    found = Overlay(roots=("/home/ada", "/s/ada"), folder="/tmp/o", keep=("/home/ada/.state/7",))
    paths = ("/home/ada/x", "/home/adam", "/home/ada/.state/7/out", "/s/ada", "/etc")
    assert [found.covers(path) for path in paths] == [True, False, False, True, False]
    assert found.upper("/s/ada/run/log") == "/tmp/o/1/upper/run/log"
    assert found.upper("/etc/x") is None


def test_directories_of_a_user_are_searched_on_disk_file_systems_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ((tmp_path / "scratch", "ext4"), (tmp_path / "memory", "tmpfs"), (f"{tmp_path}/a\\040b", "ext4"))
    for folder, _ in rows:
        Path(folder, "ann").mkdir(parents=True)
    table = tmp_path / "mountinfo"
    table.write_text("".join(f"1 2 8:1 / {folder} rw - {kind} /dev/x rw\n" for folder, kind in rows))
    monkeypatch.setattr(overlay_enter, "open", lambda name, **how: open(table, **how), raising=False)  # noqa: PTH123, SIM115
    assert overlay_enter._list_user_places("ann") == [f"{tmp_path}/scratch/ann"]


def test_candidate_directories_come_from_the_job_and_its_environment() -> None:
    spec = TrialSpec(
        trial_dir="/t", script="", chdir="/w", args=("--out=/out/a", "x", "/data/b"), inputs=("/in/c",),
        environment={"SET": "/own"},
    )  # fmt: skip
    environ = {"HOME": "/home/ada", "WORK": "/work/ada", "PATH": "/bin:/usr/bin", "TMPDIR": "/tmp/7", "X": "/tmp/7/x"}
    assert overlay.list_candidates(spec, environ) == [
        *("/w", "/home/ada", "/in/c", "/work/ada", "/own", "/out/a", "/data/b"),
    ]


@pytest.mark.parametrize(
    ("text", "symptom"),
    [
        ("OSError: [Errno 75] Value too large for defined data type: 'x'", "Value too large for defined data type"),
        ("mv: cannot move 'a': Invalid cross-device link", "Invalid cross-device link"),
        ("ValueError: 3", ""),
    ],
)
def test_errors_that_an_overlay_causes_are_recognized(text: str, symptom: str) -> None:
    assert overlay.find_overlay_error(text) == symptom
