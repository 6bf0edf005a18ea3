"""PastFailure: how an earlier run of the same script failed. Records only."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import Citation


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFailure:
    """One earlier failure of a script that retrying cannot fix."""

    job_id: int  # of the job, or of the pre-run
    at: float
    category: str
    reason: str  # advice of the diagnosis, or the verdict's reason
    signature: str = ""
    fingerprint: str = ""  # of script, arguments, code and environment, as gsub computed it then
    prerun: bool = False
    evidence: tuple[Citation, ...] = ()
    input_path: str = ""  # the file that was blamed
    node: str = ""  # that kernel, Slurm or NVML blame

    @property
    def error(self) -> str:
        """What went wrong, in the words of the job's output where they are known."""
        root = next((c.text.strip() for c in self.evidence if c.role == "root" and c.text.strip()), "")
        return self.reason or self.category if self.prerun or not root else root
