"""Whole jobs through the static stage: sound ones without a word, broken ones with file, line and a fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from casebook import read_cases

from slurmwrap.model.finding import Finding

HERE = Path(__file__).parent
Check = Callable[..., tuple[Finding, ...]]


def shown(found: tuple[Finding, ...]) -> list[str]:
    return [f"{f.severity.value} {f.file}:{f.line} {f.message} [{f.fix}]" for f in found]


def test_sound_jobs_have_no_finding(findings: Check, open_dir: Path) -> None:
    said = {}
    for case in read_cases(HERE / "good.txt"):
        (folder := open_dir / str(len(said))).mkdir()
        case.write(folder)
        said[case.name] = shown(findings(directory=folder))
    assert len(said) >= 95
    assert {name: lines for name, lines in said.items() if lines} == {}


def test_broken_jobs_are_told_with_place_and_fix(findings: Check, open_dir: Path) -> None:
    wrong = {}
    for number, case in enumerate(read_cases(HERE / "broken.txt")):
        (folder := open_dir / str(number)).mkdir()
        case.write(folder)
        found = findings(directory=folder)
        severity, place, words = (*case.expected.replace("{d}", str(folder)).split(" ", 2), "")[:3]
        said = [f"{f.severity.value} {f.file.removeprefix(f'{folder}/')}:{f.line} {f.message} {f.fix}" for f in found]
        told = any(line.startswith(f"{severity} {place} ") and words in line for line in said)
        errors = [line for line in said if line.startswith("error")]
        if not told or len(errors) != (severity == "error") or not all(f.fix for f in found):
            wrong[case.name] = said
    assert wrong == {}
