"""Edge: measures a running job's GPUs for as long as someone watches, by one step for each of its runs.

Nothing here raises for what Slurm or a node does: it is reported in GpuUse, and the rest of the view goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from slurmwrap.cli.watch.gpu_step import GpuStep, Plan, becomes, command, environment, gpus_by_node, instead, planned
from slurmwrap.cli.watch.gpu_utilization import STALE_S, JobGpuUse, heard, silent, with_mean, with_troubles
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.run_command import run
from slurmwrap.model.job_record import JobRecord

START_S = 30.0  # for the first word of a node; srun itself gives up after gpu_step.CREATED_S
BEAT_S = 10.0
MEAN_S = 5.0  # between two values over time
NODES = 8  # that are asked
_ASK_S = 10.0


class Gpus:
    """GPU use of one job at a time. `most`: nodes that are asked, the job's first ones."""

    def __init__(self, environ: Mapping[str, str], most: int = NODES) -> None:
        self._environ, self._most = environ, most
        self._steps: list[GpuStep] = []
        self._user: tuple[int, int] | None = None
        self._run: tuple[int, int | None] | None = None  # job id and start: a requeued job runs anew
        self._use: JobGpuUse | None = None
        self._heard_at: dict[str, float] = {}
        self._began = self._beaten = self._averaged = 0.0
        self._new = False

    def __enter__(self) -> Gpus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def follow(self, record: JobRecord) -> None:
        """Starts the step when the job runs, ends it when it does not."""
        this = (record.job_id, record.start_time) if record.state == "RUNNING" else None
        if this != self._run:
            self.close()
            self._run = this
            if this is not None:
                self._start(record)

    def look(self) -> JobGpuUse | None:
        """What is known now; None while the job does not run. Never waits."""
        if self._use is None:
            return None
        now, clock = time.time(), time.monotonic()
        if self._steps:
            self._listen(now, clock)
        return self._use

    @property
    def settled(self) -> bool:
        """There is nothing to wait for any more: all nodes have said something, or are told of as silent."""
        return self._use is None or bool(self._use.given_up) or self._use.all_heard

    @property
    def lost(self) -> bool:
        """The step ended though no one ended it: most likely the job did."""
        return bool(self._use and self._use.given_up and self._use.means)

    def close(self) -> None:
        """Ends the step."""
        steps, self._steps, self._use, self._run = self._steps, [], None, None
        for step in steps:
            step.begin_end()
        for step in steps:
            step.end()

    def _start(self, record: JobRecord) -> None:
        nodes = record.nodes
        self._use = JobGpuUse(nodes=(), of_nodes=len(nodes))
        asked = run(["scontrol", "show", "job", "-d", "-o", str(record.job_id)], timeout_s=_ASK_S)
        shown = asked.stdout.decode("utf-8", "replace")
        counts = gpus_by_node(shown)
        chosen = {node: counts[node] for node in [node for node in nodes if node in counts][: self._most]}
        if not chosen:
            self._give_up("Slurm does not say which GPUs the job has" if record.gpus else "the job has no GPUs")
            return
        self._use = JobGpuUse(nodes=tuple(chosen), of_nodes=len([node for node in nodes if node in counts]))
        self._began = self._beaten = time.monotonic()
        self._heard_at = dict.fromkeys(chosen, self._began + START_S - STALE_S)
        try:
            self._user = becomes(record.uid)
        except KeyError:
            self._give_up(f"there is no user {record.uid} on this machine")
        else:
            self._begin(record.job_id, planned(chosen))

    def _begin(self, job_id: int, plans: list[Plan]) -> None:
        environ = environment(self._environ, self._user is None)
        try:
            for gpus, nodes in plans:
                self._steps.append(GpuStep((gpus, nodes), command(job_id, nodes, gpus, self._user), environ))
        except OSError as error:
            self._give_up(f"srun cannot be started: {error.strerror or error}")

    def _listen(self, now: float, clock: float) -> None:
        assert self._use is not None
        gone = [step for step in self._steps if step.ended]  # asked before its last words are read
        lines = [line for step in self._steps for line in step.lines()]
        self._use = heard(self._use, lines, now)
        self._heard_at |= dict.fromkeys((gpu.node for gpu in self._use.gpus if gpu.at == now), clock)
        self._new = self._new or any(gpu.at == now for gpu in self._use.gpus)
        if self._new and clock - self._averaged >= MEAN_S:
            self._use, self._averaged, self._new = with_mean(self._use), clock, False
        if clock - self._beaten >= BEAT_S:
            self._beaten = clock
            for step in self._steps:
                step.beat()
        self._judge(gone, clock)

    def _judge(self, gone: list[GpuStep], clock: float) -> None:
        """All steps over, or none that ever came: given up. Of several the others go on."""
        assert self._use is not None
        words = next((words for step in gone or self._steps if (words := step.complaint())), "")
        never = not (self._use.gpus or self._use.troubles or self._use.means)
        if again := [(step, plans) for step in gone if (plans := instead(step.plan, step.complaint()))]:
            self._replace(again)
        elif len(gone) == len(self._steps):
            self._give_up(f"its step ended{': ' if words else ''}{words}")
        elif clock - self._began > START_S and never:
            self._give_up(words or f"its step said nothing within {START_S:.0f} s; nodes must reach this machine")
        else:
            told = {node: step.complaint()[:200] or "its step ended" for step in gone for node in step.plan[1]}
            self._use = silent(with_troubles(self._use, told), clock, self._heard_at)

    def _replace(self, again: list[tuple[GpuStep, list[Plan]]]) -> None:
        """Steps that this release of Slurm refuses as they are; nothing of them ran."""
        assert self._run is not None
        for step, plans in again:
            self._steps.remove(step)
            step.end()
            self._begin(self._run[0], plans)

    def _give_up(self, words: str) -> None:
        assert self._use is not None
        self._use = replace(self._use, given_up=words[:300])
        steps, self._steps = self._steps, []
        for step in steps:
            step.end(0.5)  # the view must not wait long for what never came


def may_measure(record: JobRecord) -> bool:
    """Slurm lets no one but its user make a step of a job; root can become them."""
    return os.geteuid() in (record.uid, 0)
