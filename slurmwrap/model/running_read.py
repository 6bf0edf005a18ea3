"""What is asked of the files of a running job, and what they had to say since the last look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.evidence import LogTail
from slurmwrap.model.job_run import JobRun


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRead:
    """What is to be read of one running job. The run's `output_begins` say how far its output was read before."""

    run: JobRun
    named: tuple[str, ...] = ()  # logs of its programs, as in Submission.logs
    step_dir: str = ""
    ranks: bool = False  # read the ranks' own files next to its output too
    since: float = 0.0  # of these, those that were written since then, Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningNews:
    """The new output of one job, each file at most 64 KiB, and its step counts (step_counts.counted_now)."""

    logs: tuple[LogTail, ...] = ()
    steps: Mapping[str, Any] = field(default_factory=dict)
