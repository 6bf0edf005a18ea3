"""Submission: what is remembered of a gsub call. Apart from the other records: gsub alone pays for what it loads."""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.finding import Finding
from slurmwrap.sbatch.job_request import ResourceShape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One successful gsub call, as its user reports it; it speaks for that user's own job only."""

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
    profile_key: str = ""
    profile_variant: str = ""  # profiling.key.derive_variant()
    # Where the step counter writes (--count-steps); "" when it does not.
    step_dir: str = ""
    prerun_mode: str = "off"
    prerun_job_id: int | None = None
    fingerprint: str = ""  # script + arguments + code + environment, for "passed already"
    inputs: tuple[str, ...] = ()  # files the job names
    output_appends: bool = False  # a retry may share the output file
    plan: Mapping[str, Any] = field(default_factory=dict)  # PlacementPlan as JSON
    changes: tuple[Mapping[str, Any], ...] = ()  # Change as JSON
    forced: tuple[str, ...] = ()  # refusals that --force overrode
    warnings: tuple[Finding, ...] = ()  # what the checks at submission remarked on
    shape: ResourceShape | None = None  # as its user asked; None: of an older version, then nothing is changed
    own: Mapping[str, Any] = field(default_factory=dict)  # what its user set of the options that placement may change
    tune: bool = False  # CPUs and memory of the waiting job may be changed
    place: bool = False  # and where it insists to run
    holdout_group: str = (
        # The draw of prerun.holdout that it took part in: submissions of one draw share it; "": none.
        ""
    )
    # That draw left its pre-run out.
    held_out: bool = False
