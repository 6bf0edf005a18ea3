"""Follows a pre-run live: stage, steps, seconds, GPU, the last line of its output. Ctrl-C detaches, it does not cancel.

On a terminal one line is rewritten in place; elsewhere a plain line comes with each new stage, and now and then.
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
PLAIN_S = 30.0  # between two lines where nothing can be rewritten
_ASK_SLURM_EVERY = 8  # polls: two seconds
_SURE = 3  # answers in a row that it has ended: a file may be seen late (NFS), and squeue once missed a job that ran
_BAR = 12  # cells
LIVE = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrerunSnapshot:
    """A pre-run at one moment. `steps_wanted` counted steps end it; `gpu_percent` None: not known."""

    # "waiting for one GPU" | "starting" | "running" | "stepping" | "profiling" | "stopped" | "ending"
    stage: str
    seconds: float = 0.0
    steps: int = 0
    steps_wanted: int = 0
    gpu_percent: float | None = None
    last_line: str = ""
    reason: str = ""  # Slurm's, while it pends


def follow(directory: Path, job_id: int, context: SubmitContext, console: Console) -> Verdict:
    """Returns the verdict; `inconclusive` when the pre-run ended without one. KeyboardInterrupt passes through."""
    view, began, polls = _View(console), context.clock.now(), 0
    state, reason, wanted, ended = "PENDING", "", read_wanted_steps(directory), 0
    try:
        while True:
            verdict = read_verdict(directory)
            if verdict is not None:
                return _report_verdict(verdict, console)
            if polls % _ASK_SLURM_EVERY == 0:
                state, reason = _read_prerun_state(job_id, context) or (state, reason)
                ended = ended + 1 if state not in LIVE else 0
                if ended >= _SURE:
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
    """What to show, from Slurm's record and what the supervisor left in progress.json."""
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
    said = str(progress.get("stage") or "")
    inside = "profiling" if said.startswith("prof") else "stepping" if steps else "running"
    stage = "ending" if state == "COMPLETING" else inside
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
    """One line without the output's last line: "pre-run running 17 s  [####--------] 1/3 steps  GPU 40 %"."""
    parts = [f"pre-run {now.stage} {now.seconds:.0f} s"]
    if now.reason:
        parts.append(f"({now.reason})")
    if now.stage in ("running", "stepping", "profiling", "ending"):
        counted = f"{now.steps}/{now.steps_wanted} steps" if now.steps <= now.steps_wanted else f"{now.steps} steps"
        parts.append(f"{_format_progress_bar(now)} {counted}" if bar else counted)
    if now.gpu_percent is not None:
        parts.append(f"GPU {now.gpu_percent:.0f} %")
    return "  ".join(parts)


@dataclass(slots=True)
class _View:
    """How it is shown, and what was shown last."""

    console: Console
    stage: str = ""
    at: float = field(default=-PLAIN_S)

    def show(self, now: PrerunSnapshot, at: float) -> None:
        if self.console.tty:
            head = describe(now, bar=True)
            room = max(0, columns() - len(head) - 2)
            tail = harmless(now.last_line).replace("\n", " ").replace("\t", " ")[:room]
            styled = self.console.style(head, "bold") + ("  " + self.console.style(tail, "dim") if tail else "")
            self.console.redraw(styled if len(head) < columns() else head[: columns()])
        elif now.stage != self.stage or at - self.at >= PLAIN_S:
            self.console.say(describe(now) + (f"  {now.last_line}" if now.last_line else ""))
            self.stage, self.at = now.stage, at


def _format_progress_bar(now: PrerunSnapshot) -> str:
    full = _BAR if not now.steps_wanted else min(_BAR, round(_BAR * now.steps / now.steps_wanted))
    return f"[{'#' * full}{'-' * (_BAR - full)}]"


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
        # The controller is away: the verdict's file may still come.
        return None
    return ("gone", "") if record is None else (record.state, record.reason)


def _make_missing_verdict(job_id: int, state: str) -> Verdict:
    return Verdict(
        outcome=Outcome.INCONCLUSIVE,
        layer="supervisor",
        reason=f"pre-run job {job_id} ended without a verdict ({state})",
    )


def read_verdict(directory: Path) -> Verdict | None:
    """The verdict that a pre-run left in its directory; None while there is none."""
    plain = _read(directory / "verdict.json")
    try:
        return verdict_from_json(plain) if plain else None
    except (KeyError, TypeError, ValueError):
        return None


def read_progress(directory: Path) -> dict[str, Any]:
    """What the supervisor last said; empty before it started."""
    return _read(directory / "progress.json")


def read_wanted_steps(directory: Path) -> int:
    """How many steps this trial counts to."""
    return _parse_whole_number(_read(directory / "spec.json").get("steps"))


def _parse_whole_number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _read(path: Path) -> dict[str, Any]:
    try:
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) else {}
