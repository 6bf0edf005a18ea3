"""Edge: what slurmdbd remembers of runs, by `sacct`, as `edges.Accounting`. Where there is no slurmdbd there is none.

Every run of a job is a row of its own (--duplicates), also those that ended by a requeue, of which slurmctld shows only
the last. For some seconds a new row may lack its owner and name (22.05: uid 0, "allocation"). Fields are those of
22.05.8, parted by a separator with a nonce that no one could know when they named their job. Not by PySlurm: its
db.Jobs keeps one run per job id and has no GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby

from slurmwrap.diagnosis.slurm_state import parse_base_state
from slurmwrap.errors import SlurmError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.run_command import run
from slurmwrap.model.hostlist import expand
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.sacct_fields import Tres, parse_limit, parse_stamp, parse_tres
from slurmwrap.slurm.commands import get_output
from slurmwrap.slurm.scontrol_parser import parse_number
from slurmwrap.slurm.squeue_parser import parse_exit, split_rows

# Of sacct(1); the last two are the user's own text.
FIELDS = (
    *("JobIDRaw", "JobID", "User", "UID", "Account", "Partition", "QOS", "State", "Reason", "ExitCode"),
    *("DerivedExitCode", "Submit", "Eligible", "Start", "End", "TimelimitRaw", "NodeList", "NNodes", "NCPUS"),
    *("ReqTRES", "AllocTRES", "Priority", "WorkDir", "JobName"),
)
# Job ids in one call: the line of a command is limited.
_AT_ONCE = 500
_NOBODY = frozenset({"", "None assigned", "(null)", "Unknown"})


class Sacct:
    """sacct with `environ`. SlurmError where slurmdbd does not answer, or refuses."""

    def __init__(self, environ: Mapping[str, str] = os.environ, *, timeout_s: float = 10.0) -> None:
        mine = ("SACCT_", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS")
        kept = {name: value for name, value in environ.items() if not name.startswith(mine)}
        self._environ = {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        self._timeout_s = timeout_s

    @staticmethod
    def is_there(config: Mapping[str, str]) -> bool:
        """Whether the cluster has a slurmdbd; `config` as parse_config reads it."""
        return config.get("AccountingStorageType", "") == "accounting_storage/slurmdbd"

    def runs(self, job_ids: Collection[int]) -> tuple[JobRecord, ...]:
        """All runs of these jobs (raw ids; of an array's id all its tasks), by id and submission."""
        found: list[JobRecord] = []
        ids = sorted(job_ids)
        for start in range(0, len(ids), _AT_ONCE):
            found += self._asked(",".join(map(str, ids[start : start + _AT_ONCE])))
        return tuple(found)

    def address(self, address: str) -> tuple[JobRecord, ...]:
        """The runs of "81" or "77_2"."""
        if not address.replace("_", "", 1).isdecimal():
            raise SlurmError(f"'{address}' is not a job id or array task address")
        return tuple(self._asked(address))

    def _asked(self, jobs: str) -> list[JobRecord]:
        separator = f"\x1f{os.urandom(8).hex()}\x1f"
        argv = ["sacct", "--allocations", "--duplicates", "--noheader", "--parsable", f"--delimiter={separator}"]
        argv += [f"--format={','.join(FIELDS)}", "--allusers", f"--jobs={jobs}"]
        told = get_output(run(argv, timeout_s=self._timeout_s, environ=self._environ), self._timeout_s)
        try:
            return parse_runs(told, separator)
        except ValueError as error:
            raise SlurmError(f"sacct: {error}") from error


def parse_runs(text: str, separator: str) -> list[JobRecord]:
    """Rows of FIELDS, each field followed by `separator`. ValueError where sacct refused a field."""
    rows = [dict(zip(FIELDS, row, strict=True)) for row in split_rows(text, separator, len(FIELDS), "sacct")]
    return list(_counted(sorted((_run(row) for row in rows), key=lambda run: (run.job_id, run.submit_time))))


def _counted(runs: Iterable[JobRecord]) -> Iterable[JobRecord]:
    """With `restarts`: of one user's runs of one id the first has none. Only newer releases say it themselves."""
    for _, several in groupby(runs, key=lambda run: (run.job_id, run.uid)):
        for count, one in enumerate(several):
            yield replace(one, restarts=count)


def _run(row: Mapping[str, str]) -> JobRecord:
    exit_code, signal = parse_exit(row["ExitCode"])
    derived_exit_code, derived_signal = parse_exit(row["DerivedExitCode"])
    given, asked = _tres(row["AllocTRES"]), _tres(row["ReqTRES"])
    nodes = () if row["NodeList"] in _NOBODY else expand(row["NodeList"])
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
        submit_time=_time(row["Submit"]) or 0,
        eligible_time=_time(row["Eligible"]),
        # Of what never began it says the end.
        start_time=_time(row["Start"]) if nodes else None,
        end_time=_time(row["End"]),
        time_limit_s=None if limit is None else int(limit),
        nodes=nodes,
        num_nodes=parse_number(row["NNodes"]),
        cpus=parse_number(row["NCPUS"]),
        gpus=given.gpus or asked.gpus or 0,
        priority=parse_number(row["Priority"]),
        het_job_id=parse_number(array.partition("+")[0]) if "+" in array else None,
        work_dir=row["WorkDir"],
    )


def _tres(text: str) -> Tres:
    try:
        return parse_tres(text)
    except ValueError:
        return Tres()


def _time(text: str) -> int | None:
    try:
        found = parse_stamp(text)
    except ValueError:
        return None
    return None if found is None else int(found)


class OptionalSacct:
    """Sacct on a cluster that may have no slurmdbd, which no one asks before there is something to ask."""

    def __init__(self, config: Callable[[], Mapping[str, str]], sacct: Sacct) -> None:
        self._config = config
        self._sacct = sacct

    def runs(self, job_ids: Collection[int]) -> tuple[JobRecord, ...]:
        """As Sacct; () without slurmdbd."""
        return self._sacct.runs(job_ids) if Sacct.is_there(self._config()) else ()
