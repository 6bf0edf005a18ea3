"""Read what a fault run left: Slurm's own record, the scripts' lines, the databases, the queue (adapter)."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

from chaos.checker import PendingJob, RecordedAction, RecordedRun, ScriptLine, SlurmRun
from chaos.cluster import HOMES, USERS, ChaosLab
from chaos.stream import LINES

_COMPLETION = re.compile(
    r"JobId=(\d+) .*? Name=(\S*) JobState=(\S+) .*?StartTime=(\S+) EndTime=(\S+) NodeList=(\S+) .*?SubmitTime=(\S+) "
)


def parse_completions(text: str) -> tuple[SlurmRun, ...]:
    """Parse the file of jobcomp/filetxt (Slurm 22.05): one line for each run that ended, and one for its requeue.

    The second line of a run that ended and was requeued later has the same StartTime, and is left out. A job that never
    ran has its end as StartTime, and no NodeList.
    """
    found: dict[tuple[int, str, str], SlurmRun] = {}
    for match in filter(None, map(_COMPLETION.match, text.splitlines())):
        job_id, name, state, start, end, nodes, submit = match.groups()
        began, ended = _parse_time(start), _parse_time(end)
        run = SlurmRun(
            job_id=int(job_id),
            name=name,
            state=state,
            submit=_parse_time(submit) or 0.0,
            start=None if nodes == "(null)" else began,
            end=ended or began or 0.0,
        )
        found.setdefault((job_id, name, start), run)
    return tuple(found.values())


def _parse_time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # Unknown: it did not start
        return None


def parse_script_lines(text: str) -> tuple[ScriptLine, ...]:
    """Parse the lines that the jobs' scripts appended."""
    found = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 7 and all(map(str.isdecimal, fields[3:6])):
            what, marker, index, root, job_id, restarts, at = fields
            found.append(ScriptLine(marker=marker, index=index, root=int(root), job_id=int(job_id),
                                    restarts=int(restarts), what=what, at=float(at)))  # fmt: skip
    return tuple(found)


def read_script_lines() -> tuple[ScriptLine, ...]:
    """Return the lines of all users' jobs."""
    files = (HOMES / user / LINES for user in USERS)
    return tuple(line for file in files if file.exists() for line in parse_script_lines(file.read_text()))


def read_runs(database: Path) -> tuple[RecordedRun, ...]:
    """Return the runs of a database."""
    rows = _select(database, "SELECT job_id, name, state, submit_time, start_time, end_time, reconciled FROM attempts")
    return tuple(
        RecordedRun(job_id=job, name=name, state=state, submit=submit, start=start, end=end, reconciled=bool(done))
        for job, name, state, submit, start, end, done in rows
    )


def read_actions(database: Path) -> tuple[RecordedAction, ...]:
    """Return the actions of a database, in the order in which they were intended."""
    names = ("job_id", "submit", "rule", "mode", "verb", "target", "key", "value", "done_at", "error")
    columns = "ifnull(job_id, 0), ifnull(submit_time, 0), rule, mode, verb, target, key, value, done_at, error"
    rows = _select(database, f"SELECT {columns} FROM actions ORDER BY action_id")
    return tuple(RecordedAction(**dict(zip(names, row, strict=True))) for row in rows)


def read_rejected(database: Path) -> tuple[str, ...]:
    """Return the counts of rejected spool files."""
    rows = _select(database, "SELECT uid, reason, count, last_name FROM rejected_entries")
    return tuple(f"{count} files of uid {uid}: {reason} ({name})" for uid, reason, count, name in rows)


def list_user_databases() -> tuple[Path, ...]:
    """Return the databases of the users."""
    return tuple(path for user in USERS for path in (HOMES / user).glob(".local/state/slurmwrap/**/*.db"))


def find_damage(databases: tuple[Path, ...]) -> tuple[str, ...]:
    """Return what SQLite finds wrong in each file."""
    found = []
    for path in databases:
        try:
            rows = [row[0] for row in _select(path, "PRAGMA integrity_check(3)")]
        except sqlite3.Error as error:
            rows = [str(error)]
        found += [f"{path}: {row}" for row in rows if row != "ok"]
    return tuple(found)


def _select(database: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def read_queue(lab: ChaosLab) -> tuple[PendingJob, ...] | None:
    """Return the jobs that have not ended; None if Slurm does not answer."""
    done = lab.run(["squeue", "-h", "-r", "-o", "%i\x1f%j\x1f%T\x1f%r\x1f%S"], timeout_s=30)
    if done.returncode:
        return None
    found = []
    for line in done.stdout.splitlines():
        address, name, state, reason, start = line.split("\x1f")
        found.append(PendingJob(address=address, name=name, state=state, reason=reason, start=_parse_time(start)))
    return tuple(found)


def read_lowered_limits(lab: ChaosLab) -> tuple[str, ...]:
    """Return the jobs whose limit is not given back."""
    path = lab.layout.state / "limits.json"
    return tuple(str(one.get("job_id")) for one in json.loads(path.read_text())) if path.exists() else ()


def list_spool_files(lab: ChaosLab) -> tuple[str, ...]:
    """Return the observations that no pass has read."""
    places = (lab.layout.spool, lab.layout.state / "controller")
    return tuple(str(path.relative_to(lab.root)) for place in places for path in place.rglob("*.obs"))
