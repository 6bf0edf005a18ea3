"""Parse squeue's output into JobRecord. Pure.

`scontrol show job` is not used: it prints JobName, Comment and Command between its own fields, and a job name may
contain " JobState=RUNNING" or a line break. squeue's fields are separated by a string with a nonce that no user could
know when they named their job, so user text cannot imitate a field or a row. The format is the same in 22.05.8, 24.11.5
and 26.05.5 (captures in tests/data/slurm); with `-t all` each of them lists ended jobs until MinJobAge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.hostlist import expand
from slurmwrap.model.job_record import FINAL_STATES, JobRecord
from slurmwrap.slurm.scontrol_parser import parse_duration, parse_number

# What Slurm prints for a uid without a name, and the uids whose name it is (65534 in Debian and RHEL 8, 99 before).
_NAMELESS, _NOBODY = "nobody", frozenset({65534, 99})
# squeue(1) --Format; the last six contain user text.
JOB_FIELDS = (
    *("JobID", "ArrayJobID", "ArrayTaskID", "State", "Reason", "UserName", "UserID", "Account", "Partition"),
    *("Requeue", "RestartCnt", "exit_code", "DerivedEC", "SubmitTime", "EligibleTime", "StartTime", "EndTime"),
    *("TimeLimit", "NodeList", "ReqNodes", "NumNodes", "NumCPUs", "NumTasks", "MinMemory", "tres-alloc"),
    *("tres-per-node", "tres-per-job", "tres-per-task", "PriorityLong", "Feature", "QOS", "HetJobID", "MinCpus"),
    *("cpus-per-task", "MaxNodes", "Name", "WorkDir", "STDOUT", "STDERR", "Comment", "Command"),
)


def make_job_format(separator: str) -> str:
    """Return the value of SQUEUE_FORMAT2 for output that `parse_jobs` reads."""
    return ",".join(f"{field}:{separator}" for field in JOB_FIELDS)


def make_exclude_format(separator: str) -> str:
    """Return the value of SQUEUE_FORMAT for fields that only -o has in 22.05: raw id, SubmitTime, ExcNodeList."""
    return "".join(f"{field}{separator}" for field in ("%A", "%V", "%x"))


def parse_jobs(text: str, excluded: str, separator: str) -> tuple[JobRecord, ...]:
    """Parse two outputs of squeue about the same jobs. ValueError when a row lacks fields (squeue refused one)."""
    lists = {row[0]: row[2] for row in split_rows(excluded, separator, 3)}
    records = []
    for row in split_rows(text, separator, len(JOB_FIELDS)):
        fields = dict(zip(JOB_FIELDS, row, strict=True))
        records.append(_parse_job_row(fields, exc_nodes=_parse_text(lists.get(fields["JobID"], ""))))
    return tuple(records)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedJob:
    """One row of a job that a user watches, with the scheduler's forecast if the job is pending."""

    record: JobRecord
    # Unix seconds; the forecast of Slurm (squeue --start).
    expected_start: int | None = None
    expected_nodes: str = ""
    # As Slurm prints it: "afterok:81(unfulfilled)".
    dependency: str = ""


_FORECAST_FIELDS = ("SchedNodes", "Dependency")


def make_watched_format(separator: str) -> str:
    """Return the value of SQUEUE_FORMAT2 for output that `parse_watched` reads."""
    return ",".join((make_job_format(separator), *(f"{field}:{separator}" for field in _FORECAST_FIELDS)))


def parse_watched(text: str, separator: str) -> tuple[WatchedJob, ...]:
    """Parse one output of squeue, without ExcNodeList. ValueError as for `parse_jobs`."""
    names = (*JOB_FIELDS, *_FORECAST_FIELDS)
    rows = (dict(zip(names, row, strict=True)) for row in split_rows(text, separator, len(names)))
    return tuple(_parse_watched_row(fields) for fields in rows)


def _parse_watched_row(fields: Mapping[str, str]) -> WatchedJob:
    waits = fields["State"] == "PENDING"
    return WatchedJob(
        record=_parse_job_row(fields, exc_nodes=""),
        expected_start=parse_time(fields["StartTime"]) if waits else None,
        expected_nodes=_parse_text(fields["SchedNodes"]) if waits else "",
        dependency=_parse_text(fields["Dependency"]),
    )


def split_rows(text: str, separator: str, width: int, program: str = "squeue") -> list[Sequence[str]]:
    """Split output into rows. A line break within a field belongs to it; one after the last separator ends the row."""
    fields = text.split(separator)
    if len(fields) % width != 1 or fields[-1].strip():
        raise ValueError(f"{program} gave {len(fields) - 1} fields, not rows of {width}")
    rows = [fields[at : at + width] for at in range(0, len(fields) - 1, width)]
    return [[row[0].lstrip("\n"), *row[1:]] for row in rows]


def _parse_user(name: str, uid: str) -> str:
    """Return the name of a job's owner; the uid for one who has no name any more.

    Slurm (22.05) prints "nobody" for each uid without a name, so the jobs of several users would be those of one.
    """
    return uid if name == _NAMELESS and parse_number(uid) not in _NOBODY else name


def _parse_job_row(fields: Mapping[str, str], exc_nodes: str) -> JobRecord:
    state = fields["State"]
    exit_code, signal = parse_exit(fields["exit_code"])
    derived_exit_code, derived_signal = parse_exit(fields["DerivedEC"])
    nodes, cpus = parse_number(fields["NumNodes"]), parse_number(fields["NumCPUs"])
    memory = _parse_memory(fields, nodes, cpus)
    record = JobRecord(
        job_id=int(fields["JobID"]),
        array_job_id=None if fields["ArrayTaskID"] == "N/A" else parse_number(fields["ArrayJobID"]),
        array_task_id=int(fields["ArrayTaskID"]) if fields["ArrayTaskID"].isdecimal() else None,
        name=fields["Name"],
        user=_parse_user(fields["UserName"], fields["UserID"]),
        uid=parse_number(fields["UserID"]),
        account=_parse_text(fields["Account"]),
        partition=fields["Partition"],
        state=state,
        reason=fields["Reason"],
        requeue=fields["Requeue"] == "1",
        restarts=parse_number(fields["RestartCnt"]),
        exit_code=exit_code,
        signal=signal,
        derived_exit_code=derived_exit_code,
        derived_signal=derived_signal,
        submit_time=parse_time(fields["SubmitTime"]) or 0,
        eligible_time=parse_time(fields["EligibleTime"]),
        # For a pending job StartTime is a forecast; for a running one EndTime is the latest possible end.
        start_time=parse_time(fields["StartTime"]) if state != "PENDING" else None,
        end_time=parse_time(fields["EndTime"]) if state in FINAL_STATES or state == "COMPLETING" else None,
        time_limit_s=parse_duration(fields["TimeLimit"]),
        nodes=expand(_parse_text(fields["NodeList"])),
        req_nodes=_parse_text(fields["ReqNodes"]),
        exc_nodes=exc_nodes,
        num_nodes=nodes,
        cpus=cpus,
        gpus=_count_job_gpus(fields, nodes),
        mem_mib_per_node=memory[0],
        mem_mib_per_cpu=memory[1],
        priority=parse_number(fields["PriorityLong"]),
        features=_parse_text(fields["Feature"]),
        qos=_parse_text(fields["QOS"]),
        het_job_id=parse_number(fields["HetJobID"]) or None,
        min_cpus=parse_number(fields["MinCpus"]),
        cpus_per_task=parse_number(fields["cpus-per-task"]),
        max_nodes=parse_number(fields["MaxNodes"]),
        array_tasks=_parse_waiting_tasks(fields["ArrayTaskID"]),
        work_dir=fields["WorkDir"],
        comment=_parse_text(fields["Comment"]),
        command=_parse_text(fields["Command"]),
    )
    return _set_outputs(record, fields["STDOUT"], fields["STDERR"])


def _parse_text(value: str) -> str:
    return "" if value in {"(null)", "N/A"} else value


def _parse_waiting_tasks(text: str) -> str:
    """Return the tasks of a pending array's record, "2-5" for "2-5%2"; "" for one task or a truncated list."""
    tasks = text.partition("%")[0]
    return tasks if re.fullmatch(r"[0-9]+[-,][0-9,:-]*[0-9]", tasks) else ""


def parse_exit(text: str) -> tuple[int, int]:
    """Parse a raw wait status (22.05) or "3:0" (24.11 and later). With a signal the exit code is 0, as in Slurm."""
    if ":" in text:
        code, _, signal = text.partition(":")
        return parse_number(code), parse_number(signal)
    status = parse_number(text)
    return (0, status & 0x7F) if status & 0x7F else (status >> 8 & 0xFF, 0)


def parse_time(text: str) -> int | None:
    """Parse Unix seconds (SLURM_TIME_FORMAT=%s) or local "2026-11-21T01:21:50"; None for Unknown, N/A, NONE."""
    if text.isdecimal():
        return int(text) or None
    if text[:4].isdecimal() and "T" in text:
        from datetime import datetime

        return int(datetime.fromisoformat(text).timestamp())
    return None


def parse_mib(text: str) -> int:
    """Convert Slurm's memory, "1500M", "2G", "2.50T" or "0" (MiB), to MiB."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)[nc]?", text)
    if match is None:
        return 0
    return int(float(match[1]) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1 << 20, "P": 1 << 30}[match[2]])


def _parse_memory(fields: Mapping[str, str], nodes: int, cpus: int) -> tuple[int | None, int | None]:
    """Return memory (per node, per CPU). squeue prints both alike; the total of the request shows which is meant."""
    least, total = parse_mib(fields["MinMemory"]), parse_mib(_find_tres(fields["tres-alloc"], "mem") or "0")
    if not least:
        return None, None
    return (None, least) if total == least * cpus and total != least * nodes else (least, None)


def _count_job_gpus(fields: Mapping[str, str], nodes: int) -> int:
    """Count GPUs from the allocation if AccountingStorageTRES names gres/gpu, else from the request."""
    for value, times in (
        (fields["tres-alloc"], 1),
        (fields["tres-per-job"], 1),
        (fields["tres-per-node"], nodes),
        (fields["tres-per-task"], parse_number(fields["NumTasks"])),
    ):
        counts = [_parse_gpu_count(piece) for piece in value.replace("gres:", "gres/").split(",")]
        # An untyped entry is the total of all types; without one the typed entries are added.
        untyped = [count for count, kind in counts if count and not kind]
        if found := max(untyped, default=0) or sum(count for count, _ in counts):
            return found * times
    return 0


def _parse_gpu_count(piece: str) -> tuple[int, str]:
    """Parse "gres/gpu:a100:2", "gres/gpu:a100=2" or "gres/gpu" into count and type."""
    match = re.fullmatch(r"gres/gpu(?::([^:=]*[^0-9:=][^:=]*))?(?:[:=]([0-9]+))?", piece)
    return (int(match[2] or 1), match[1] or "") if match else (0, "")


def _find_tres(text: str, name: str) -> str:
    return next((value for key, _, value in (piece.partition("=") for piece in text.split(",")) if key == name), "")


def _set_outputs(record: JobRecord, std_out: str, std_err: str) -> JobRecord:
    out = resolve_output(_correct_array_default(std_out, record), record)
    err = resolve_output(_correct_array_default(std_err, record), record) if _parse_text(std_err) else out
    return replace(record, std_out=out, std_err=err)


def _correct_array_default(pattern: str, record: JobRecord) -> str:
    """Correct the default file name: squeue 22.05 prints slurm-JOBID.out for slurm-ARRAYID_TASK.out (measured)."""
    if record.array_task_id is not None and pattern == f"{record.work_dir}/slurm-{record.job_id}.out":
        return f"{record.work_dir}/slurm-%A_%a.out"
    return pattern


def resolve_output(pattern: str, record: JobRecord) -> str:
    """Return the absolute path of the batch step's file for a file name pattern (sbatch(1), "filename pattern").

    A backslash anywhere disables all replacement and is removed. %N is the first node's name, which on most clusters is
    its short host name; an unknown letter stays unchanged.
    """
    if "\\" in pattern:
        name = pattern.replace("\\", "")
    else:
        # The number that Slurm prints for "no task".
        task = 4294967294 if record.array_task_id is None else record.array_task_id
        values = {
            "A": str(record.job_id if record.array_job_id is None else record.array_job_id),
            "a": str(task),
            "j": str(record.job_id),
            "J": str(record.job_id),
            "u": record.user,
            "x": record.name,
            "N": record.nodes[0] if record.nodes else "%N",
            "n": "0",  # relative node number of the batch step
            "t": "0",
            "s": "batch",
            "%": "%",
        }
        name = re.sub(r"%([0-9]{0,10})([AajJuxNnts%])", lambda match: _pad(match, values), pattern)
    return name if name.startswith("/") or not name else f"{record.work_dir.rstrip('/')}/{name}"


def _pad(match: re.Match[str], values: Mapping[str, str]) -> str:
    width = min(int(match[1] or 0), 10)  # sbatch(1): at most 10
    value = values[match[2]]
    return value.zfill(width) if value.isdecimal() else value
