"""Runs the user's script as a trial: turns a TrialSpec into a TrialResult. Edge: processes, /proc, the trial's files.

It ends in one of four ways: N optimizer steps were counted (the process that counted them sleeps inside the step, and
the whole tree is killed there), the script ended, time is up, or it could not be started.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurmwrap.diagnosis.evidence import LogTail
from slurmwrap.prerun import sampler, steps
from slurmwrap.prerun.environment import trial_environment_of
from slurmwrap.prerun.result import Progress, StepReading, TrialResult
from slurmwrap.prerun.tree import Tree, subreaper
from slurmwrap.prerun.trial import TrialSpec

__all__ = ["Progress", "interpreter_line", "run_trial"]

POLL_S = 0.05  # step files and the script's exit
SAMPLE_S = 1.0  # CPU and memory; 4 ms per look at a tree of nine
TAIL_BYTES = 512 << 10
_RELAYED = ("python", "python3", "torchrun", "accelerate", "deepspeed")
_LAUNCHED = ("srun", "mpirun", "mpiexec")
_REFUSED = ("sbatch", "salloc", "scancel")


def run_trial(
    spec: TrialSpec,
    *,
    environ: Mapping[str, str],
    clock: Callable[[], float] = time.monotonic,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> TrialResult:
    """Runs the trial to its end; no process of it is left, whatever happens here. `environ`: the pre-run job's own."""
    try:
        prepare(spec)
        command = (*interpreter_line(Path(spec.script)), *spec.args)
    except (OSError, ValueError) as error:
        return TrialResult(layer="supervisor", error=f"the trial could not be prepared: {error}")
    environment = trial_environment_of(spec, environ, hostname=socket.gethostname(), python=sys.executable)
    with subreaper(), Path(spec.output).open("ab") as output:
        tree = Tree()
        try:
            script = subprocess.Popen(
                command,
                stdin=None,  # as sbatch gives it: --input, else /dev/null
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=_directory(spec.chdir, output.fileno()),
                start_new_session=True,
            )
        except OSError as error:
            return _not_started(error, command)
        run = _Run(spec=spec, script=script, tree=tree, clock=clock, on_progress=on_progress)
        try:
            return run.until_it_ends(environ)
        finally:
            tree.end(script.pid)
            with suppress(subprocess.TimeoutExpired):
                script.wait(timeout=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    spec: TrialSpec
    script: subprocess.Popen[bytes]
    tree: Tree
    clock: Callable[[], float]
    on_progress: Callable[[Progress], None]

    def until_it_ends(self, environ: Mapping[str, str]) -> TrialResult:
        cgroup = sampler.job_cgroup(environ, sampler.own_cgroups())
        measured, started = sampler.Sampler(cgroup), self.clock()
        layer, next_sample = "", started
        while not layer:
            now = self.clock()
            reading = steps.read_steps(self.spec.step_dir)
            layer = self._ended(reading, now - started)
            if layer or now >= next_sample:
                next_sample = now + SAMPLE_S
                measured.sample(now, self.tree.processes(), last=layer == "step")
                line = _last_line(self.spec.output)
                self.on_progress(Progress(seconds=now - started, steps=reading.count, last_line=line))
            if not layer:
                time.sleep(POLL_S)
        exit_code = self.script.returncode if layer == "exit" else None
        self.tree.end(self.script.pid)
        seconds = self.clock() - started
        reading = steps.read_steps(self.spec.step_dir)
        return TrialResult(
            layer=layer,
            exit_code=exit_code if exit_code is None or exit_code >= 0 else None,
            signal=-exit_code if exit_code is not None and exit_code < 0 else None,
            steps=reading.count,
            step_source=reading.source,
            seconds=round(seconds, 3),
            logs=(tail(self.spec.output),),
            measurement=measured.measurement(reading, seconds=seconds, cpus=len(os.sched_getaffinity(0))),
            crashed=steps.last_python_crashed(self.spec.step_dir),
            oom_kills=sampler.oom_kills(cgroup),
            refused=steps.refused(self.spec.step_dir),
        )

    def _ended(self, reading: StepReading, seconds: float) -> str:
        if reading.parked:
            return "step"
        if self.script.poll() is not None:
            return "exit"
        return "timeout" if seconds >= self.spec.time_limit_s else ""


def prepare(spec: TrialSpec) -> None:
    """Lays shims and the step counter beside the script: home directories are there in containers, ours may not be."""
    here, trial = Path(__file__).parent, Path(spec.trial_dir)
    shims, inject = trial / "shims", trial / "inject"
    for folder in (shims, inject, Path(spec.step_dir)):
        folder.mkdir(mode=0o700, exist_ok=True)
    for kind, names in (("relay", _RELAYED), ("launch", _LAUNCHED), ("refuse", _REFUSED), ("scontrol", ("scontrol",))):
        for name in names:
            shutil.copyfile(here / "shims" / kind, shims / name)
            (shims / name).chmod(0o700)
    shutil.copyfile(here / "shims" / "bash_env.sh", shims / "bash_env.sh")
    for name in ("sitecustomize.py", "slurmwrap_step.py", "slurmwrap_launch.py"):
        shutil.copyfile(here.parent / "inject" / name, inject / name)
    Path(spec.output).touch(mode=0o600)


def interpreter_line(script: Path) -> tuple[str, ...]:
    """What the kernel makes of the script's #! line: interpreter, at most one argument, the script.

    Done here because a home directory may be mounted noexec; slurmd's spool, where sbatch runs it, is not.
    """
    with script.open("rb") as stream:
        first = stream.readline(4096)
    if not first.startswith(b"#!"):
        raise ValueError(f"{script} does not start with #!")
    words = os.fsdecode(first[2:].strip()).split(None, 1)
    if not words:
        raise ValueError(f"{script} names no interpreter")
    return (*words, str(script))


def tail(path: str) -> LogTail:
    """The end of the output, cut at a line."""
    try:
        with Path(path).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            skipped = max(0, size - TAIL_BYTES)
            lines = _count_lines(path, skipped)
            stream.seek(skipped)
            raw = stream.read(TAIL_BYTES)
    except OSError as error:
        return LogTail(name="output", text=f"(the trial's output cannot be read: {error.strerror})")
    if skipped and b"\n" in raw:
        raw, lines = raw.partition(b"\n")[2], lines + 1
    return LogTail(name="output", text=raw.decode("utf-8", "replace"), first_line=lines + 1, truncated=skipped > 0)


def _count_lines(path: str, upto: int) -> int:
    count = 0
    with Path(path).open("rb") as stream:
        while upto > 0 and (chunk := stream.read(min(upto, 1 << 20))):
            count, upto = count + chunk.count(b"\n"), upto - len(chunk)
    return count


def _last_line(path: str) -> str:
    try:
        with Path(path).open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - 4096))
            lines = stream.read(4096).replace(b"\r", b"\n").split(b"\n")
    except OSError:
        return ""
    last = next((line for line in reversed(lines) if line.strip()), b"")
    return last.decode("utf-8", "replace")[:500]


def _directory(chdir: str, output: int) -> str:
    # slurmstepd goes to /tmp when the directory is missing, and says so (measured on 22.05.8).
    if os.path.isdir(chdir) and os.access(chdir, os.X_OK):  # noqa: PTH112
        return chdir
    os.write(output, f"slurmstepd: error: couldn't chdir to `{chdir}': going to /tmp instead\n".encode())
    return "/tmp"


def _not_started(error: OSError, command: tuple[str, ...]) -> TrialResult:
    # sbatch's job would end with the errno as its exit code (measured: 2 for a missing interpreter).
    text = f"slurmstepd: error: execve(): bad interpreter({command[0]}): {error.strerror}\n"
    logs = (LogTail(name="output", text=text),)
    return TrialResult(layer="exit", exit_code=error.errno or 1, logs=logs)
