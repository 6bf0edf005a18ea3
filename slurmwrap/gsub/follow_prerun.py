"""Follow a pre-run live: show its stage, steps, seconds, GPU use and last line of output, until it has a verdict.

On a terminal one line is rewritten in place; elsewhere a line is printed for each new stage and every PLAIN_S seconds.
Ctrl-C stops watching and does not cancel the pre-run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slurmwrap.console import Console, columns
from slurmwrap.errors import SlurmError
from slurmwrap.escape import harmless
from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.gsub.submit_context import SubmitContext
from slurmwrap.model.verdict import Outcome, Verdict, verdict_from_json
from slurmwrap.prerun.verdict.failed_commands import describe_failed_commands

POLL_S = 0.25
PLAIN_S = 30.0  # seconds between two lines if the output is not a terminal
_ASK_SLURM_EVERY = 8  # polls between two queries of Slurm: two seconds
# Consecutive answers that the pre-run has ended before it is accepted: the verdict's file may appear late (NFS), and
# squeue has been observed to miss a running job.
_CONFIRMATIONS = 3
_BAR_WIDTH = 12  # width of the progress bar in characters
LIVE = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrerunSnapshot:
    """The state of a pre-run at one moment. It ends after `steps_wanted` steps. `gpu_percent` None: not known."""

    # "waiting for one GPU" | "starting" | "running" | "stepping" | "profiling" | "rehearsing" | "stopped" | "ending"
    stage: str
    seconds: float = 0.0
    steps: int = 0
    steps_wanted: int = 0
    gpu_percent: float | None = None
    last_line: str = ""
    reason: str = ""  # Slurm's Reason while the pre-run is pending


def follow(directory: Path, job_id: int, context: SubmitContext, console: Console) -> Verdict:
    """Show the pre-run until it ends and return its verdict; `inconclusive` if it ended without one.

    A KeyboardInterrupt is not caught here.
    """
    view, began, polls = _LiveView(console), context.clock.now(), 0
    state, reason, wanted, ended = "PENDING", "", read_wanted_steps(directory), 0
    try:
        while True:
            verdict = read_verdict(directory)
            if verdict is not None:
                return _report_verdict(verdict, console)
            if polls % _ASK_SLURM_EVERY == 0:
                state, reason = _read_prerun_state(job_id, context) or (state, reason)
                ended = ended + 1 if state not in LIVE else 0
                if ended >= _CONFIRMATIONS:
                    return _report_verdict(read_verdict(directory) or _make_missing_verdict(job_id, state), console)
            seconds = context.clock.now() - began
            view.show(
                take_prerun_snapshot(state, reason, seconds, read_progress(directory), wanted), context.clock.now()
            )
            polls += 1
            context.clock.sleep(POLL_S)
    finally:
        console.progress_done()


def take_prerun_snapshot(
    state: str, reason: str, waited_s: float, progress: dict[str, Any], wanted: int
) -> PrerunSnapshot:
    """Return the state to show, from Slurm's job state and the supervisor's progress.json."""
    if state in ("PENDING", "CONFIGURING"):
        waits = "waiting for other jobs" if reason.startswith("Dependency") else "waiting for one GPU"
        stage = waits if state == "PENDING" else "starting"
        return PrerunSnapshot(
            stage=stage, seconds=waited_s, steps_wanted=wanted, reason="" if reason == "None" else reason
        )
    if state in ("SUSPENDED", "STOPPED"):
        return PrerunSnapshot(stage="stopped", seconds=waited_s, steps_wanted=wanted)
    if not progress:
        return PrerunSnapshot(
            stage="ending" if state == "COMPLETING" else "starting", seconds=waited_s, steps_wanted=wanted
        )
    steps = _parse_whole_number(progress.get("steps"))
    reported = str(progress.get("stage") or "")
    stages = {"profiles": "profiling", "rehearses": "rehearsing", "packs": "measuring members"}
    active = stages.get(reported, "stepping" if steps else "running")
    stage = "ending" if state == "COMPLETING" else active
    gpu = progress.get("gpu_percent")
    return PrerunSnapshot(
        stage=stage,
        seconds=float(progress.get("seconds") or 0.0),
        steps=steps,
        steps_wanted=wanted,
        gpu_percent=float(gpu) if isinstance(gpu, int | float) else None,
        last_line=str(progress.get("last_line") or ""),
    )


def describe(now: PrerunSnapshot, *, bar: bool = False) -> str:
    """Format one status line without the last line of output.

    Example: "pre-run running 17 s  [####--------] 1/3 steps  GPU 40 %".
    """
    parts = [f"pre-run {now.stage} {now.seconds:.0f} s"]
    if now.reason:
        parts.append(f"({now.reason})")
    if now.stage in ("running", "stepping", "profiling", "rehearsing", "ending"):
        counted = f"{now.steps}/{now.steps_wanted} steps" if now.steps <= now.steps_wanted else f"{now.steps} steps"
        parts.append(f"{_format_progress_bar(now)} {counted}" if bar else counted)
    if now.gpu_percent is not None:
        parts.append(f"GPU {now.gpu_percent:.0f} %")
    return "  ".join(parts)


@dataclass(slots=True)
class _LiveView:
    """The display of a pre-run, with the stage and the time of the last printed line."""

    console: Console
    stage: str = ""
    at: float = field(default=-PLAIN_S)

    def show(self, now: PrerunSnapshot, at: float) -> None:
        if self.console.tty:
            head = describe(now, bar=True)
            width = max(0, columns() - len(head) - 2)
            tail = harmless(now.last_line).replace("\n", " ").replace("\t", " ")[:width]
            styled = self.console.style(head, "bold") + ("  " + self.console.style(tail, "dim") if tail else "")
            self.console.redraw(styled if len(head) < columns() else head[: columns()])
        elif now.stage != self.stage or at - self.at >= PLAIN_S:
            self.console.say(describe(now) + (f"  {now.last_line}" if now.last_line else ""))
            self.stage, self.at = now.stage, at


def _format_progress_bar(now: PrerunSnapshot) -> str:
    full = _BAR_WIDTH if not now.steps_wanted else min(_BAR_WIDTH, round(_BAR_WIDTH * now.steps / now.steps_wanted))
    return f"[{'#' * full}{'-' * (_BAR_WIDTH - full)}]"


def _report_verdict(verdict: Verdict, console: Console) -> Verdict:
    console.progress_done()
    steps = f", {verdict.steps} steps" if verdict.steps else ""
    style = {Outcome.PASS: "green", Outcome.FAIL: "red", Outcome.INCONCLUSIVE: "yellow"}[verdict.outcome]
    console.say(f"pre-run: {verdict.outcome.value} after {verdict.seconds:.0f} s{steps}: {verdict.reason}", style)
    for sentence in describe_failed_commands(verdict.failed_commands, passed=verdict.outcome is Outcome.PASS):
        console.say(f"  {sentence}", "yellow")
    for cited in verdict.evidence:
        console.say(f"  {cited.source}:{cited.line}: {cited.text}")
    return verdict


def _read_prerun_state(job_id: int, context: SubmitContext) -> tuple[str, str] | None:
    try:
        record = context.slurm.job(str(job_id))
    except SlurmError:
        # The controller does not answer. The verdict's file may still appear.
        return None
    return ("gone", "") if record is None else (record.state, record.reason)


def _make_missing_verdict(job_id: int, state: str) -> Verdict:
    return Verdict(
        outcome=Outcome.INCONCLUSIVE,
        layer="supervisor",
        reason=f"pre-run job {job_id} ended without a verdict ({state})",
    )


def read_verdict(directory: Path) -> Verdict | None:
    """Return the verdict from the pre-run's directory; None while there is none."""
    plain = _read_json(directory / "verdict.json")
    try:
        return verdict_from_json(plain) if plain else None
    except (KeyError, TypeError, ValueError):
        return None


def read_progress(directory: Path) -> dict[str, Any]:
    """Return the content of the supervisor's progress.json; empty before it has started."""
    return _read_json(directory / "progress.json")


def read_wanted_steps(directory: Path) -> int:
    """Return the number of steps after which this trial ends."""
    return _parse_whole_number(_read_json(directory / "spec.json").get("steps"))


def _parse_whole_number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _read_json(path: Path) -> dict[str, Any]:
    try:
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) else {}
