"""Whole trials with and without an overlay: the user's files stay unchanged, and the verdict is about the job."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.model.trial_result import TrialResult
from slurmwrap.prerun.isolation import protection
from slurmwrap.prerun.isolation.overlay import Overlay, plan
from slurmwrap.prerun.isolation.script_writes import FileWrite
from slurmwrap.prerun.trial.trial_spec import TrialSpec

Trial = Callable[..., TrialResult]
Spec = Callable[..., TrialSpec]


def snapshot(directory: Path) -> list[tuple[str, int, int, int]]:
    stats = [(str(path), path.lstat()) for path in sorted(directory.rglob("*"))]
    return [(path, at.st_mtime_ns, at.st_size, at.st_mode) for path, at in stats]


@pytest.fixture
def files(job: Path) -> Path:
    (job / "old").mkdir()
    (job / "old" / "result.txt").write_text("42\n")
    (job / "data.txt").write_text("data\n")
    (job / "clean.sh").write_text("#!/bin/bash\nrm -f data.txt\n")
    return job


def make_checked_trial(overlay: str, trial: Trial, make_spec: Spec, files: Path) -> Trial:
    """Returns a function that runs a trial and checks that the user's files stay unchanged."""
    if overlay == "auto":
        overlay_plan = plan(make_spec("#!/bin/sh\n"), {})
        overlay_plan.remove()
        if not overlay_plan.roots:
            pytest.skip("no overlay on this machine")

    def run(body: str, **fields: object) -> TrialResult:
        before = snapshot(files)
        result = trial(f"#!/bin/bash\nset -e\n{body}\n", overlay=overlay, **fields)
        assert snapshot(files) == before
        return result

    return run


@pytest.fixture(params=["auto", "off"])
def protected_trial(request: pytest.FixtureRequest, trial: Trial, make_spec: Spec, files: Path) -> Trial:
    return make_checked_trial(request.param, trial, make_spec, files)


@pytest.fixture
def overlay_trial(trial: Trial, make_spec: Spec, files: Path) -> Trial:
    """Runs a trial with an overlay."""
    return make_checked_trial("auto", trial, make_spec, files)


def read_logs(result: TrialResult) -> dict[str, str]:
    return {Path(log.name).name: log.text for log in result.logs}


STEPS = "before step 1\nafter step 1\nbefore step 2\nafter step 2\n"


def test_logs_of_a_script_that_ends_well_are_read(protected_trial: Trial) -> None:
    body = """python train.py 2 | tee -a run.log
mkdir -p logs/1; echo deep &> logs/1/t.log
echo a >> a.log; echo b >> a.log
rm -f nothing.here
python -c "open('m','w').write('x'); print(open('m').read())"
python -c "import os; os.remove('data.txt'); print(os.listdir('old'))"
python train.py 2 > train.log 2>&1
"""
    result = protected_trial(body)
    assert (result.layer, result.exit_code) == ("exit", 0)
    assert read_logs(result) == {
        "output": f"{STEPS}x\n['result.txt']\n",
        "run.log": STEPS,
        "t.log": "deep\n",
        "a.log": "a\nb\n",
        "train.log": STEPS,
    }


def test_a_script_stops_in_the_third_step_and_its_redirected_log_is_read(protected_trial: Trial) -> None:
    result = protected_trial("cat > c.yaml <<EOF\na: 1\nEOF\npython train.py 9 > train.log 2>&1\ncp train.log old/\n")
    assert (result.layer, result.steps) == ("step", 3)
    assert read_logs(result)["train.log"].endswith("before step 3\n")


def test_an_error_in_a_redirected_log_is_read(protected_trial: Trial) -> None:
    result = protected_trial("python -c 'raise ValueError(3)' > train.log 2>&1")
    assert (result.layer, result.exit_code) == ("exit", 1)
    assert read_logs(result)["train.log"].endswith("ValueError: 3\n")


TOUCHING = [
    ("rm -rf old", "old", "line 2: rm"),
    ("if [ -d old ]; then mv old older; fi", "old", "mv"),
    ("bash clean.sh", "data.txt", "rm"),
    ('TO=$(echo copy); cp data.txt "$TO"', "copy", "cp"),
    ("find old -name '*.txt' -delete", "old", "line 2: find"),
]


@pytest.mark.parametrize(("body", "path", "command"), TOUCHING)
def test_without_an_overlay_a_script_that_changes_files_is_not_run(
    trial: Trial, files: Path, body: str, path: str, command: str
) -> None:
    before = snapshot(files)
    result = trial(f"#!/bin/bash\n{body}; python train.py 9\n", overlay="off")
    assert snapshot(files) == before
    assert (result.layer, result.steps) == ("supervisor", 0)
    assert result.error.startswith("would touch /")
    assert f"/{path} ({command})" in result.error
    assert result.error.endswith("--prerun-command='python train.py 9'")
    assert result.touched


def test_with_an_overlay_a_script_that_changes_files_is_run(overlay_trial: Trial) -> None:
    _, move, clean, copy, find = (body for body, _, _ in TOUCHING)
    result = overlay_trial("\n".join([copy, clean, find, move, "rm -rf older", "python train.py 9"]))
    assert (result.layer, result.steps, result.error) == ("step", 3, "")


def test_without_an_overlay_a_file_change_after_the_training_ends_the_trial(trial: Trial, files: Path) -> None:
    result = trial("#!/bin/bash\npython train.py 2\nrm -rf old\necho never\n", overlay="off")
    assert (result.layer, result.steps, result.touched) == ("supervisor", 2, (f"{files}/old (rm)",))
    assert (files / "old" / "result.txt").exists()
    assert "never" not in result.logs[0].text


def test_a_script_that_reads_its_redirected_log_is_not_judged_as_failed(trial: Trial, files: Path) -> None:
    result = trial("#!/bin/bash\npython train.py 1 > t.log\ngrep step t.log\n", overlay="off")
    assert (result.layer, result.error) == ("supervisor", "the script reads a file that its pre-run wrote elsewhere")
    assert not (files / "t.log").exists()


def test_a_prerun_command_replaces_a_script_that_changes_files(trial: Trial, files: Path) -> None:
    result = trial("#!/bin/bash\nrm -rf old\n", overlay="off", command="python train.py 9 > t.log 2>&1")
    assert (result.layer, result.steps) == ("step", 3)
    assert not (files / "t.log").exists()


def test_directories_made_and_removed_do_not_change_the_time_of_their_parent(trial: Trial, files: Path) -> None:
    for folder in (files, files / "old"):
        os.utime(folder, ns=(10**18, 10**18 + 7))
    trial("#!/bin/bash\nmkdir -p a/b old/c\nmkdir old/d a/e\n", overlay="off")
    assert [folder.stat().st_mtime_ns for folder in (files, files / "old")] == [10**18 + 7] * 2


def test_directories_made_by_the_trial_are_removed_unless_another_job_uses_them(trial: Trial, files: Path) -> None:
    # a write as of another job: it bypasses every shim
    elsewhere = "bin=$(echo /usr/bin); echo x | $bin/tee c/theirs > /dev/null"
    trial(f"#!/bin/bash\nmkdir -p a/b c old\n{elsewhere}\n", overlay="off")
    assert sorted(p.name for p in files.iterdir() if p.is_dir()) == ["c", "old", "torch"]
    assert (files / "c" / "theirs").read_text() == "x\n"


def test_no_files_of_the_protection_are_left(trial: Trial, files: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    environ = {"TMPDIR": str(tmp_path / "scratch")}
    for overlay in ("auto", "off"):
        trial("#!/bin/bash\npython train.py 2 > t.log\n", overlay=overlay, environ=environ)
        assert list((tmp_path / "scratch").iterdir()) == []
        assert not {"outputs", "gone"} & {p.name for p in (tmp_path / "trial").iterdir()}


def test_line_ends_and_non_ascii_bytes_of_a_script_are_kept(trial: Trial, make_spec: Spec, files: Path) -> None:
    spec = make_spec("")
    Path(spec.script).write_bytes(b"#!/bin/bash\necho caf\xe9 > a.log\r\n")
    copy = protection.set_up_protection(replace(spec, overlay="off"), {}).spec.script
    redirect = f"{spec.trial_dir}/shims/redirect".encode()
    assert Path(copy).read_bytes() == b'#!/bin/bash\necho caf\xe9 > "$(' + redirect + b" '>' a.log)\"\r\n"


def test_free_and_protected_directories_are_listed(make_spec: Spec, files: Path) -> None:
    spec = make_spec("#!/bin/sh\n")
    environ = {"TMPDIR": f"{files}/tmp", "HOME": "/home/ada", "SLURM_SUBMIT_DIR": str(files)}
    free, held = protection.list_places(spec, environ, Overlay())
    assert free == (f"{files}/tmp", "/tmp", "/var/tmp", "/dev", "/proc", "/run/user", spec.trial_dir)
    assert held == (str(files), "/home/ada")
    covered = Overlay(roots=("/home/ada",), keep=(spec.trial_dir,))
    assert protection.list_places(spec, environ, covered) == ((*free, "/home/ada"), (str(files),))


def test_a_home_that_is_also_tmpdir_is_not_free(make_spec: Spec, files: Path) -> None:
    free, _ = protection.list_places(make_spec("#!/bin/sh\n"), {"TMPDIR": "/home/ada", "HOME": "/home/ada"}, Overlay())
    assert "/home/ada" not in free


def test_forbidden_writes_are_read_and_invalid_lines_are_tolerated(tmp_path: Path) -> None:
    (tmp_path / "touched").write_text("rm\t/w/a\nrm\t/w/a\nmv\t?\nnonsense\n")
    assert protection.list_forbidden_writes(str(tmp_path)) == (
        FileWrite(path="/w/a", line=0, command="rm"),
        FileWrite(path="", line=0, command="mv"),
        FileWrite(path="", line=0, command="nonsense"),
    )
