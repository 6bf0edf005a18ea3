"""The outcome of a test with either program, and their comparison. Pure, except for the `run` function passed in."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

ARMS = ("sbatch", "gsub")
REPEATS = 3
_WORDS = ("pass", "skip", "fail", "none")  # from best to worst
_LONGEST = 160


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one test, or of one case of a Python test file."""

    test: str
    word: str  # one of _WORDS
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Compared:
    """The best outcome of all repeats, for each program."""

    test: str
    sbatch: str
    gsub: str
    sbatch_reason: str
    gsub_reason: str

    @property
    def counts(self) -> bool:
        """Whether gsub's outcome is worse."""
        return self.sbatch == "pass" and self.gsub != "pass"

    def __str__(self) -> str:
        mark = "<==" if self.counts else ""
        return (
            f"{self.test:44} {self.sbatch:5} {self.gsub:5} {mark:3} {self.gsub_reason or self.sbatch_reason}".rstrip()
        )


def compare(run: Callable[[str, str, int], Sequence[Outcome]], test: str) -> list[Compared]:
    """Run a test with both programs; repeat it if gsub does worse, since some tests fail in one run of ten."""
    seen: dict[str, dict[str, list[Outcome]]] = {}
    found: list[Compared] = []
    for attempt in range(REPEATS):
        for arm in ARMS:
            for outcome in run(test, arm, attempt):
                seen.setdefault(outcome.test, {}).setdefault(arm, []).append(outcome)
        found = [_compared(name, arms) for name, arms in seen.items()]
        if not any(one.counts for one in found):
            break
    return found


def _compared(name: str, arms: Mapping[str, Sequence[Outcome]]) -> Compared:
    sbatch, gsub = (_best(arms.get(arm, ())) for arm in ARMS)
    return Compared(name, sbatch.word, gsub.word, sbatch.reason, gsub.reason)


def _best(outcomes: Iterable[Outcome]) -> Outcome:
    return min(outcomes, key=lambda one: _WORDS.index(one.word), default=Outcome("", "none"))


def of_expect(test: str, exit_code: int, log: str) -> Outcome:
    """Return the outcome of an expect test, which exits with 0 if it passed and above 127 if it skipped itself."""
    word = "pass" if exit_code == 0 else "skip" if exit_code > 127 else "fail"
    return Outcome(test, word, "" if word == "pass" else _reason(log, word) or f"exit code {exit_code}")


def _reason(log: str, word: str) -> str:
    """Return the first line of the log with the reason, without its time stamp and the trailing procedure names."""
    marks = ("Fatal", "Error", "Failure") if word == "fail" else ("Warning", "skip")
    lines = re.sub(r"\x1b\[[\d;]*m", "", log).splitlines()
    found = [line for line in lines if any(mark in line for mark in marks) and not line.startswith("sbatch:")]
    plain = re.sub(r"^\[[^]]*\][\s[]*\w+[\s\]:]+|\((?:sub)?(?:fail|skip)@.*", "", found[0]) if found else ""
    return plain.strip()[:_LONGEST]


def of_pytest(test: str, report: bytes) -> list[Outcome]:
    """Return one outcome for each case of a JUnit report."""
    return [_of_case(f"{test}::{case.get('name')}", case) for case in xml.fromstring(report).iter("testcase")]


def _of_case(name: str, case: xml.Element) -> Outcome:
    for word, tag in (("fail", "failure"), ("fail", "error"), ("skip", "skipped")):
        if (found := case.find(tag)) is not None:
            return Outcome(name, word, (found.get("message") or "?").splitlines()[0][:_LONGEST])
    return Outcome(name, "pass")


def summary(done: Sequence[Compared]) -> str:
    """Return the number of tests that passed with each program, and every test that passed only with sbatch."""
    rows = [f"{len(done)} tests and cases"]
    for arm in ARMS:
        count = Counter(getattr(one, arm) for one in done)
        rows.append(f"  {arm:8}" + "  ".join(f"{count[word]:4} {word}" for word in _WORDS if count[word]))
    worse = sorted(str(one) for one in done if one.counts)
    return "\n".join([*rows, f"{len(worse)} pass with sbatch and do not with gsub", *worse])
