"""Submits one case with sbatch and with gsub and lists the differences between the two jobs."""

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
# Times and ids that always differ between two jobs.
_ITS_OWN = frozenset({"SubmitTime", "LastSchedEval", "AccrueTime", "SLUID"})
_WITH_IDS = frozenset({"JobId", "ArrayJobId", "HetJobId", "HetJobIdSet", "StdErr", "StdOut", "StdIn"})
_KEY = re.compile(r"(?:^|(?<= ))(?P<key>[A-Z][A-Za-z/:]*)=")
# Fields with user text, which may contain a key; scontrol prints each on its own line.
_TEXT = ("Command", "Comment", "SubmitLine", "WorkDir", "StdErr", "StdIn", "StdOut")


@dataclass(frozen=True, slots=True)
class Call:
    """The result of one call: exit code and output, and the job id if it printed one."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def job_id(self) -> str:
        """The job id, or "" if the call printed none."""
        found = _JOB.fullmatch(self.stdout.strip())
        return found[1] if found else ""

    def words(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr without the job id and the time of --test-only."""
        stderr = re.sub(r"Job \d+ to start at \S+", "Job ID to start at TIME", self.stderr)
        # gsub warns about requests that no node can satisfy
        stderr = re.sub(r"^gsub: warning: .*\n", "", stderr, flags=re.MULTILINE)
        return self.exit_code, self.stdout.replace(self.job_id, "ID", 1) if self.job_id else self.stdout, stderr


@dataclass(slots=True)
class Pair:
    """One case submitted with both programs, and its jobs (several for a heterogeneous job)."""

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


def list_job_records(lab: Lab) -> list[Fields]:
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


def list_jobs_of_call(all_jobs: Sequence[Fields], call: Call, home: Path, nth: int) -> list[Fields]:
    """The components of the job of a call. A call without output (--quiet) is identified by its directory."""
    if call.exit_code:
        return []
    job_id = call.job_id
    if not job_id:
        jobs_in_home = sorted(
            (job for job in all_jobs if job.get("WorkDir") == str(home)), key=lambda job: int(job["JobId"])
        )
        job_id = jobs_in_home[nth]["JobId"] if len(jobs_in_home) > nth else ""
    return [job for job in all_jobs if job_id and job_id in (job["JobId"], job.get("HetJobId"))]


def differences(one: Fields, other: Fields) -> dict[str, tuple[str | None, str | None]]:
    """Fields that differ, with both values, except ids and times relative to the submission."""
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
    folder, slash, value = value.rpartition("/")  # only in the file name: the path may contain any number
    first = int(record.get("HetJobId", record["JobId"]))
    for number in range(first, first + 4):
        value = re.sub(rf"(?<!\w){number}(?!\d)", f"ID+{number - first}", value)
    return folder + slash + value


def _equally_late(one: Fields, other: Fields, key: str) -> bool:
    """Whether both values are times with the same delay after submission, within two seconds."""
    if not (_TIME.fullmatch(one.get(key, "")) and _TIME.fullmatch(other.get(key, ""))):
        return False
    first, second = (
        datetime.fromisoformat(job[key]) - datetime.fromisoformat(job["SubmitTime"]) for job in (one, other)
    )
    return abs((first - second).total_seconds()) <= 2
