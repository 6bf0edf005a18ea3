"""A Python on PATH that the user did not choose and that lacks the packages."""

from __future__ import annotations

from pathlib import Path

from slurmwrap.host.run_command import run
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static import static_stage
from slurmwrap.sbatch.job_request import JobRequest, Script


def check_severities(directory: Path, environment: Path, **environ: str) -> list[Severity]:
    (directory / "train.py").write_text("import not_a_package\n")
    script = Script(path="j", name="j", content=b"#!/bin/bash\npython train.py\n")
    given = {"PATH": f"{environment}/bin:/usr/bin:/bin", **environ}
    found: tuple[Finding, ...] = static_stage.check(
        JobRequest(script=script, chdir=str(directory)), run=run, environ=given, node_local=("/dev/",)
    )
    return [f.severity for f in found]


def test_a_missing_package_of_a_python_on_path_is_only_a_warning(environment: Path, open_dir: Path) -> None:
    assert check_severities(open_dir, environment) == [Severity.WARNING]


def test_a_missing_package_of_an_active_environment_is_an_error(environment: Path, open_dir: Path) -> None:
    assert check_severities(open_dir, environment, VIRTUAL_ENV=str(environment)) == [Severity.ERROR]
