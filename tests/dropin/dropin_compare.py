"""Two submissions of one case, by sbatch and by gsub, and what differs between the jobs that came of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from dropin_cases import Case
from readypython import GSUB
from realslurm import USERS, Lab

ALICE = USERS[0]
PLANNED = (GSUB, "--prerun=off", "--no-tune", "--no-place")
Fields = dict[str, str]

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_JOB = re.compile(r"(?:Submitted batch job )?(\d+)(?:;\S+)?")
# When a job came and was looked at: never the same for two jobs.
_ITS_OWN = frozenset({"SubmitTime", "LastSchedEval", "AccrueTime", "SLUID"})
_WITH_IDS = frozenset({"JobId", "ArrayJobId", "HetJobId", "HetJobIdSet", "StdErr", "StdOut", "StdIn"})
_KEY = re.compile(r"(?:^|(?<= ))(?P<key>[A-Z][A-Za-z/:]*)=")
# Fields that are text of the user's, in which a key may stand: they have a line to themselves.
_TEXT = ("Command", "Comment", "SubmitLine", "WorkDir", "StdErr", "StdIn", "StdOut")


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what it said, and the id of the job where it named one."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def job_id(self) -> str:
        """ "" where it named none."""
        found = _JOB.fullmatch(self.stdout.strip())
        return found[1] if found else ""

    def words(self) -> tuple[int, str, str]:
        """The three of them without the job's id and the hour of a --test-only."""
        stderr = re.sub(r"Job \d+ to start at \S+", "Job ID to start at TIME", self.stderr)
        stderr = re.sub(r"^gsub: warning: .*\n", "", stderr, flags=re.MULTILINE)  # what no node of the cluster has
        return self.exit_code, self.stdout.replace(self.job_id, "ID", 1) if self.job_id else self.stdout, stderr


@dataclass(slots=True)
class Pair:
    """One case, done by both, and the jobs that came of it (more than one for a heterogeneous job)."""

    case: Case
    home: Path
    calls: list[Call]
    jobs: tuple[list[Fields], list[Fields]] = field(default_factory=lambda: ([], []))
    scripts: list[str] = field(default_factory=list)


def submit(lab: Lab, program: Sequence[str], case: Case, user: str, home: Path) -> Call:
    """One call of `program --hold WORDS` in `home`."""
    words = [*program, "--hold", *shlex.split(f"{case.words}{case.script or ''}")]
    environ = {"PATH": f"{home}/bin:/usr/bin:/bin", **case.environ}
    done = lab.run(words, user=user, cwd=home, env=environ, stdin=case.text if case.script is None else "")
    return Call(done.returncode, done.stdout, done.stderr)


def records(lab: Lab) -> list[Fields]:
    """All jobs that Slurm knows."""
    return [fields_of(text) for text in lab.run(["scontrol", "show", "job"]).stdout.split("\n\n") if "JobId=" in text]


def fields_of(record: str) -> Fields:
    """One record that `scontrol show job` prints."""
    found: Fields = {}
    for line in filter(None, (line.strip() for line in record.splitlines())):
        key, _, value = line.partition("=")
        if key in _TEXT:
            found[key] = value
            continue
        marks = list(_KEY.finditer(line))
        for mark, following in zip(marks, [*marks[1:], None], strict=False):
            found[mark["key"]] = line[mark.end() : following.start() if following else None].strip()
    return found


def of_call(all_jobs: Sequence[Fields], call: Call, home: Path, nth: int) -> list[Fields]:
    """The components of the job that a call made. One that says nothing (--quiet) is known by its directory."""
    if call.exit_code:
        return []
    job_id = call.job_id
    if not job_id:
        here = sorted((job for job in all_jobs if job.get("WorkDir") == str(home)), key=lambda job: int(job["JobId"]))
        job_id = here[nth]["JobId"] if len(here) > nth else ""
    return [job for job in all_jobs if job_id and job_id in (job["JobId"], job.get("HetJobId"))]


def differences(one: Fields, other: Fields) -> dict[str, tuple[str | None, str | None]]:
    """Fields that are not the same, with both values; ids and what depends on the second of submission aside."""
    same = {key for key in {*one, *other} if _equally_late(one, other, key)}
    return {
        key: (one.get(key), other.get(key))
        for key in sorted({*one, *other} - _ITS_OWN - same)
        if _without_ids(one, key) != _without_ids(other, key)
    }


def _without_ids(record: Fields, key: str) -> str | None:
    value = record.get(key)
    if value is None or key not in _WITH_IDS:
        return value
    folder, slash, value = value.rpartition("/")  # a file's own name alone: any number may stand in the path
    first = int(record.get("HetJobId", record["JobId"]))
    for number in range(first, first + 4):
        value = re.sub(rf"(?<!\w){number}(?!\d)", f"ID+{number - first}", value)
    return folder + slash + value


def _equally_late(one: Fields, other: Fields, key: str) -> bool:
    """Whether both are times as long after their jobs' submission, within two seconds."""
    if not (_TIME.fullmatch(one.get(key, "")) and _TIME.fullmatch(other.get(key, ""))):
        return False
    first, second = (
        datetime.fromisoformat(job[key]) - datetime.fromisoformat(job["SubmitTime"]) for job in (one, other)
    )
    return abs((first - second).total_seconds()) <= 2
