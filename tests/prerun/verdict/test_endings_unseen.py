"""Endings written before the rules were tried on them: for which of them is `fail` right if a job has many GPUs.

A file of endings: `#### verdict` begins a part, `= name` begins an ending. `@file:line function: code` is a frame of
its traceback (`~` stands for site-packages, a relative path is in the user's directory), `?` is a line of that file
directly above the line of the frame, `!` is the error, `%` is the exit code; other lines are output without change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import LogTail
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.model.verdict import Verdict
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.judge_trial import judge

SITE = "/home/u/venv/lib/python3.11/site-packages/"
_FRAME = re.compile(r"@(.+?):(\d+) (\S+): (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    name: str
    verdict: str
    text: str
    exit_code: int
    sources: dict[str, str]


def _path(name: str) -> str:
    if name.startswith("~"):
        return SITE + name[1:]
    return name if name.startswith(("/", "<")) else f"/w/{name}"


def _parse_ending(verdict: str, block: str) -> Ending:
    name, *rows = block.strip("\n").split("\n")
    text, code, open_ = "", 1, False
    sources: dict[str, str] = {}
    above: list[str] = []
    frame = ("", 0, "")
    for row in rows:
        if found := _FRAME.fullmatch(row):
            frame, above = (_path(found[1]), int(found[2]), found[4]), []
            text += "" if open_ else "Traceback (most recent call last):\n"
            text += f'  File "{frame[0]}", line {frame[1]}, in {found[3]}\n    {frame[2]}\n'
            open_ = True
        elif row.startswith("?"):
            above.append(row[1:])
            sources[frame[0]] = _make_source(frame[1], above, frame[2])
        elif row.startswith("%"):
            code = int(row[1:])
        else:
            text += row.removeprefix("!") + "\n"
            open_ = False
    return Ending(name=name, verdict=verdict, text=text, exit_code=code, sources=sources)


def _make_source(line: int, above: list[str], code: str) -> str:
    """A file whose row `line` is the code, indented below a block that the row above it begins."""
    last = above[-1]
    indent = len(last) - len(last.lstrip()) + 4 * last.rstrip().endswith(":")
    body = [*above, " " * indent + code]
    return "\n".join([*[""] * (line - len(body) - 1), "if __name__:" if body[0][:1] == " " else "", *body])


def read_endings(file: str) -> list[Ending]:
    """Every ending of a file."""
    verdict, found = "", []
    for block in re.split(r"^(?==|####)", Path(__file__).with_name(file).read_text(), flags=re.MULTILINE):
        if block.startswith("####"):
            verdict = block[4:].strip()
        elif block.startswith("= "):
            found.append(_parse_ending(verdict, block[2:]))
    return found


def judge_ending(ending: Ending) -> Verdict:
    spec = TrialSpec(
        trial_dir="/t",
        script="/t/script",
        script_name="train.sbatch",
        chdir="/w",
        gpus=16,
        nodes=2,
        mem_mib=16_000,
        mem_shrunk=True,
    )
    result = TrialResult(
        layer="exit",
        exit_code=ending.exit_code,
        seconds=20.0,
        crashed="Traceback" in ending.text,
        logs=(LogTail(name="output", text=ending.text),),
    )
    return judge(spec, result, diagnose_run, lambda path: None, ending.sources.get)


@pytest.mark.parametrize("file", ["endings_unseen_1.txt", "endings_unseen_2.txt"])
def test_unseen_endings_are_judged_by_what_one_gpu_can_show(file: str) -> None:
    found = [(ending, judge_ending(ending)) for ending in read_endings(file)]
    assert len(found) >= 99
    wrong = [
        (ending.name, ending.verdict, verdict) for ending, verdict in found if verdict.outcome.value != ending.verdict
    ]
    assert wrong == []
