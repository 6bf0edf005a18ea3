"""PastFailure: how an earlier run of the same script failed."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import Citation


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFailure:
    """One earlier failure of a script, of a kind that another run cannot fix."""

    job_id: int  # job id of the failed job, or of the pre-run
    at: float
    category: str
    reason: str  # advice of the diagnosis, or the reason of the verdict
    signature: str = ""
    # Digest of script, arguments, code and environment, as gsub computed it at that time.
    fingerprint: str = ""
    prerun: bool = False
    evidence: tuple[Citation, ...] = ()
    input_path: str = ""  # the input file that was blamed
    node: str = ""  # the node that kernel, Slurm or NVML blame

    @property
    def error(self) -> str:
        """Return what went wrong: the cited root line of the job's output if there is one, else the reason."""
        root = next((c.text.strip() for c in self.evidence if c.role == "root" and c.text.strip()), "")
        return self.reason or self.category if self.prerun or not root else root
