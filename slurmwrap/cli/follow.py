"""Follows a pre-run live: stage, steps, seconds, the last line of its output. Ctrl-C detaches, it does not cancel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slurmwrap.cli.voice import Voice
from slurmwrap.errors import SlurmError
from slurmwrap.prerun.verdict import Outcome, Verdict, verdict_from_json
from slurmwrap.submit import Desk

POLL_S = 0.25
_ASK_SLURM_EVERY = 8  # polls: two seconds


def follow(directory: Path, job_id: int, desk: Desk, voice: Voice) -> Verdict:
    """Returns the verdict; `inconclusive` when the pre-run ended without one. KeyboardInterrupt passes through."""
    began, polls, state = desk.clock.now(), 0, "PENDING"
    try:
        while True:
            verdict = _read_verdict(directory / "verdict.json")
            if verdict is not None:
                return _told(verdict, voice)
            if polls % _ASK_SLURM_EVERY == 0:
                state = _state(job_id, desk) or state
                if state not in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED"):
                    return _told(_read_verdict(directory / "verdict.json") or _without(job_id, state), voice)
            voice.progress(_line(state, desk.clock.now() - began, _read(directory / "progress.json")))
            polls += 1
            desk.clock.sleep(POLL_S)
    finally:
        voice.progress_done()


def _told(verdict: Verdict, voice: Voice) -> Verdict:
    voice.progress_done()
    steps = f", {verdict.steps} steps" if verdict.steps else ""
    voice.say(f"pre-run: {verdict.outcome.value} after {verdict.seconds:.0f} s{steps}: {verdict.reason}")
    for cited in verdict.evidence:
        voice.say(f"  {cited.source}:{cited.line}: {cited.text}")
    return verdict


def _line(state: str, seconds: float, progress: dict[str, Any]) -> str:
    if state == "PENDING":
        return f"pre-run waits for one GPU ({seconds:.0f} s)"
    if state == "COMPLETING":
        return "pre-run: its node cleans up"
    steps, last = progress.get("steps", 0), progress.get("last_line", "")
    return f"pre-run: {progress.get('seconds', 0):.0f} s, {steps} steps  {last}"


def _state(job_id: int, desk: Desk) -> str:
    try:
        record = desk.slurm.job(str(job_id))
    except SlurmError:  # the controller is away: the verdict's file may still come
        return ""
    return "gone" if record is None else record.state


def _without(job_id: int, state: str) -> Verdict:
    return Verdict(
        outcome=Outcome.INCONCLUSIVE,
        layer="supervisor",
        reason=f"pre-run job {job_id} ended without a verdict ({state})",
    )


def _read_verdict(path: Path) -> Verdict | None:
    plain = _read(path)
    try:
        return verdict_from_json(plain) if plain else None
    except (KeyError, TypeError, ValueError):
        return None


def _read(path: Path) -> dict[str, Any]:
    try:
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) else {}
