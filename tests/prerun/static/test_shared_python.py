"""A Python that nobody chose: it is on PATH, and has none of the packages."""

from __future__ import annotations

from pathlib import Path

from slurmwrap.host.run_command import run
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static import static_stage
from slurmwrap.sbatch.job_request import JobRequest, Script


def severities(directory: Path, environment: Path, **environ: str) -> list[Severity]:
    (directory / "train.py").write_text("import not_a_package\n")
    script = Script(path="j", name="j", content=b"#!/bin/bash\npython train.py\n")
    given = {"PATH": f"{environment}/bin:/usr/bin:/bin", **environ}
    found: tuple[Finding, ...] = static_stage.check(
        JobRequest(script=script, chdir=str(directory)), run=run, environ=given, node_local=("/dev/",)
    )
    return [f.severity for f in found]


def test_it_gives_a_warning_only(environment: Path, open_dir: Path) -> None:
    assert severities(open_dir, environment) == [Severity.WARNING]


def test_an_active_environment_is_a_choice(environment: Path, open_dir: Path) -> None:
    assert severities(open_dir, environment, VIRTUAL_ENV=str(environment)) == [Severity.ERROR]
