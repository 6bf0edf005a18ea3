"""Run the commands of the evaluation; each figure of docs/evaluation.md is the output of one of them (adapter).

A Command is one `slurmwrap simulate` command line. It is run as it is printed; if it has several seeds, each seed runs
in a separate process, which gives the same results in less time.
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
    """One command. `words`: after `slurmwrap simulate`. `seeds`: of a generated load, from 1; 0: no generated load."""

    words: tuple[str, ...]
    seeds: int = 0

    def __str__(self) -> str:
        """Return the command line, on lines of at most 110 columns."""
        drawn = ["--seed", f"1-{self.seeds}"] if self.seeds else []
        lines, line = [], "slurmwrap simulate"
        for word in _kept_together([*self.words, *drawn]):
            if len(line) + len(word) > 106:
                lines.append(f"{line} \\")
                line = "   "
            line += f" {word}"
        return "\n".join([*lines, line])


def _kept_together(words: Sequence[str]) -> list[str]:
    """Return the options with their values."""
    found: list[str] = []
    for word in words:
        if found and found[-1].startswith("--") and " " not in found[-1] and not word.startswith("--"):
            found[-1] += f" {shlex.quote(word)}"
        else:
            found.append(shlex.quote(word))
    return found


class Bench:
    """Runs commands, several in parallel, each once."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers)  # the threads only wait for child processes
        self._asked: dict[Command, list[Future[list[Run]]]] = {}

    def start(self, command: Command) -> None:
        if command not in self._asked:
            seeds: list[tuple[str, ...]] = [("--seed", str(1 + seed)) for seed in range(command.seeds)] or [()]
            self._asked[command] = [self._pool.submit(_answer, (*command.words, *seed)) for seed in seeds]

    def runs(self, command: Command) -> list[Run]:
        """Return its runs, as under "runs" in the output of --json, in order."""
        self.start(command)
        return [run for future in self._asked[command] for run in future.result()]

    def close(self) -> None:
        """Cancel commands that have not started, and wait for the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _answer(words: Sequence[str]) -> list[Run]:
    answer = simulated(words).answer
    return answer.get("runs", [answer])
