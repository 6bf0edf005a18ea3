"""Whole jobs in the static stage: a sound job has no finding, a broken job has one with file, line and fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from casebook import read_cases

from slurmwrap.model.finding import Finding

HERE = Path(__file__).parent
Check = Callable[..., tuple[Finding, ...]]


def format_findings(found: tuple[Finding, ...]) -> list[str]:
    return [f"{f.severity.value} {f.file}:{f.line} {f.message} [{f.fix}]" for f in found]


def test_sound_jobs_have_no_finding(findings: Check, open_dir: Path) -> None:
    findings_of_jobs = {}
    for case in read_cases(HERE / "good.txt"):
        (folder := open_dir / str(len(findings_of_jobs))).mkdir()
        case.write(folder)
        findings_of_jobs[case.name] = format_findings(findings(directory=folder))
    assert len(findings_of_jobs) >= 95
    assert {name: lines for name, lines in findings_of_jobs.items() if lines} == {}


def test_broken_jobs_have_a_finding_with_file_line_and_fix(findings: Check, open_dir: Path) -> None:
    wrong = {}
    for number, case in enumerate(read_cases(HERE / "broken.txt")):
        (folder := open_dir / str(number)).mkdir()
        case.write(folder)
        found = findings(directory=folder)
        severity, location, words = (*case.expected.replace("{d}", str(folder)).split(" ", 2), "")[:3]
        lines = [f"{f.severity.value} {f.file.removeprefix(f'{folder}/')}:{f.line} {f.message} {f.fix}" for f in found]
        is_found = any(line.startswith(f"{severity} {location} ") and words in line for line in lines)
        errors = [line for line in lines if line.startswith("error")]
        if not is_found or len(errors) != (severity == "error") or not all(f.fix for f in found):
            wrong[case.name] = lines
    assert wrong == {}
