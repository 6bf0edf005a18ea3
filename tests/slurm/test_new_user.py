"""What a new user submits on the first day: by gsub a job ends as by sbatch, or earlier and with the reason.

The jobs are data (tests/data/new_user/jobs.toml). All that were selected are submitted first, each by sbatch and by
gsub; then the tests look at how they ended. The grace is hours long here: a job that waits for it does not start.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from new_user_jobs import Kind, format_table, read_kinds
from realslurm import USERS, Lab
from trainings import Ground, open_ground

ALICE = USERS[0]
KINDS = read_kinds()
DEADLINE_S = 240.0
pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
_FINAL = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}
_TOOLS = ("sbatch", "gsub")


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one kind of job did when it was submitted by one tool."""

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
    """All jobs of a session, and how the user asks about them."""

    ground: Ground
    seen: dict[tuple[str, str], Seen]

    def ask(self, *argv: str, folder: Path | None = None, config: dict[str, str] | None = None) -> tuple[int, str, str]:
        """A command of the user's: exit code, stdout, stderr."""
        home = str(self.ground.home)
        env = {"HOME": home, "TMPDIR": str(self.ground.tmp), "SLURMWRAP_PRERUN_GRACE_S": "9000", **(config or {})}
        done = self.ground.lab.run(argv, user=ALICE, cwd=folder or home, env=env, timeout=180)
        return done.returncode, done.stdout, done.stderr

    def why(self, name: str) -> str:
        """`slurmwrap why` of the first job, in one line: where it breaks lines is its own affair."""
        return " ".join(self.ask("slurmwrap", "why", str(self.seen[name, "gsub"].jobs[0]))[1].split())


@pytest.fixture(scope="module")
def day(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Day]:
    """The jobs of the tests that were selected, at their end; the site's reconciler has seen them."""
    names = {item.callspec.params["name"] for item in request.session.items if _is_row(item, request.path)}
    lab.clear(ALICE)
    ground = open_ground(lab, ALICE, "auto", [])
    today = Day(ground=ground, seen={})
    for name in sorted(KINDS.keys() & names, key=_comes_late):
        for tool in _TOOLS:
            today.seen[name, tool] = Seen(kind=KINDS[name], tool=tool, folder=ground.home / name / tool)
            _lay_out(today.seen[name, tool])
    with ThreadPoolExecutor((os.cpu_count() or 2) + 1) as pool:
        calls = [pool.submit(_submit, today, one) for one in today.seen.values()]
        _wait_for_ends(today)
        for call in calls:
            call.result()
    lab.reconcile_once()
    for one in today.seen.values():  # shown by `pytest -rP`: the figures of the page's last column
        print(f"{one.kind.job:70} {one.tool:6} {one.ends:30} {one.after_s:5.0f} s")
    yield today
    lab.clear(ALICE)
    ground.close()


def _comes_late(name: str) -> tuple[bool, int]:
    """What lasts longest comes first."""
    return not (KINDS[name].hurry or KINDS[name].config), list(KINDS).index(name)


def _is_row(item: pytest.Item, path: Path) -> bool:
    return item.path == path and "name" in getattr(getattr(item, "callspec", None), "params", {})


def _lay_out(seen: Seen) -> None:
    seen.folder.mkdir(parents=True)
    seen.kind.write(seen.folder)
    account = pwd.getpwnam(ALICE)
    for path in (seen.folder.parent, seen.folder, *seen.folder.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid)


def _submit(today: Day, seen: Seen) -> None:
    for words in seen.kind.submit:
        typed = [seen.tool, *words.format(*seen.jobs).split()]
        if seen.kind.inside:  # at a terminal of its own
            typed = ["script", "-qec", f"srun -n1 --mem=300 --pty {' '.join(typed)}", "/dev/null"]
        code, stdout, stderr = today.ask(*typed, folder=seen.folder, config=dict(seen.kind.config))
        seen.stderr += stdout + stderr if seen.kind.inside else stderr
        if code:
            seen.ends, seen.over = "REFUSED", True
            return
        seen.jobs.append(int(re.findall(r"Submitted batch job (\d+)\s", stdout)[0]))


def _wait_for_ends(today: Day) -> None:
    until = time.monotonic() + DEADLINE_S
    while (open_ones := [one for one in today.seen.values() if not one.over]) and time.monotonic() < until:
        tasks = _tasks(today.ground.lab)
        for one in open_ones:
            _look(today.ground.lab, one, [task for job in tuple(one.jobs) for task in tasks.get(job, [])])
        time.sleep(0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    state: str
    submitted: str
    started: str
    ended: str


def _tasks(lab: Lab) -> dict[int, list[_Task]]:
    """What Slurm knows, by the id that sbatch said."""
    found: dict[int, list[_Task]] = {}
    for line in lab.run(["squeue", "-h", "-r", "-t", "all", "-u", ALICE, "-o", "%F %T %V %S %e"]).stdout.splitlines():
        job, state, submitted, started, ended = line.split()
        task = _Task(state=state, submitted=submitted, started=started, ended=ended)
        found.setdefault(int(job), []).append(task)
    return found


def _look(lab: Lab, seen: Seen, tasks: list[_Task]) -> None:
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
            lab.reconcile_once()  # while it waits for its second run
        lab.run(["scontrol", "update", f"JobId={seen.jobs[0]}", "StartTime=now"])
    elif seen.kind.hurry == "limit" and "RUNNING" in counts and "20/5000" in _output(seen):
        lab.run(["scontrol", "update", f"JobId={seen.jobs[0]}", "EndTime=now"])
    elif seen.kind.hurry == "go" and (seen.tool == "sbatch" or not _preruns_under_way(lab, seen)):
        (seen.folder / "go").touch()


def _preruns_under_way(lab: Lab, seen: Seen) -> list[str]:
    """Pre-runs of a chain that run, or may start before the chain goes on."""
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


def _rows(*fields: str) -> list[object]:
    """The kinds that say something of one of these fields."""
    return [
        pytest.param(name, marks=[pytest.mark.torch] if kind.torch else [])
        for name, kind in KINDS.items()
        if any(getattr(kind, one) for one in fields)
    ]


@pytest.mark.parametrize("name", _rows("gsub"))
def test_a_job_ends_as_the_table_says(day: Day, name: str) -> None:
    plain, ours, kind = day.seen[name, "sbatch"], day.seen[name, "gsub"], KINDS[name]
    assert (plain.ends, ours.ends) == (kind.sbatch, kind.gsub), f"{ours.stderr}\n{_output(ours) if ours.jobs else ''}"


@pytest.fixture(scope="module")
def verdicts(day: Day) -> dict[int, str]:
    """What the pre-run of each job said; "none" where there is none yet."""
    rows = json.loads(day.ask("slurmwrap", "prerun", "list", "--all", "--json")[1])["rows"]
    return {row["job_id"]: row["verdict"] or "none" for row in rows if row["job_id"]}


@pytest.mark.parametrize("name", _rows("prerun"))
def test_its_pre_run_says_what_the_table_says(day: Day, verdicts: dict[int, str], name: str) -> None:
    assert verdicts.get(day.seen[name, "gsub"].jobs[0], "none") == KINDS[name].prerun


@pytest.mark.parametrize("name", _rows("says"))
def test_gsub_warns_at_submission(day: Day, name: str) -> None:
    said = " ".join(day.seen[name, "gsub"].stderr.split())
    assert [phrase for phrase in KINDS[name].says if not re.search(phrase, said)] == [], said


@pytest.fixture(scope="module")
def pages(day: Day) -> dict[str, str]:
    """What `slurmwrap why` says of each job for which the table names something."""
    asked = [name for (name, tool), one in day.seen.items() if tool == "gsub" and one.jobs]
    asked = [name for name in asked if KINDS[name].why or KINDS[name].why_not]
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        return dict(zip(asked, pool.map(day.why, asked), strict=True))


@pytest.mark.parametrize("name", _rows("why", "why_not"))
def test_why_names_the_cause(pages: dict[str, str], name: str) -> None:
    page = pages[name]
    assert [phrase for phrase in KINDS[name].why if not re.search(phrase, page)] == [], page
    assert [phrase for phrase in KINDS[name].why_not if re.search(phrase, page)] == [], page


@pytest.mark.parametrize("name", ["home_checkpoints"])
def test_a_pre_run_leaves_no_checkpoint_in_the_home(day: Day, name: str) -> None:
    jobs = {job for tool in _TOOLS for job in day.seen[name, tool].jobs}
    left = list(day.ground.home.glob("new_user_*.pt"))
    assert {int(re.findall(r"\d+", path.name)[0]) for path in left} == jobs


def test_the_documentation_holds_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs/what-is-found.md").read_text(encoding="utf-8")
    assert format_table(KINDS) in text, "python tests/slurm/new_user_jobs.py"
