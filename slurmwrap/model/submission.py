"""Submission: what is stored about one gsub call. A module of its own, so that gsub loads only what it needs."""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.finding import Finding
from slurmwrap.model.lowered_limit import TimeRequest
from slurmwrap.sbatch.job_request import ResourceShape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedCall:
    """The call of gsub with which a job was submitted, so that `gsub --again` can repeat it."""

    words: tuple[str, ...]  # the command line after the program's name
    cwd: str
    variables: Mapping[str, str] = field(default_factory=dict)  # that set options: SBATCH_*, GSUB_*
    script: str = ""  # a script from standard input or a template, with surrogateescape; "" for one with a file


@dataclass(frozen=True, slots=True, kw_only=True)
class PartJob:
    """A part of a split array: task `tasks[i]` of this job runs the members from `indices[i]` on."""

    job_id: int
    tasks: tuple[int, ...]
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedArray:
    """An array of gsub --pack, or one that is split. `members`: on each GPU; `array`: the user's --array."""

    directory: str  # with the wrapper's files, and members/INDEX.json for each member that was started
    members: int
    array: str
    # The jobs of an array that is split, read from `directory`; (): it is one job. The first one's id is the array's.
    parts: tuple[PartJob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One successful gsub call, as its user reports it. It is evidence about that user's own jobs only."""

    cluster: str
    job_id: int
    uid: int
    user: str
    at: float
    name: str = ""
    script_path: str = ""
    script_sha256: str = ""
    work_dir: str = ""
    gpus: int = 0
    nodes: int = 0
    retry: bool = False
    # Exit codes and signals after which its user wants it to be run again: ("93", "SIGUSR1").
    retry_on: tuple[str, ...] = ()
    profile_key: str = ""
    profile_variant: str = ""  # profiling.job_key.derive_variant()
    # Settings that say how long it trains, name and value: profiling.job_key.derive_length().
    length: tuple[tuple[str, str], ...] = ()
    expected_p50_s: float | None = None  # expected run time at submission, median; None: it was not known
    expected_p90_s: float | None = None  # the run time that nine of ten such runs stay below
    expected_source: str = ""  # RunTimeEstimate.source of both
    # Directory to which the step counter writes (--count-steps); "" if it does not.
    step_dir: str = ""
    prerun_mode: str = "off"
    prerun_job_id: int | None = None
    # Digest of script, arguments, code and environment; it identifies programs that passed a pre-run already.
    fingerprint: str = ""
    inputs: tuple[str, ...] = ()  # files that the job names
    # Log file of its programs, or directory that ends with "/" -> [bytes, mark] before the job; [] without a file.
    logs: Mapping[str, Any] = field(default_factory=dict)
    output_appends: bool = False  # a retry may append to the same output file
    plan: Mapping[str, Any] = field(default_factory=dict)  # PlacementPlan as JSON
    changes: tuple[Mapping[str, Any], ...] = ()  # OptionChange as JSON
    forced: tuple[str, ...] = ()  # refusals that --force overrode
    warnings: tuple[Finding, ...] = ()  # findings of the checks at submission
    # The request of the user. None if an older version wrote the record; then slurmwrap changes nothing.
    shape: ResourceShape | None = None
    # What the user set of the options that placement may change.
    own: Mapping[str, Any] = field(default_factory=dict)
    tune: bool = False  # slurmwrap may change CPUs and memory while the job is pending
    place: bool = False  # slurmwrap may change its node list and locality while it is pending
    # Whether its time limit may be lowered while it is pending. None: an older version wrote the record.
    time: TimeRequest | None = None
    stop_at: str = ""  # --stop-at: the plateau at which it is stopped; "": none
    stop_when: str = ""  # --stop-when: "diverged" or ""
    stop_signal: str = ""  # sbatch's --signal of a job with one of them; "": it has none
    preemptible: str = ""  # --preemptible: "yes" or SIGNAL@SECONDS; "": its user did not agree to moves by it
    lease_s: int = 0  # --lease: seconds after which it leaves its GPUs to waiting jobs; 0: it has none
    # Id of the random draw (prerun.holdout) in which it took part; submissions of one draw share it. "": none.
    holdout_group: str = ""
    # The draw selected it to run without a pre-run.
    held_out: bool = False
    pack: PackedArray | None = None  # --pack: each of its array tasks runs several members; None: it is not packed
    # --share: the directory with the files of a job that may share its GPU; "": it may not.
    share: str = ""
    # Only in the user's own records: a call may contain secrets. None: not known.
    call: SubmittedCall | None = None

    @property
    def agreed(self) -> bool:
        """Return whether its user agreed to retries, of all failures or of those that they named."""
        return self.retry or bool(self.retry_on)
