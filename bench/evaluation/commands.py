"""The commands that the evaluation consists of: each figure of docs/evaluation.md is the answer of one of them. Edge.

A Command is the words of one `slurmwrap simulate`. It is run as it is printed; where it asks for several seeds, one
process plays each of them, which gives the same answers sooner.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from simulation.child import simulated

Run = dict[str, Any]  # of `slurmwrap simulate --json`


@dataclass(frozen=True, slots=True)
class Command:
    """`words`: after `slurmwrap simulate`. `seeds`: of a generated load, from 1; 0: it is none."""

    words: tuple[str, ...]
    seeds: int = 0

    def __str__(self) -> str:
        """As it is typed, on lines of at most 110 columns."""
        drawn = ["--seed", f"1-{self.seeds}"] if self.seeds else []
        lines, line = [], "slurmwrap simulate"
        for word in _kept_together([*self.words, *drawn]):
            if len(line) + len(word) > 106:
                lines.append(f"{line} \\")
                line = "   "
            line += f" {word}"
        return "\n".join([*lines, line])


def _kept_together(words: Sequence[str]) -> list[str]:
    """Options with their values."""
    found: list[str] = []
    for word in words:
        if found and found[-1].startswith("--") and " " not in found[-1] and not word.startswith("--"):
            found[-1] += f" {shlex.quote(word)}"
        else:
            found.append(shlex.quote(word))
    return found


class Bench:
    """Runs commands, several at a time, each once."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers)  # the threads only wait for child processes
        self._asked: dict[Command, list[Future[list[Run]]]] = {}

    def start(self, command: Command) -> None:
        if command not in self._asked:
            seeds: list[tuple[str, ...]] = [("--seed", str(1 + seed)) for seed in range(command.seeds)] or [()]
            self._asked[command] = [self._pool.submit(_answer, (*command.words, *seed)) for seed in seeds]

    def runs(self, command: Command) -> list[Run]:
        """Its runs, as --json gives them under "runs", in order."""
        self.start(command)
        return [run for future in self._asked[command] for run in future.result()]

    def close(self) -> None:
        """Nothing more is started."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _answer(words: Sequence[str]) -> list[Run]:
    answer = simulated(words).answer
    return answer.get("runs", [answer])
