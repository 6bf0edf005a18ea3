"""Measure the GPUs of a running job with a job step, for `slurmwrap watch --gpus` (adapter: srun, scontrol).

Errors of Slurm or a node raise no exception. JobGpuUse reports them, and the rest of the view continues.
"""

from __future__ import annotations

import os
import pwd
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import slurmwrap.node_hooks
from slurmwrap.cli.watch.gpu_utilization import (
    STALE_S,
    JobGpuUse,
    add_mean,
    add_reports,
    add_silent_nodes,
    add_troubles,
)
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.run_command import SpawnedProcess, run
from slurmwrap.model.hostlist import names_in
from slurmwrap.model.job_record import JobRecord
from slurmwrap.slurm.scontrol_parser import parse_gres_used

# The step that `slurmwrap watch --gpus` adds to a running job. `srun --overlap` shares CPUs, memory and GPUs with the
# job's own steps. Behaviour of Slurm 22.05 to 26.05 that determines the command line:
# - Only the job's user may create a step, so root becomes that user.
# - The step sees the GPUs that it requests; without a request those that the job requested, also by --gpus-per-task.
# - --gres=gpu:N gives N GPUs on each node. 22.05 refuses it if the job did not request GPUs per node. Then --gpus=N
#   works on one node, but leaves out some GPUs on several nodes.
# - A task that ends with an exit code other than 0 sets the job's DerivedExitCode.
# - srun forwards the end of its stdin to the tasks, but nothing when srun is killed.
#
# Seconds after which Slurm gives up creating the step.
STEP_CREATION_S = 25
NAME = "slurmwrap-watch"
# Seconds that the programs get to see the end of their input; then srun is signalled.
_END_PATIENCE_S = 3.0
# Number of bytes kept of an unfinished line, and of stderr.
_MOST_BYTES = 1 << 16
_KEPT_VARIABLES = ("PATH", "SLURM_CONF", "LD_LIBRARY_PATH")
_USER_VARIABLES = ("HOME", "USER", "LOGNAME", "TMPDIR")
_PYTHONS = ("/usr/bin/python3", "/usr/libexec/platform-python", "python3")
_PROGRAM = Path(slurmwrap.node_hooks.__file__).with_name("watch_gpus.py")
_INVALID_GRES = "Invalid generic resource"  # ESLURM_INVALID_GRES
_NODES = re.compile(r" Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)")

# The shell script of one task. It runs the program with the node's Python, or nvidia-smi if there is no Python. It
# always exits with 0, ignores signals that are meant for the job, and ends at the end of its input or after 90 s
# without input.
BOOTSTRAP = """\
trap '' HUP INT QUIT USR1 USR2 ALRM
trap 'exit 0' TERM
for python in $SLURMWRAP_PYTHONS; do
    if "$python" -I -S -c 'import ctypes, json, select' </dev/null >/dev/null 2>&1; then
        exec "$python" -I -S -c 'import os; exec(os.environ["SLURMWRAP_PROGRAM"])'
    fi
done
if command -v nvidia-smi >/dev/null 2>&1; then
    columns=index,uuid,utilization.gpu,memory.used,memory.total,power.draw
    nvidia-smi ${CUDA_VISIBLE_DEVICES:+"--id=$CUDA_VISIBLE_DEVICES"} --loop=5 \\
        "--query-gpu=$columns" --format=csv,noheader,nounits </dev/null 2>&1 |
        while read -r line; do echo "smi $SLURMD_NODENAME, $line"; done &
else
    echo "{\\"node\\": \\"$SLURMD_NODENAME\\", \\"error\\": \\"neither Python 3 nor nvidia-smi is there\\"}"
fi
while [ -n "$(timeout 90 head -c 1)" ]; do :; done
kill $! 2>/dev/null
exit 0
"""


def count_gpus_by_node(shown: str) -> dict[str, int]:
    """Return the number of the job's GPUs on each node that has some, from the output of `scontrol show job -d -o`.

    The job's name could forge such a field. That is harmless: it is the user's own job, and Slurm checks the request.
    """
    found: dict[str, int] = {}
    for nodes, gres in _NODES.findall(shown):
        count, _ = parse_gres_used(gres)
        found |= {node: count for node in names_in(nodes) if count and node not in found}
    return found


# A step to start: the option that requests the GPUs, and the nodes.
StepPlan = tuple[str, tuple[str, ...]]


def plan_steps(counts: Mapping[str, int]) -> list[StepPlan]:
    """Return one plan for all nodes with the same number of GPUs; most jobs need only one."""
    found: dict[int, tuple[str, ...]] = {}
    for node, count in counts.items():
        found[count] = (*found.get(count, ()), node)
    return [(f"--gres=gpu:{count}", nodes) for count, nodes in found.items()]


def find_alternative_plans(plan: StepPlan, complaint: str) -> list[StepPlan]:
    """Return the plans to try after Slurm refused `plan` with this message; [] if there are none."""
    option, nodes = plan
    if not option.startswith("--gres=gpu:") or _INVALID_GRES not in complaint:
        return []
    return [(option.replace("--gres=gpu:", "--gpus="), (node,)) for node in nodes]


def build_srun_command(job_id: int, nodes: Sequence[str], gpus: str, user: tuple[int, int] | None) -> list[str]:
    """Return the argv of srun. `gpus`: the option that requests GPUs; `user`: (uid, gid) to become first, or None."""
    become = [f"--reuid={user[0]}", f"--regid={user[1]}", "--init-groups"] if user else []
    count = len(nodes)
    return [
        *(["setpriv", *become] if become else []),
        *("srun", f"--jobid={job_id}", "--overlap", f"--job-name={NAME}", f"--nodelist={','.join(nodes)}"),
        *(f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=0"),
        *(gpus, "--cpu-bind=none", "--mpi=none", "--chdir=/", f"--immediate={STEP_CREATION_S}"),
        # The end of the program on one node must not end the others.
        *("--wait=0", "--kill-on-bad-exit=0"),
        *("/bin/sh", "-c", BOOTSTRAP),
    ]


def build_step_environment(environ: Mapping[str, str], own: bool) -> dict[str, str]:
    """Return the environment of srun, which is also that of the programs on the nodes.

    It contains nothing of the job or of the user's preferences in `environ`. `own`: the job is this user's own; False
    for root and another user's job.
    """
    kept = {name: environ[name] for name in (*_KEPT_VARIABLES, *(_USER_VARIABLES if own else ())) if name in environ}
    pythons = " ".join((*_PYTHONS, *([sys.executable] if " " not in sys.executable else [])))
    return {**kept, "LC_ALL": "C", "SLURMWRAP_PYTHONS": pythons, "SLURMWRAP_PROGRAM": read_node_program()}


@cache
def read_node_program() -> str:
    """Return the source text of the program that runs on the nodes."""
    return _PROGRAM.read_text(encoding="ascii")


def find_user_to_become(uid: int) -> tuple[int, int] | None:
    """Return the (uid, gid) that root must become for a step of this user; None if it is this process's own user.

    Raise KeyError for an unknown user.
    """
    return None if uid == os.geteuid() else (uid, pwd.getpwuid(uid).pw_gid)


class GpuStep:
    """A running srun for one plan. Creating it raises OSError if srun cannot be started; later errors do not raise."""

    def __init__(self, plan: StepPlan, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.plan = plan
        # In a session of its own srun does not get the SIGINT of Ctrl-C, which is for `slurmwrap watch`.
        self._child = SpawnedProcess(argv, program=None, environ=environ, fed=True, session=True, cwd=None, uid=None)
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            assert pipe is not None
            os.set_blocking(pipe, False)
        self._rest = b""
        self._stderr = b""

    @property
    def ended(self) -> bool:
        """Whether srun has ended."""
        return self._child.poll() is not None

    def lines(self) -> list[bytes]:
        """Return the complete lines since the last call; never waits."""
        self._stderr = (self._stderr + _read_available(self._child.stderr))[-_MOST_BYTES:]
        *whole, self._rest = (self._rest + _read_available(self._child.stdout)).split(b"\n")
        self._rest = self._rest[-_MOST_BYTES:]
        return whole

    def beat(self) -> None:
        """Write to the programs' input, to show that `watch` still runs: after 90 s without input they end."""
        if self._child.stdin is not None:
            # Fails if srun has ended or no longer reads.
            with suppress(OSError):
                os.write(self._child.stdin, b".")

    def complaint(self) -> str:
        """Return srun's last error message; "" if there is none."""
        lines = self._stderr.decode("utf-8", "replace").splitlines()
        messages = [line.partition("srun: ")[2].removeprefix("error: ") for line in lines if "srun: " in line]
        return next((line for line in reversed(messages) if line), "")

    def begin_end(self) -> None:
        """Close the programs' input, so that they end by themselves."""
        self._child.close_stdin()

    def end(self, patience_s: float = _END_PATIENCE_S) -> None:
        """End the step. Afterwards no srun runs on this host, and the programs on the nodes have ended or soon will.

        srun is signalled only if its step does not end by itself within `patience_s`: on a signal srun kills the tasks,
        which changes the job's DerivedExitCode. If srun does not end even then, it is killed, and its programs end for
        lack of input.
        """
        self.begin_end()
        try:
            gone = self._gone(patience_s)
            for number in (signal.SIGTERM, signal.SIGKILL):
                if not gone:
                    self._child.send(number)
                    gone = self._gone(_END_PATIENCE_S)
        except KeyboardInterrupt:
            self._child.send(signal.SIGTERM)
            raise
        finally:
            self._child.close()

    def _gone(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self._child.wait(min(until, time.monotonic() + 0.1)):
            # The pipes are read, so that srun does not block on a full one.
            self.lines()
            if time.monotonic() >= until:
                return False
        return True


def _read_available(pipe: int) -> bytes:
    found = b""
    # BlockingIOError: there is nothing to read now.
    with suppress(OSError):
        while len(found) < 16 * _MOST_BYTES and (chunk := os.read(pipe, _MOST_BYTES)):
            found += chunk
    return found


# Seconds to wait for the first line of a node; srun itself gives up after STEP_CREATION_S.
START_S = 30.0
BEAT_S = 10.0
# Seconds between two values in JobGpuUse.means.
MEAN_S = 5.0
NODES = 8  # nodes that are measured
_SCONTROL_TIMEOUT_S = 10.0


class GpuWatcher:
    """Measures the GPU utilization of one job at a time. `most`: how many of its nodes are measured, the first ones."""

    def __init__(self, environ: Mapping[str, str], most: int = NODES) -> None:
        self._environ, self._most = environ, most
        self._steps: list[GpuStep] = []
        self._user: tuple[int, int] | None = None
        # Job id and start time, which a requeue changes.
        self._run: tuple[int, int | None] | None = None
        self._use: JobGpuUse | None = None
        self._heard_at: dict[str, float] = {}
        self._began = self._beaten = self._averaged = 0.0
        self._new = False

    def __enter__(self) -> GpuWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def follow(self, record: JobRecord) -> None:
        """Start the step when the job runs, and end it when the job does not run."""
        this = (record.job_id, record.start_time) if record.state == "RUNNING" else None
        if this != self._run:
            self.close()
            self._run = this
            if this is not None:
                self._start(record)

    def look(self) -> JobGpuUse | None:
        """Return the present utilization; None while the job does not run. Never waits."""
        if self._use is None:
            return None
        now, clock = time.time(), time.monotonic()
        if self._steps:
            self._listen(now, clock)
        return self._use

    @property
    def settled(self) -> bool:
        """Whether there is nothing more to wait for: every node has reported or is known to be silent."""
        return self._use is None or bool(self._use.given_up) or self._use.all_heard

    @property
    def lost(self) -> bool:
        """Whether the step ended unexpectedly after it had measured: most likely the job ended."""
        return bool(self._use and self._use.given_up and self._use.means)

    def close(self) -> None:
        """End all steps."""
        steps, self._steps, self._use, self._run = self._steps, [], None, None
        for step in steps:
            step.begin_end()
        for step in steps:
            step.end()

    def _start(self, record: JobRecord) -> None:
        nodes = record.nodes
        self._use = JobGpuUse(nodes=(), of_nodes=len(nodes))
        asked = run(["scontrol", "show", "job", "-d", "-o", str(record.job_id)], timeout_s=_SCONTROL_TIMEOUT_S)
        shown = asked.stdout.decode("utf-8", "replace")
        counts = count_gpus_by_node(shown)
        chosen = {node: counts[node] for node in [node for node in nodes if node in counts][: self._most]}
        if not chosen:
            self._give_up("Slurm does not show which GPUs the job has" if record.gpus else "the job has no GPUs")
            return
        self._use = JobGpuUse(nodes=tuple(chosen), of_nodes=len([node for node in nodes if node in counts]))
        self._began = self._beaten = time.monotonic()
        self._heard_at = dict.fromkeys(chosen, self._began + START_S - STALE_S)
        try:
            self._user = find_user_to_become(record.uid)
        except KeyError:
            self._give_up(f"there is no user {record.uid} on this machine")
        else:
            self._begin(record.job_id, plan_steps(chosen))

    def _begin(self, job_id: int, plans: list[StepPlan]) -> None:
        environ = build_step_environment(self._environ, self._user is None)
        try:
            for gpus, nodes in plans:
                self._steps.append(GpuStep((gpus, nodes), build_srun_command(job_id, nodes, gpus, self._user), environ))
        except OSError as error:
            self._give_up(f"srun cannot be started: {error.strerror or error}")

    def _listen(self, now: float, clock: float) -> None:
        assert self._use is not None
        # The state is read before the lines, so that the last lines of an ended step are not lost.
        gone = [step for step in self._steps if step.ended]
        lines = [line for step in self._steps for line in step.lines()]
        self._use = add_reports(self._use, lines, now)
        self._heard_at |= dict.fromkeys((gpu.node for gpu in self._use.gpus if gpu.at == now), clock)
        self._new = self._new or any(gpu.at == now for gpu in self._use.gpus)
        if self._new and clock - self._averaged >= MEAN_S:
            self._use, self._averaged, self._new = add_mean(self._use), clock, False
        if clock - self._beaten >= BEAT_S:
            self._beaten = clock
            for step in self._steps:
                step.beat()
        self._judge(gone, clock)

    def _judge(self, gone: list[GpuStep], clock: float) -> None:
        """Handle steps that ended or did not start. `gone`: the ended steps; `clock`: monotonic seconds.

        A step that this release refuses is replaced by another plan. The measurement is given up if all steps ended, or
        if no node reported within START_S. If only some steps ended, the others continue.
        """
        assert self._use is not None
        message = next((text for step in gone or self._steps if (text := step.complaint())), "")
        never = not (self._use.gpus or self._use.troubles or self._use.means)
        if again := [(step, plans) for step in gone if (plans := find_alternative_plans(step.plan, step.complaint()))]:
            self._replace(again)
        elif len(gone) == len(self._steps):
            self._give_up(f"its step ended{': ' if message else ''}{message}")
        elif clock - self._began > START_S and never:
            self._give_up(message or f"its step sent nothing within {START_S:.0f} s; nodes must reach this machine")
        else:
            ended = {node: step.complaint()[:200] or "its step ended" for step in gone for node in step.plan[1]}
            self._use = add_silent_nodes(add_troubles(self._use, ended), clock, self._heard_at)

    def _replace(self, again: list[tuple[GpuStep, list[StepPlan]]]) -> None:
        """Replace steps that this release of Slurm refused by others; no task of them ran."""
        assert self._run is not None
        for step, plans in again:
            self._steps.remove(step)
            step.end()
            self._begin(self._run[0], plans)

    def _give_up(self, reason: str) -> None:
        assert self._use is not None
        self._use = replace(self._use, given_up=reason[:300])
        steps, self._steps = self._steps, []
        for step in steps:
            # A short time, since the view waits meanwhile.
            step.end(0.5)


def may_measure(record: JobRecord) -> bool:
    """Return whether this process can create a step in the job: only its user may, and root can become that user."""
    return os.geteuid() in (record.uid, 0)
