"""Measure how fast 1, 2, 4, ... members of an array are side by side on the pre-run's GPU (adapter; gsub --pack=auto).

Each member is started once and goes on while more are added: its script, with an index of its own, in an overlay of its
own, so that no file of the user is changed and no member sees files of another one. Speeds are computed from the time
of the last step that each member recorded, never from the time of a reading. All members are killed at the end.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.inject.slurmwrap_members import find_own_cpus, list_cores, share_cpus
from slurmwrap.model.resource_profile import PackPoint
from slurmwrap.model.trial_result import StepReading, TrialProgress
from slurmwrap.prerun.isolation.protection import Protection, has_forbidden_write, set_up_protection
from slurmwrap.prerun.trial.process_tree import ProcessTree, become_subreaper
from slurmwrap.prerun.trial.step_detection import read_steps
from slurmwrap.prerun.trial.trial_containers import end_containers, remove_container_layers
from slurmwrap.prerun.trial.trial_environment import build_trial_environment
from slurmwrap.prerun.trial.trial_layout import make_command_line, put_over, write_trial_files
from slurmwrap.prerun.trial.trial_spec import TrialSpec

POLL_S = 0.1
# Steps of each member after which it is warm, and in a window that counts.
_WARM_STEPS, _WINDOW_STEPS = 3, 5
# A window for slow steps is up to so many times as long.
_LONGEST = 3
# Seconds for all members to make their first steps, at least; more if the single trial took longer.
_LEAST_START_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSpeeds:
    """The measured speeds, and why there are no more of them (resource_profile.PACK_ENDS)."""

    points: tuple[PackPoint, ...] = ()
    end: str = ""


class _End(Exception):
    """Ends the measurement. `args[0]`: one of PACK_ENDS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A member that was started for the measurement."""

    spec: TrialSpec
    protection: Protection
    process: subprocess.Popen[bytes]

    def read(self) -> StepReading:
        return read_steps(self.spec.step_dir)


def list_numbers_of_members(most: int) -> list[int]:
    """Return the numbers of members that are measured: 1, 2, 4, ... up to `most`."""
    return [2**power for power in range(max(1, most).bit_length())]


def measure_members(
    spec: TrialSpec,
    most: int,
    *,
    environ: Mapping[str, str],
    on_progress: Callable[[TrialProgress], None] = lambda progress: None,
    clock: Callable[[], float] = time.monotonic,
) -> PackSpeeds:
    """Run up to `most` members of the trial's array and return their speeds. `environ`: that of the pre-run's job.

    Whatever happens, all its processes are killed and all its files removed.
    """
    return _Measurement(spec, most, environ, on_progress, clock).run()


class _Measurement:
    def __init__(
        self,
        spec: TrialSpec,
        most: int,
        environ: Mapping[str, str],
        on_progress: Callable[[TrialProgress], None],
        clock: Callable[[], float],
    ) -> None:
        self._spec, self._environ, self._on_progress, self._clock = spec, environ, on_progress, clock
        self._most = min(most, len(spec.pack_indices), spec.pack_most)
        self._began = self._looked = clock()
        # The CPUs of each member are those that it has in a packed task.
        self._cpus = share_cpus(list_cores(find_own_cpus(dict(environ))), spec.pack_most)
        self._members: list[_Member] = []
        self._points: list[PackPoint] = []

    def run(self) -> PackSpeeds:
        end = "fit"
        with become_subreaper():
            tree = ProcessTree()
            try:
                for number in list_numbers_of_members(self._most):
                    while len(self._members) < number:
                        self._start()
                    self._points.append(PackPoint(members=number, steps_per_s=self._measure()))
                    if _has_become_slower(self._points):
                        raise _End("slower")
            except _End as reached:
                end = str(reached.args[0])
            except (OSError, ValueError):
                end = "files"
            finally:
                self._end_all(tree)
        if end == "exit" and not self._points:
            end = "first_exit"
        return PackSpeeds(points=tuple(self._points), end=end)

    def _start(self) -> None:
        number = len(self._members)
        spec = _make_spec(self._spec, number)
        for folder in (Path(spec.trial_dir).parent, Path(spec.trial_dir)):
            folder.mkdir(mode=0o700, exist_ok=True)
        environment = build_trial_environment(
            spec, self._environ, hostname=socket.gethostname(), python=sys.executable
        ) | {"SLURMWRAP_PARK_AFTER": "0", "SLURMWRAP_REHEARSE": ""}
        with ExitStack() as on_failure:
            protection = set_up_protection(spec, environment)
            on_failure.callback(protection.remove)
            environment |= protection.environment()
            write_trial_files(spec, environment)
            if protection.refusal():
                raise _End("files")
            command = protection.overlay.command(make_command_line(protection.spec), put_over(spec, environment))
            cpus = self._cpus[number]
            with Path(spec.output).open("ab") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=spec.chdir,
                    start_new_session=True,
                    preexec_fn=partial(os.sched_setaffinity, 0, cpus) if cpus else None,
                )
            on_failure.pop_all()
        self._members.append(_Member(spec=spec, protection=protection, process=process))

    def _measure(self) -> float:
        """Return the mean steps per second of the members, once all of them make steps."""
        start_s = max(_LEAST_START_S, 2 * self._spec.pack_start_s)
        before = self._wait(
            _WARM_STEPS, [StepReading()] * len(self._members), least_s=0.0, most_s=start_s, late="steps"
        )
        window_s = self._spec.pack_s
        after = self._wait(_WINDOW_STEPS, before, least_s=window_s, most_s=_LONGEST * window_s, late="slow")
        speeds = [(b.count - a.count) / (b.last - a.last) for a, b in zip(before, after, strict=True)]
        return sum(speeds) / len(speeds)

    def _wait(
        self, steps: int, since: Sequence[StepReading], *, least_s: float, most_s: float, late: str
    ) -> list[StepReading]:
        """Wait for `steps` more steps of each member, and at least `least_s`. `late`: the end if it takes longer."""
        began = self._clock()
        while True:
            seen = [member.read() for member in self._members]
            took = self._clock() - began
            done = all(
                b.exact and b.count - a.count >= steps and b.last > a.last for a, b in zip(since, seen, strict=True)
            )
            if done and took >= least_s:
                return seen
            if any(has_forbidden_write(member.spec.step_dir) for member in self._members):
                raise _End("files")
            if any(member.process.poll() is not None for member in self._members):
                raise _End("exit")
            if took >= most_s:
                raise _End(late)
            if self._clock() - self._began >= self._spec.pack_limit_s:
                raise _End("time")
            self._report(seen)
            time.sleep(POLL_S)

    def _report(self, seen: Sequence[StepReading]) -> None:
        now = self._clock()
        if now - self._looked >= 1.0:
            self._looked = now
            line = f"{len(seen)} members side by side"
            steps = sum(reading.count for reading in seen)
            self._on_progress(TrialProgress(seconds=now - self._began, steps=steps, last_line=line, stage="packs"))

    def _end_all(self, tree: ProcessTree) -> None:
        # Also the process of a member whose start was interrupted.
        tree.end(0)
        for member in self._members:
            end_containers(member.spec.trial_dir, self._environ)
            member.process.poll()
            member.protection.remove()
            remove_container_layers(member.spec.trial_dir, self._environ)
        shutil.rmtree(_find_folder(self._spec), ignore_errors=True)


def _find_folder(spec: TrialSpec) -> Path:
    return Path(spec.trial_dir, "members")


def _make_spec(spec: TrialSpec, number: int) -> TrialSpec:
    """Return the trial of one member: with its own index and directory, without any end after some steps."""
    index = {"SLURM_ARRAY_TASK_ID": str(spec.pack_indices[number])}
    return replace(
        spec,
        trial_dir=str(_find_folder(spec) / str(number)),
        environment={**spec.environment, **index},
        # Two members must not write into the same cache; the single trial has filled it.
        caches=(),
        profile_s=0.0,
        rehearse_s=0.0,
    )


def _has_become_slower(points: Sequence[PackPoint]) -> bool:
    """Return whether the newest number of members is slower together than the one before."""
    together = [point.members * point.steps_per_s for point in points[-2:]]
    return len(together) == 2 and together[1] < together[0]
