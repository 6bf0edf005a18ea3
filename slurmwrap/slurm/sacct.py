"""Runs recorded by slurmdbd, read with `sacct` (adapter): implements `protocols.Accounting`. () without slurmdbd.

Each run of a job is a separate row (--duplicates), also the runs that ended by a requeue; slurmctld shows only the last
one. For some seconds a new row may lack its owner and name (22.05: uid 0, "allocation"). The fields are those of
22.05.8. They are separated by a string with a nonce that no user could know when they named their job. PySlurm is not
used: its db.Jobs keeps one run per job id and has no GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from typing import TypeVar

from slurmwrap.diagnosis.slurm_state import parse_base_state
from slurmwrap.errors import SlurmError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.run_command import run
from slurmwrap.model.hostlist import expand
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.sacct_fields import Tres, parse_elapsed, parse_limit, parse_memory, parse_stamp, parse_tres
from slurmwrap.model.step_usage import StepUsage
from slurmwrap.slurm.commands import get_output
from slurmwrap.slurm.scontrol_parser import parse_number
from slurmwrap.slurm.squeue_parser import parse_exit, split_rows

# Fields of sacct(1); the last two contain user text.
FIELDS = (
    *("JobIDRaw", "JobID", "User", "UID", "Account", "Partition", "QOS", "State", "Reason", "ExitCode"),
    *("DerivedExitCode", "Submit", "Eligible", "Start", "End", "TimelimitRaw", "NodeList", "NNodes", "NCPUS"),
    *("ReqTRES", "AllocTRES", "Priority", "WorkDir", "JobName"),
)
T = TypeVar("T", int, float)
_STEP_FIELDS = ("JobIDRaw", "TotalCPU", "ConsumedEnergyRaw", "TRESUsageInTot")
# Job ids per call, because the length of a command line is limited.
_IDS_PER_CALL = 500
_NO_NODES = frozenset({"", "None assigned", "(null)", "Unknown"})


class Sacct:
    """sacct run with `environ`. Raises SlurmError when slurmdbd does not answer or refuses.

    `cluster`: whose jobs `address` returns; "": this host's.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, *, timeout_s: float = 10.0, cluster: str = "") -> None:
        self._selection = [f"--clusters={cluster}"] if cluster else []
        replaced = ("SACCT_", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS")
        inherited = {name: value for name, value in environ.items() if not name.startswith(replaced)}
        self._environ = {**inherited, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        self._timeout_s = timeout_s

    @staticmethod
    def is_there(config: Mapping[str, str]) -> bool:
        """Return whether the cluster has a slurmdbd; `config` is the result of parse_config."""
        return config.get("AccountingStorageType", "") == "accounting_storage/slurmdbd"

    def runs(self, job_ids: Collection[int]) -> tuple[JobRecord, ...]:
        """Return all runs of these raw job ids, sorted by id and submission; an array's id stands for all its tasks."""
        found: list[JobRecord] = []
        ids = sorted(job_ids)
        for start in range(0, len(ids), _IDS_PER_CALL):
            found += self._ask_sacct(",".join(map(str, ids[start : start + _IDS_PER_CALL])))
        return tuple(found)

    def address(self, address: str) -> tuple[JobRecord, ...]:
        """Return the runs of one job or array task, given as "81" or "77_2"."""
        _check_address(address)
        return tuple(self._ask_sacct(address))

    def submit_line(self, job_id: int) -> str:
        """Return the command line with which a job was submitted, its words joined by blanks; "" if it is unknown."""
        argv = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=SubmitLine", f"--jobs={job_id}"]
        output = get_output(run(argv, timeout_s=self._timeout_s, environ=self._environ), self._timeout_s)
        return next((line for line in output.splitlines() if line), "")

    def steps(self, address: str) -> dict[int, StepUsage]:
        """Return raw job id → usage of the steps of the last run of a job, of an array task, or of all tasks."""
        _check_address(address)
        argv = ["sacct", "--noheader", "--parsable2", f"--format={','.join(_STEP_FIELDS)}", "--allusers"]
        output = get_output(
            run([*argv, f"--jobs={address}"], timeout_s=self._timeout_s, environ=self._environ), self._timeout_s
        )
        return parse_steps(output, "sacct")

    def running_steps(self, address: str) -> dict[int, StepUsage]:
        """Return the same of a running job, from sstat, which only its owner, root and SlurmUser may ask."""
        _check_address(address)
        argv = ["sstat", "--allsteps", "--noheader", "--parsable2", "--format=JobID,TRESUsageInTot"]
        output = get_output(
            run([*argv, f"--jobs={address}"], timeout_s=self._timeout_s, environ=self._environ), self._timeout_s
        )
        return parse_steps(output, "sstat")

    def _ask_sacct(self, jobs: str) -> list[JobRecord]:
        separator = f"\x1f{os.urandom(8).hex()}\x1f"
        argv = ["sacct", "--allocations", "--duplicates", "--noheader", "--parsable", f"--delimiter={separator}"]
        argv += [f"--format={','.join(FIELDS)}", "--allusers", f"--jobs={jobs}", *self._selection]
        output = get_output(run(argv, timeout_s=self._timeout_s, environ=self._environ), self._timeout_s)
        try:
            return parse_runs(output, separator)
        except ValueError as error:
            raise SlurmError(f"sacct: {error}") from error


def _check_address(address: str) -> None:
    if not address.replace("_", "", 1).isdecimal():
        raise SlurmError(f"'{address}' is not a job id or array task address")


def parse_steps(text: str, source: str) -> dict[int, StepUsage]:
    """Parse rows of _STEP_FIELDS (`source` "sacct"), or of JobID and TRESUsageInTot ("sstat"). Pure.

    The row of the job itself, and values that this release prints in another form, are skipped.
    """
    found: dict[int, StepUsage] = {}
    for line in text.splitlines():
        step, *values = line.split("|")
        job, _, name = step.partition(".")
        if not name or not job.isdecimal() or len(values) < (1 if source == "sstat" else 3):
            continue
        before = found.get(int(job), StepUsage(source=source))
        usage = dict(part.split("=", 1) for part in values[-1].split(",") if "=" in part)
        cpu = _parse_number(_parse_cpu_time, usage.get("cpu", "") if source == "sstat" else values[0])
        memory, gpu_memory = (_parse_mib(usage.get(name, "")) for name in ("mem", "gres/gpumem"))
        gpu = _parse_number(float, usage.get("gres/gpuutil", ""))
        energy = _parse_number(float, values[1]) if source == "sacct" else None
        found[int(job)] = StepUsage(
            source=source,
            cpu_s=_add(before.cpu_s, cpu),
            mem_mib=_find_most(before.mem_mib, memory),
            gpu_pct=_find_most(before.gpu_pct, gpu or None),
            gpu_mem_mib=_find_most(before.gpu_mem_mib, gpu_memory or None),
            energy_j=_add(before.energy_j, energy or None),
        )
    return found


def _parse_cpu_time(text: str) -> float | None:
    whole, _, fraction = text.partition(".")
    seconds = parse_elapsed(whole)
    return seconds + float(f"0.{fraction}") if seconds is not None and fraction else seconds


def _parse_number(parse: Callable[[str], float | None], text: str) -> float | None:
    try:
        return parse(text)
    except ValueError:
        return None


def _parse_mib(text: str) -> int | None:
    try:
        return parse_memory(text)[0]
    except ValueError:
        return None


def _find_most(one: T | None, other: T | None) -> T | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _add(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return sum(known) if known else None


def parse_runs(text: str, separator: str) -> list[JobRecord]:
    """Parse rows of FIELDS, each field followed by `separator`. ValueError when sacct refused a field."""
    rows = [dict(zip(FIELDS, row, strict=True)) for row in split_rows(text, separator, len(FIELDS), "sacct")]
    return list(
        _count_restarts(sorted((_parse_run(row) for row in rows), key=lambda run: (run.job_id, run.submit_time)))
    )


def _count_restarts(runs: Iterable[JobRecord]) -> Iterable[JobRecord]:
    """Set `restarts`: the first of a user's runs with one id has none. Only newer releases print the number."""
    for _, runs_of_job in groupby(runs, key=lambda run: (run.job_id, run.uid)):
        for count, one in enumerate(runs_of_job):
            yield replace(one, restarts=count)


def _parse_run(row: Mapping[str, str]) -> JobRecord:
    exit_code, signal = parse_exit(row["ExitCode"])
    derived_exit_code, derived_signal = parse_exit(row["DerivedExitCode"])
    allocated_tres, requested_tres = _parse_tres(row["AllocTRES"]), _parse_tres(row["ReqTRES"])
    nodes = () if row["NodeList"] in _NO_NODES else expand(row["NodeList"])
    array, _, task = row["JobID"].partition("_")
    state = parse_base_state(row["State"])
    limit = parse_limit(row["TimelimitRaw"])
    return JobRecord(
        job_id=int(row["JobIDRaw"]),
        array_job_id=int(array) if task else None,
        array_task_id=int(task) if task.isdecimal() else None,
        name=row["JobName"],
        user=row["User"],
        uid=int(row["UID"]) if row["UID"].isdecimal() else -1,
        account=row["Account"],
        partition=row["Partition"],
        qos=row["QOS"],
        state=state,
        reason=row["Reason"],
        exit_code=exit_code,
        signal=signal,
        derived_exit_code=derived_exit_code,
        derived_signal=derived_signal,
        submit_time=_parse_time(row["Submit"]) or 0,
        eligible_time=_parse_time(row["Eligible"]),
        # For a run that never started sacct prints its end as Start.
        start_time=_parse_time(row["Start"]) if nodes else None,
        end_time=_parse_time(row["End"]),
        time_limit_s=None if limit is None else int(limit),
        nodes=nodes,
        num_nodes=parse_number(row["NNodes"]),
        cpus=parse_number(row["NCPUS"]),
        gpus=allocated_tres.gpus or requested_tres.gpus or 0,
        priority=parse_number(row["Priority"]),
        het_job_id=parse_number(array.partition("+")[0]) if "+" in array else None,
        work_dir=row["WorkDir"],
    )


def _parse_tres(text: str) -> Tres:
    try:
        return parse_tres(text)
    except ValueError:
        return Tres()


def _parse_time(text: str) -> int | None:
    try:
        found = parse_stamp(text)
    except ValueError:
        return None
    return None if found is None else int(found)


class OptionalSacct:
    """Sacct on a cluster that may have no slurmdbd. The configuration is read only when runs are requested."""

    def __init__(self, config: Callable[[], Mapping[str, str]], sacct: Sacct) -> None:
        self._config = config
        self._sacct = sacct

    def runs(self, job_ids: Collection[int]) -> tuple[JobRecord, ...]:
        """Return the runs as Sacct does; () without slurmdbd."""
        return self._sacct.runs(job_ids) if Sacct.is_there(self._config()) else ()
