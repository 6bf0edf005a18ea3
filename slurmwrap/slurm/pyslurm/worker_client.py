"""Talks to worker.py: one request, one answer, each within a deadline. The child lives as long as it answers.

A child that ended by itself (fatal() of libslurm, a crash) is not started again: it would end again. One that was
ended at a deadline is: the controller was busy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurmwrap.host.line_process import LineProgram

_WORKER = Path(__file__).with_name("worker.py")


class UnsupportedPyslurm(Exception):
    """PySlurm cannot do it, and Slurm was not asked: the commands can."""


class SlurmRefused(Exception):
    """Slurm said no. `said`: what libslurm printed besides."""

    def __init__(self, words: str, said: str) -> None:
        super().__init__(words)
        self.said = said


class WorkerTimeout(Exception):
    """No answer in time, or the child ended over it: no one knows whether Slurm heard the request."""


class Link:
    """A worker with `environ` as its environment, started at the first request."""

    def __init__(self, environ: Mapping[str, str], timeout_s: float) -> None:
        # -P: neither the directory of worker.py nor the current one may hold a "pyslurm"
        argv = [sys.executable, "-P", str(_WORKER)]
        self._program = LineProgram(argv, {**environ, "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1"})
        self._timeout_s = timeout_s
        # Why nothing is asked any more.
        self.broken = ""

    def ask(self, task: str, given: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """The answer. Raises Unfit, Refused or Silent."""
        if self.broken:
            raise UnsupportedPyslurm(self.broken)
        line = json.dumps({"task": task, "with": dict(given or {})}).encode() + b"\n"
        answer = json.loads(self._exchange_line(line, self._timeout_s if timeout_s is None else timeout_s))
        if "unfit" in answer:
            raise UnsupportedPyslurm(answer["unfit"])
        if "refused" in answer:
            raise SlurmRefused(answer["refused"], answer["said"])
        return answer["ok"]

    def close(self) -> None:
        """Ends the child; it also ends by itself when we do."""
        self._program.close()

    def _exchange_line(self, line: bytes, timeout_s: float) -> bytes:
        try:
            return self._program.ask(line, timeout_s)
        except TimeoutError:
            raise WorkerTimeout(f"PySlurm: no answer within {timeout_s:g} s") from None
        except OSError as error:
            self.broken = f"PySlurm's process ended ({error})"
            raise WorkerTimeout(self.broken) from None
