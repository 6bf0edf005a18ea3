"""Whole jobs through the static stage: sound ones without a word, broken ones with file, line and a fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from casebook import Case, read_cases

from slurmwrap.prerun.finding import Finding

HERE = Path(__file__).parent
Check = Callable[..., tuple[Finding, ...]]
GOOD = read_cases(HERE / "good.txt")
BROKEN = read_cases(HERE / "broken.txt")


def named(case: Case) -> str:
    return case.name


def shown(found: tuple[Finding, ...]) -> list[str]:
    return [f"{f.severity.value} {f.file}:{f.line} {f.message} [{f.fix}]" for f in found]


@pytest.mark.parametrize("case", GOOD, ids=named)
def test_a_sound_job_has_no_finding(case: Case, findings: Check, open_dir: Path) -> None:
    case.write(open_dir)
    assert shown(findings()) == []


@pytest.mark.parametrize("case", BROKEN, ids=named)
def test_a_broken_job_is_told_with_place_and_fix(case: Case, findings: Check, open_dir: Path) -> None:
    case.write(open_dir)
    found = findings()
    severity, place, *words = case.expected.replace("{d}", str(open_dir)).split(" ", 2)
    said = [
        f"{f.severity.value} {f.file.removeprefix(str(open_dir) + '/')}:{f.line} {f.message} {f.fix}" for f in found
    ]
    assert any(line.startswith(f"{severity} {place} ") and " ".join(words) in line for line in said), said
    errors = [line for line in said if line.startswith("error")]
    assert len(errors) == (severity == "error"), said
    assert all(f.fix for f in found)
