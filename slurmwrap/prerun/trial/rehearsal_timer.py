"""Decide how long a trial goes on after its steps, while the program runs with shortened epochs (adapter: step files).

inject/slurmwrap_rehearsal.py shortens the program and records what it ended. With a CPU profile the program rehearses
only when the profile is done, on request.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.trial_result import Rehearsal, StepReading
from slurmwrap.prerun.trial import step_detection
from slurmwrap.prerun.trial.trial_spec import TrialSpec

# Seconds that the program gets to begin its rehearsal after the profile, which it does in its next step.
REQUEST_S = 10.0


class RehearsalTimer:
    """Decides how long a trial goes on with its rehearsal. Times are those of time.monotonic()."""

    def __init__(self, spec: TrialSpec, environment: Mapping[str, str]) -> None:
        self._spec, self._is_on = spec, bool(environment.get("SLURMWRAP_REHEARSE"))
        self._began = self._requested = -1.0
        self.stopped_by = ""

    @property
    def is_running(self) -> bool:
        """Whether the program rehearses."""
        return self._began >= 0

    def look(self, now: float, layer: str, reading: StepReading) -> str:
        """Return what ends the trial, `layer` being what would end it without a rehearsal; "" if nothing does."""
        if not self._is_on:
            return layer
        if not self.is_running and step_detection.is_marked(self._spec.step_dir, "rehearsal"):
            self._began = now
        if not self.is_running:
            return self._request(now) if layer == "step" and reading.exact and not reading.parked else layer
        if layer in ("", "step"):
            if reading.parked:
                return self.stop("loop")
            return self.stop("time") if now - self._began >= self._spec.rehearse_s else ""
        return self.stop("time") if layer == "timeout" else layer

    def stop(self, by: str) -> str:
        """Note what stops the rehearsal, and return the layer of a pass."""
        self.stopped_by = by
        return "step"

    def _request(self, now: float) -> str:
        if self._requested < 0:
            self._requested = now
            with suppress(OSError):
                step_detection.request_rehearsal(self._spec.step_dir)
        return "" if now - self._requested < REQUEST_S else "step"

    def result(self) -> Rehearsal | None:
        """Return what was rehearsed; None if nothing was."""
        found = step_detection.read_rehearsal(self._spec.step_dir) if self.is_running else None
        return found if found is None else replace(found, stopped_by=self.stopped_by)
