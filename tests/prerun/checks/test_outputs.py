"""Where the job writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurmwrap.prerun.verdict import Finding, Severity

Check = Callable[..., tuple[Finding, ...]]


@pytest.mark.parametrize("pattern", ["%j.out", "logs/%x-%j.out", "%j/out", "/dev/null", "logs/%A_%a.out", "./x.out"])
def test_an_output_whose_directory_is_there_or_unknown_is_fine(pattern: str, findings: Check, open_dir: Path) -> None:
    (open_dir / "logs").mkdir()
    (open_dir / "job.sbatch").write_text(f"#!/bin/bash\n#SBATCH --output={pattern}\n#SBATCH -e {pattern}\necho\n")
    assert findings() == ()


def test_a_missing_directory_of_error_is_refused_before_slurm_loses_the_job(findings: Check, open_dir: Path) -> None:
    (open_dir / "job.sbatch").write_text("#!/bin/bash\n\n#SBATCH -e runs/%j.err\nmkdir -p runs\n")
    assert findings() == (
        Finding(
            severity=Severity.ERROR,
            message=f"--error runs/%j.err: there is no directory {open_dir}/runs; the job would fail without a word",
            file=f"{open_dir}/job.sbatch",
            line=3,
            fix=f"mkdir -p {open_dir}/runs",
            category="incorrect_inputs",
        ),
    )
