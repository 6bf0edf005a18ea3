"""Typical jobs of a new user: with gsub a job ends as with sbatch, or earlier and with the reason.

The jobs are defined in tests/data/new_user/jobs.toml. All selected jobs are submitted first; then each test checks how
one of them ended. `make test` submits most of them with gsub, `make test-all` each with gsub and with sbatch. The grace
period is hours long here: a job that waits for its end does not start.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from new_user_jobs import Kind, format_table, read_kinds
from realslurm import USERS, Lab
from trainings import PATIENT_GSUB, TrainingHome, open_training_home
from waiting import allow, wait_for

ALICE = USERS[0]
GSUB = [sys.executable, "-m", "slurmwrap.gsub.gsub_main"]
KINDS = read_kinds()
pytestmark = [pytest.mark.lab, pytest.mark.timeout(allow(600))]
# Other lab tests cover these jobs: with gsub they are marked slow.
_TRIED_ELSEWHERE = {
    "evaluation": "test_no_training_lab",
    "generation": "test_no_training_lab",
    "server": "test_no_training_lab",
    "redirect_fails": "test_no_training_lab",
    "background": "test_no_training_lab",
    "three_jobs": "test_dependencies",
    "resume_chain": "test_dependencies",
    "interactive": "test_interactive_lab",
    "mpi_type": "test_prerun_shims",
}
_FINAL = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}
_GRACE = {"SLURMWRAP_PRERUN_GRACE_S": "9000"}


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one kind of job did when it was submitted with one tool."""

    kind: Kind
    tool: str
    folder: Path
    stderr: str = ""
    jobs: list[int] = field(default_factory=list)
    ends: str = ""  # as `sbatch` and `gsub` of jobs.toml are written
    after_s: float = -1.0  # from the first submission to the start, or to the end of a job that never started
    over: bool = False

    @property
    def wanted(self) -> str:
        return self.kind.sbatch if self.tool == "sbatch" else self.kind.gsub


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """All jobs of a session by (name, tool), and what slurmwrap reported about those of gsub afterwards."""

    context: TrainingHome
    seen: dict[tuple[str, str], Seen]
    verdicts: dict[int, str] = field(default_factory=dict)  # of the pre-run of each job
    pages: dict[str, str] = field(default_factory=dict)  # output of `why`, joined to one line

    @property
    def env(self) -> dict[str, str]:
        return {"HOME": str(self.context.home), "TMPDIR": str(self.context.tmp), **_GRACE}

    def ask(self, *words: str) -> str:
        """The output of a slurmwrap command for the user."""
        argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", *words]
        return self.context.lab.run(argv, user=ALICE, env=self.env).stdout

    def note_answers(self) -> None:
        """Stores the verdicts, and the output of `why` for the jobs for which the table expects it."""
        rows = json.loads(self.ask("prerun", "list", "--all", "--json"))["rows"]
        self.verdicts.update({row["job_id"]: row["verdict"] for row in rows if row["job_id"] and row["verdict"]})
        for (name, tool), one in self.seen.items():
            if tool == "gsub" and one.jobs and (one.kind.why or one.kind.why_not):
                self.pages[name] = " ".join(self.ask("why", str(one.jobs[0])).split())


@pytest.fixture(scope="module")
def day(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Day]:
    """The ended jobs of the selected tests, after a pass of the site's reconciler."""
    items = [item for item in request.session.items if item.path == request.path]
    chosen = {item.callspec.params["job"] for item in items if hasattr(item, "callspec")}
    lab.clear(ALICE)
    context = open_training_home(lab, ALICE, "auto", [])
    today = Day(context=context, seen={})
    for name, tool in sorted(chosen, key=_submission_order):
        today.seen[name, tool] = Seen(kind=KINDS[name], tool=tool, folder=context.home / name / tool)
        _lay_out(today.seen[name, tool])
    with ThreadPoolExecutor((os.cpu_count() or 2) + 1) as pool:
        calls = [pool.submit(_submit, today, one) for one in today.seen.values()]
        wait_for(lambda: _find_unfinished(today), lambda left: not left, 300, pause=1.0)
        for call in calls:
            call.result()
    lab.reconcile_once()
    today.note_answers()
    for one in today.seen.values():  # shown by `pytest -rP`: the figures of the last column of the documentation
        print(f"{one.kind.job:70} {one.tool:6} {one.ends:30} {one.after_s:5.0f} s")
    yield today
    lab.clear(ALICE)
    context.close()


def _submission_order(job: tuple[str, str]) -> tuple[bool, bool, int]:
    """First the jobs that need a free GPU at once, then those that last longest."""
    kind = KINDS[job[0]]
    return kind.prerun != "none", not (kind.hurry or kind.config), list(KINDS).index(job[0])


def _lay_out(seen: Seen) -> None:
    seen.folder.mkdir(parents=True)
    seen.kind.write(seen.folder)
    account = pwd.getpwnam(ALICE)
    for path in (seen.folder.parent, seen.folder, *seen.folder.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid)


def _submit(today: Day, seen: Seen) -> None:
    for line in seen.kind.submit:
        words = line.format(*seen.jobs)
        ours = PATIENT_GSUB if seen.kind.says else GSUB
        typed = [*(ours if seen.tool == "gsub" else ["sbatch"]), *words.split()]
        if seen.kind.inside:  # at its own terminal
            typed = ["script", "-qec", f"srun -n1 --mem=300 --pty {seen.tool} {words}", "/dev/null"]
        env = {**today.env, **seen.kind.config}
        done = today.context.lab.run(typed, user=ALICE, cwd=seen.folder, env=env, timeout=180)
        seen.stderr += done.stdout + done.stderr if seen.kind.inside else done.stderr
        if done.returncode:
            seen.ends, seen.over = "REFUSED", True
            return
        seen.jobs.append(int(re.findall(r"Submitted batch job (\d+)\s", done.stdout)[0]))


def _find_unfinished(today: Day) -> list[Seen]:
    """Updates all jobs and returns those that have not ended."""
    tasks = _tasks(today.context.lab)
    for one in today.seen.values():
        if not one.over:
            _update_seen(today.context.lab, one, [task for job in tuple(one.jobs) for task in tasks.get(job, [])])
    return [one for one in today.seen.values() if not one.over]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    state: str
    submitted: str
    started: str
    ended: str


def _tasks(lab: Lab) -> dict[int, list[_Task]]:
    """The tasks that Slurm knows, by the job id that sbatch printed."""
    found: dict[int, list[_Task]] = {}
    for line in lab.run(["squeue", "-h", "-r", "-t", "all", "-u", ALICE, "-o", "%F %T %V %S %e"]).stdout.splitlines():
        job, state, submitted, started, ended = line.split()
        task = _Task(state=state, submitted=submitted, started=started, ended=ended)
        found.setdefault(int(job), []).append(task)
    return found


def _update_seen(lab: Lab, seen: Seen, tasks: list[_Task]) -> None:
    if len(seen.jobs) < len(seen.kind.submit):
        return
    counts = Counter(task.state for task in tasks)
    seen.ends = ", ".join(f"{count} {state}" if len(tasks) > 1 else state for state, count in sorted(counts.items()))
    if not counts:
        return
    seen.over = seen.ends == seen.wanted or set(counts) <= _FINAL
    if seen.over:
        seen.after_s = _after_s(tasks)
        if "RUNNING" in counts:
            lab.run(["scancel", *map(str, seen.jobs)])
    elif seen.kind.hurry == "again" and "PENDING" in counts and "Restarts=1" in _record(lab, seen):
        if seen.tool == "gsub":
            lab.reconcile_once()  # while the job waits for its second run
        lab.run(["scontrol", "update", f"JobId={seen.jobs[0]}", "StartTime=now"])
    elif seen.kind.hurry == "limit" and "RUNNING" in counts and "20/5000" in _output(seen):
        lab.run(["scontrol", "update", f"JobId={seen.jobs[0]}", "EndTime=now"])
    elif seen.kind.hurry == "go" and (seen.tool == "sbatch" or not _preruns_under_way(lab, seen)):
        (seen.folder / "go").touch()


def _preruns_under_way(lab: Lab, seen: Seen) -> list[str]:
    """Pre-runs of a chain that run, or may start before the chain continues."""
    name = seen.folder.parent.name
    shown = lab.run(["squeue", "-h", "-u", ALICE, "-o", "%j %T %r"]).stdout.splitlines()
    return [line for line in shown if line.startswith(f"{name}.prerun ") and not line.endswith(" Dependency")]


def _after_s(tasks: list[_Task]) -> float:
    clock = [time.mktime(time.strptime(at, "%Y-%m-%dT%H:%M:%S")) if at[:1].isdigit() else 0 for task in tasks
             for at in (task.submitted, task.started, task.ended)]  # fmt: skip
    begun = [start or end for start, end in zip(clock[1::3], clock[2::3], strict=True)]
    return max(begun) - min(clock[0::3])


def _record(lab: Lab, seen: Seen) -> str:
    return lab.run(["scontrol", "show", "job", str(seen.jobs[0])]).stdout


def _output(seen: Seen) -> str:
    path = seen.folder / f"slurm-{seen.jobs[0]}.out"
    return path.read_text(errors="replace") if path.exists() else ""


def _jobs(tool: str, names: tuple[str, ...] = tuple(KINDS)) -> list[object]:
    torch = {name: [pytest.mark.torch] if KINDS[name].torch else [] for name in names}
    slow = {name: [pytest.mark.slow] if name in _TRIED_ELSEWHERE else [] for name in names}
    return [pytest.param((name, tool), id=name, marks=[*torch[name], *slow[name]]) for name in names]


@pytest.mark.parametrize("job", _jobs("gsub"))
def test_end_messages_and_explanation_of_a_gsub_job_match_the_table(day: Day, job: tuple[str, str]) -> None:
    seen, kind = day.seen[job], KINDS[job[0]]
    assert seen.ends == kind.gsub, f"{seen.stderr}\n{_output(seen) if seen.jobs else ''}"
    stderr = " ".join(seen.stderr.split())
    assert [phrase for phrase in kind.says if not re.search(phrase, stderr)] == [], stderr
    assert not kind.prerun or day.verdicts.get(seen.jobs[0], "none") == kind.prerun
    page = day.pages.get(job[0], "")
    assert [phrase for phrase in kind.why if not re.search(phrase, page)] == [], page
    assert [phrase for phrase in kind.why_not if re.search(phrase, page)] == [], page


@pytest.mark.slow
@pytest.mark.parametrize("job", _jobs("sbatch"))
def test_the_end_of_an_sbatch_job_matches_the_table(day: Day, job: tuple[str, str]) -> None:
    assert day.seen[job].ends == KINDS[job[0]].sbatch


@pytest.mark.parametrize("job", _jobs("gsub", ("home_checkpoints",)))
def test_a_pre_run_leaves_no_checkpoint_in_the_home(day: Day, job: tuple[str, str]) -> None:
    jobs = {number for (name, _), one in day.seen.items() if name == job[0] for number in one.jobs}
    left = {int(re.findall(r"\d+", path.name)[0]) for path in day.context.home.glob("new_user_*.pt")}
    assert left == jobs


def test_the_documentation_contains_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs/what-is-found.md").read_text(encoding="utf-8")
    assert format_table(KINDS) in text, "python tests/slurm/new_user_jobs.py"
