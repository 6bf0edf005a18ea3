"""gsub --again: which tasks of an array, which call, and what is said when something is missing or has changed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeSlurm, job

from slurmwrap.console import Console
from slurmwrap.digest import sha256_hex
from slurmwrap.errors import ScriptError, SlurmwrapError, UsageError
from slurmwrap.gsub import resubmission
from slurmwrap.gsub.gsub_main import _parse_stored_call
from slurmwrap.gsub.resubmission import (
    TaskSelection,
    find_changed_counts,
    find_last_states,
    find_submission,
    repeat_call,
    select_failed_tasks,
)
from slurmwrap.gsub.submission_records import leave_submission
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.observation import Observation
from slurmwrap.model.submission import Submission, SubmittedCall
from slurmwrap.sbatch.array_indices import expand_indices, fold_indices
from slurmwrap.slurm.sacct import Sacct
from slurmwrap.store.user_state_files import UserState

SCRIPT = "#!/bin/sh\n#SBATCH --array=1-9%3\ntrue\n"


def run(address: str, state: str, submit_time: int = 100) -> JobRun:
    return JobRun(attempt=RunKey(cluster="lab", job_id=1, submit_time=submit_time), address=address, state=state)


def test_the_last_run_of_each_task_counts() -> None:
    runs = [run("77_1", "FAILED"), run("77_1", "COMPLETED", 200), run("77_2", "FAILED"), run("77_2", "REQUEUED", 200)]
    assert find_last_states([*runs, run("77_3", ""), run("77", "CANCELLED")]) == {
        1: "COMPLETED",
        2: "",
        3: "",
        None: "CANCELLED",
    }


def test_failed_tasks_are_selected_and_the_others_are_counted() -> None:
    states: dict[int | None, str] = {1: "FAILED", 2: "COMPLETED", 3: "TIMEOUT", 4: "CANCELLED", 5: "", 7: "NODE_FAIL"}
    assert select_failed_tasks("1-7%2", states) == TaskSelection(
        indices=(1, 3, 7), left_out="1 completed, 1 cancelled, 1 not ended, 1 unknown"
    )
    assert select_failed_tasks("1-3", {1: "COMPLETED", None: ""}).left_out == "1 completed, 2 not ended"


def test_an_array_that_was_cancelled_as_a_whole_is_selected_as_a_whole() -> None:
    assert select_failed_tasks("1-3", {None: "CANCELLED"}).indices == (1, 2, 3)
    assert select_failed_tasks("1-3", {1: "COMPLETED", None: "CANCELLED"}).indices == ()


@pytest.mark.parametrize("text", ["3", "1-3,7", "1,2,9", "1-2", "0-10:5", "5-3"])
def test_indices_are_expanded_and_folded(text: str) -> None:
    assert expand_indices(fold_indices(expand_indices(text))) == expand_indices(text)
    assert fold_indices((7, 1, 2, 3, 3)) == "1-3,7"


class Slurm(FakeSlurm):
    """Slurm, by default without accounting."""

    settings: Mapping[str, str] = {}

    def config(self) -> Mapping[str, str]:
        return self.settings


class User:
    """A user whose earlier call is in their spool."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.environ = {"HOME": str(folder), "SLURMWRAP_CONFIG": "/nonexistent"}
        self.state = UserState(folder / ".local/state/slurmwrap")
        self.slurm = Slurm()
        self.public: list[Observation] = []
        self.script = folder / "train.sbatch"
        self.script.write_text(SCRIPT)
        monkeypatch.setattr(resubmission, "make_slurm_commands", lambda *given: self.slurm)
        monkeypatch.setattr(resubmission, "_find_own_name", lambda: None)

    def submit(self, *words: str, script: str = "", at: float | None = None, **changes: object) -> None:
        digest = sha256_hex((script or SCRIPT).encode("utf-8", "surrogateescape"))
        call = SubmittedCall(words=words, cwd=str(self.folder), variables={"SBATCH_QOS": "high"}, script=script)
        plain = Submission(
            cluster="lab", job_id=77, uid=os.geteuid(), user="x", at=at or time.time(), call=call,
            script_path=str(self.script), script_sha256=digest,
        )  # fmt: skip
        spool = f"{self.state.place}/spool"
        leave_submission(replace(plain, **changes), os.geteuid(), spool, self.keep)  # type: ignore[arg-type]

    def keep(self, note: Observation) -> str:
        self.public.append(note)
        return ""

    def tasks(self, **states: str) -> None:
        """Tasks of array 77 by state: tasks(t3="FAILED")."""
        for name, state in states.items():
            number, now = int(name[1:]), int(time.time())
            plain: JobRecord = job(1000 + number, state=state, uid=os.geteuid(), submit_time=now)
            self.slurm.add(replace(plain, array_job_id=77, array_task_id=number))

    def again(self, *words: str) -> Sequence[str]:
        self.repeated = repeat_call(words, self.environ, Console.of_terminal("gsub"), _parse_stored_call)
        return self.repeated.words


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    return User(tmp_path, monkeypatch)


def test_the_failed_tasks_are_submitted_by_the_same_call_with_added_options(
    user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    user.submit("--retry", "-J", "two words", "--force", "-d", "afterok:70", "--", "train.sbatch", "--array=5", "a b")
    user.tasks(t2="FAILED", t3="OUT_OF_MEMORY", t4="COMPLETED")
    words = user.again("--again", "77", "--time=4:00:00")
    assert words == [
        *("--retry", "-J", "two words", "--time=4:00:00", "--array=2,3%3", "--", "train.sbatch", "--array=5", "a b"),
    ]
    assert (user.repeated.cwd, user.repeated.variables) == (str(user.folder), {"SBATCH_QOS": "high"})
    said = capsys.readouterr().err
    assert "array 77: 2 tasks again, 2,3 (1 completed, 6 unknown: left out)" in said
    assert "without --dependency=afterok:70, which was about the first submission" in said


def test_a_script_that_divides_its_work_by_the_number_of_tasks_is_named() -> None:
    script = b"python train.py --shard $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT --last $SLURM_ARRAY_TASK_MAX"
    assert find_changed_counts(script, "0-9", "--array=3,9%2") == (
        "the script uses SLURM_ARRAY_TASK_COUNT, which is 2 now and was 10",
    )
    assert find_changed_counts(b"true", "0-9", "--array=3") == find_changed_counts(script, "", "") == ()


def test_one_task_or_named_tasks_are_submitted(user: User) -> None:
    user.submit("train.sbatch")
    user.tasks(t2="FAILED", t3="RUNNING")
    assert user.again("--again=77_2") == ["--array=2", "train.sbatch"]
    assert user.again("--again=77", "--array=7") == ["--array=7", "train.sbatch"]
    with pytest.raises(SlurmwrapError, match="job 77_3 has not ended"):
        user.again("--again=77_3")
    with pytest.raises(UsageError, match="the array has no such task"):
        user.again("--again=77_12")


def test_without_a_failed_task_nothing_is_submitted(user: User) -> None:
    user.submit("train.sbatch")
    user.tasks(t2="COMPLETED")
    with pytest.raises(SlurmwrapError, match="no task of array 77 failed, as far as is known: 1 completed, 8 unknown"):
        user.again("--again", "77")


def test_a_single_job_is_submitted_with_the_script_that_it_had_on_stdin(
    user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    user.submit("-G", "1", script="#!/bin/sh\necho \udcff\n")
    user.slurm.add(job(77, uid=os.geteuid(), submit_time=int(time.time())))
    assert user.again("--again", "77") == ["-G", "1"]
    assert user.repeated.content == b"#!/bin/sh\necho \xff\n"
    user.slurm.add(job(77, uid=os.geteuid(), submit_time=int(time.time()), state="COMPLETED"))
    user.again("--again", "77")
    assert "job 77 did not fail (Slurm says COMPLETED); it is submitted again" in capsys.readouterr().err
    with pytest.raises(UsageError, match="job 77 is no array"):
        user.again("--again", "77_1")


def test_a_changed_script_is_reported_and_a_lost_one_is_an_error(
    user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    user.submit("train.sbatch")
    user.tasks(t2="FAILED")
    user.script.write_text(f"{SCRIPT}# fixed\n")
    assert user.again("--again", "77") == ["--array=2%3", "train.sbatch"]
    assert "train.sbatch has changed since job 77 was submitted" in capsys.readouterr().err
    user.script.unlink()
    with pytest.raises(ScriptError, match="the script of job 77 cannot be submitted again: ") as raised:
        user.again("--again", "77")
    assert raised.value.hint.endswith(f"scontrol write batch_script 77 {user.script}")


def test_what_is_missing_is_named_with_the_command_to_complete(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SlurmwrapError, match="nothing is known of a job 77 of yours"):
        user.again("--again", "77")
    user.tasks(t2="FAILED", t4="FAILED")
    with pytest.raises(SlurmwrapError, match="was not submitted with gsub") as raised:
        user.again("--again", "77")
    assert raised.value.hint == "Add them to this: gsub --array=2,4 SCRIPT"
    user.slurm.settings = {"AccountingStorageType": "accounting_storage/slurmdbd"}
    monkeypatch.setattr(Sacct, "runs", lambda self, ids: ())
    monkeypatch.setattr(Sacct, "submit_line", lambda self, job_id: "sbatch -a 1-9 x.sh a b")
    with pytest.raises(SlurmwrapError) as raised:
        user.again("--again", "77")
    assert raised.value.hint.endswith("SCRIPT  (Slurm has, without quotes: sbatch -a 1-9 x.sh a b)")
    user.submit("train.sbatch", call=None)
    with pytest.raises(SlurmwrapError, match="was submitted by an older gsub") as raised:
        user.again("--again", "77")
    assert raised.value.hint == f"Add them to this: gsub --array=2,4 {user.script}"


@pytest.mark.parametrize("words", [("77x",), ("-1",), ("77_",), ("٧٧",)])
def test_a_wrong_job_is_refused(user: User, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="is no job"):
        user.again(f"--again={words[0]}")


def test_a_script_next_to_again_is_refused(user: User) -> None:
    with pytest.raises(UsageError, match="takes no script"):
        user.again("--again", "77", "other.sbatch")


def test_the_sites_record_has_no_call(user: User) -> None:
    user.submit("train.sbatch", "--token=secret")
    (note,) = user.public
    assert note.facts["submission"]["call"] is None and "secret" not in str(note)
    found = find_submission(user.state, "lab", 77)
    assert found is not None and found.call is not None and found.call.words == ("train.sbatch", "--token=secret")
    assert find_submission(user.state, "other", 77) is None
