"""PastFailure: how an earlier run of the same script failed. Records only."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import Citation


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFailure:
    """One earlier failure of a script that retrying cannot fix."""

    # Of the job, or of the pre-run.
    job_id: int
    at: float
    category: str
    # Advice of the diagnosis, or the verdict's reason.
    reason: str
    signature: str = ""
    # Of script, arguments, code and environment, as gsub computed it then.
    fingerprint: str = ""
    prerun: bool = False
    evidence: tuple[Citation, ...] = ()
    # The file that was blamed.
    input_path: str = ""
    # That kernel, Slurm or NVML blame.
    node: str = ""

    @property
    def error(self) -> str:
        """What went wrong, in the words of the job's output where they are known."""
        root = next((c.text.strip() for c in self.evidence if c.role == "root" and c.text.strip()), "")
        return self.reason or self.category if self.prerun or not root else root
