"""Case: all that one decision may know. Record only."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.evidence import Diagnosis
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.node import Partition
from slurmwrap.model.run import JobRun
from slurmwrap.model.submission import Submission
from slurmwrap.policy.incident import Incident
from slurmwrap.policy.retry_budget import Ledger
from slurmwrap.policy.strikes import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFailure:
    """A job of someone that failed of the same content: who, and on which nodes."""

    uid: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """One run that ended, and what surrounds it."""

    diagnosis: Diagnosis
    record: JobRun
    job: JobRecord | None  # Slurm's record now; None: forgotten
    submission: Submission | None  # of this very job (record.speaks_for)
    ledger: Ledger = field(default_factory=Ledger)
    fleet: Fleet = field(default_factory=Fleet)
    limits: tuple[Partition, ...] = ()  # of the job's partitions; () when unknown
    digest: str = ""  # of diagnosis.input_path, read as the user; "" when it could not be read
    fault: str = ""  # what our own read of the input said; "" when only the log names it
    theirs: bool = False  # the file that we read is not the job's user's own (decision.InputRead)
    also_failed: tuple[InputFailure, ...] = ()  # of the same digest, before
    incident: Incident | None = None  # that this failure belongs to
    starts: tuple[float, ...] = ()  # of all our retries of the last hour and to come, Unix seconds
    gate: str = ""  # the cause for which our own Prolog gate refused a node, so that the launch failed; "" for none
    gate_nodes: tuple[str, ...] = ()  # the nodes that it refused
    site: bool = True  # the site's reconciler; a user's own binds no one else
    now: float = 0.0
