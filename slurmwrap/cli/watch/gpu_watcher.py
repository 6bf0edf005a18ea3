"""Edge: measures a running job's GPUs for as long as someone watches, by one step for each of its runs.

Nothing here raises for what Slurm or a node does: it is reported in GpuUse, and the rest of the view goes on.
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
from slurmwrap.cli.watch.gpu_utilization import STALE_S, JobGpuUse, heard, silent, with_mean, with_troubles
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.run_command import SpawnedProcess, run
from slurmwrap.model.hostlist import names_in
from slurmwrap.model.job_record import JobRecord
from slurmwrap.slurm.scontrol_parser import parse_gres_used

# The step that `slurmwrap watch --gpus` adds to a running job: its command line, and the edge that runs it.
#
# `srun --overlap` shares CPUs, memory and GPUs with the job's own steps. Facts that shaped the rest (22.05 to 26.05):
# a step may be made by the job's user alone, so root becomes that user. It sees the GPUs that it asks for, and
# without a word those of the job's own request, --gpus-per-task too. --gres=gpu:N gives N on each node; 22.05 refuses
# it where the job did not ask per node. There --gpus=N does on one node, and leaves some out on several. A task that
# ends with another code than 0 sets the job's DerivedExitCode; srun passes the end of its stdin on, but nothing when
# it is killed.
# Until Slurm gives up to make the step.
CREATED_S = 25
NAME = "slurmwrap-watch"
# For the programs to see the end of their input; then srun is signalled.
_ENDS_S = 3.0
# bytes that are kept of an unfinished line, and of stderr
_CAP = 1 << 16
_KEPT = ("PATH", "SLURM_CONF", "LD_LIBRARY_PATH")
_OWN = ("HOME", "USER", "LOGNAME", "TMPDIR")
_PYTHONS = ("/usr/bin/python3", "/usr/libexec/platform-python", "python3")
_PROGRAM = Path(slurmwrap.node_hooks.__file__).with_name("watch_gpus.py")
_REFUSED = "Invalid generic resource"  # ESLURM_INVALID_GRES
_NODES = re.compile(r" Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)")

# What one task does: the program by the node's Python; nvidia-smi where there is none. It ends with 0 whatever happens,
# is deaf to signals that are meant for the job, and ends with its input, or when that is silent for 90 s.
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


def gpus_by_node(shown: str) -> dict[str, int]:
    """Node → GPUs of the job there, out of `scontrol show job -d -o`; nodes without a GPU are left out.

    A job's name could forge such a field. It is the watcher's own job, and Slurm checks what is asked of it.
    """
    found: dict[str, int] = {}
    for nodes, gres in _NODES.findall(shown):
        count, _ = parse_gres_used(gres)
        found |= {node: count for node in names_in(nodes) if count and node not in found}
    return found


# Of a step: the option that asks for the GPUs, its nodes.
Plan = tuple[str, tuple[str, ...]]


def planned(counts: Mapping[str, int]) -> list[Plan]:
    """One step for all nodes with as many GPUs: of most jobs that is one."""
    found: dict[int, tuple[str, ...]] = {}
    for node, count in counts.items():
        found[count] = (*found.get(count, ()), node)
    return [(f"--gres=gpu:{count}", nodes) for count, nodes in found.items()]


def instead(plan: Plan, complaint: str) -> list[Plan]:
    """What to try where Slurm refused `plan` with these words; [] where there is nothing."""
    option, nodes = plan
    if not option.startswith("--gres=gpu:") or _REFUSED not in complaint:
        return []
    return [(option.replace("--gres=gpu:", "--gpus="), (node,)) for node in nodes]


def command(job_id: int, nodes: Sequence[str], gpus: str, user: tuple[int, int] | None) -> list[str]:
    """The argv of srun. `gpus`: the option that asks for them; `user`: (uid, gid) to become first."""
    become = [f"--reuid={user[0]}", f"--regid={user[1]}", "--init-groups"] if user else []
    count = len(nodes)
    return [
        *(["setpriv", *become] if become else []),
        *("srun", f"--jobid={job_id}", "--overlap", f"--job-name={NAME}", f"--nodelist={','.join(nodes)}"),
        *(f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=0"),
        *(gpus, "--cpu-bind=none", "--mpi=none", "--chdir=/", f"--immediate={CREATED_S}"),
        # A node whose program ends must not end the others.
        *("--wait=0", "--kill-on-bad-exit=0"),
        *("/bin/sh", "-c", BOOTSTRAP),
    ]


def environment(environ: Mapping[str, str], own: bool) -> dict[str, str]:
    """srun's, which is the programs' too: nothing of the job or the preferences that `watch` was started among.

    `own`: it is not root's, for another user's job.
    """
    kept = {name: environ[name] for name in (*_KEPT, *(_OWN if own else ())) if name in environ}
    pythons = " ".join((*_PYTHONS, *([sys.executable] if " " not in sys.executable else [])))
    return {**kept, "LC_ALL": "C", "SLURMWRAP_PYTHONS": pythons, "SLURMWRAP_PROGRAM": program()}


@cache
def program() -> str:
    """The text of what runs on the nodes."""
    return _PROGRAM.read_text(encoding="ascii")


def becomes(uid: int) -> tuple[int, int] | None:
    """(uid, gid) whom root must become for a step of this user's; None: no one. KeyError for an unknown user."""
    return None if uid == os.geteuid() else (uid, pwd.getpwuid(uid).pw_gid)


class GpuStep:
    """One srun of this plan. OSError when it cannot be started; what it does later raises nothing."""

    def __init__(self, plan: Plan, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.plan = plan
        # A session of its own: Ctrl-C is for the watch.
        self._child = SpawnedProcess(argv, program=None, environ=environ, fed=True, session=True, cwd=None, uid=None)
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            assert pipe is not None
            os.set_blocking(pipe, False)
        self._rest = b""
        self._said = b""

    @property
    def ended(self) -> bool:
        """srun is gone."""
        return self._child.poll() is not None

    def lines(self) -> list[bytes]:
        """Whole lines that came since the last call; never waits."""
        self._said = (self._said + _available(self._child.stderr))[-_CAP:]
        *whole, self._rest = (self._rest + _available(self._child.stdout)).split(b"\n")
        self._rest = self._rest[-_CAP:]
        return whole

    def beat(self) -> None:
        """Tells the programs that someone watches: without a word for 90 s they end."""
        if self._child.stdin is not None:
            # Gone, or it reads no more.
            with suppress(OSError):
                os.write(self._child.stdin, b".")

    def complaint(self) -> str:
        """The last of srun's own words that says what is wrong; "" where there is none."""
        lines = self._said.decode("utf-8", "replace").splitlines()
        ours = [line.partition("srun: ")[2].removeprefix("error: ") for line in lines if "srun: " in line]
        return next((line for line in reversed(ours) if line), "")

    def begin_end(self) -> None:
        """The end of the programs' input."""
        self._child.close_stdin()

    def end(self, patience_s: float = _ENDS_S) -> None:
        """Ends the step; after it nothing of slurmwrap's runs here, and the programs on the nodes end or have ended.

        srun may be reported only when its step does not end by itself: then it kills the tasks, which spoils the job's
        DerivedExitCode. One that does not end even so is killed, and its programs end in silence.
        """
        self.begin_end()
        try:
            gone = self._gone(patience_s)
            for number in (signal.SIGTERM, signal.SIGKILL):
                if not gone:
                    self._child.send(number)
                    gone = self._gone(_ENDS_S)
        except KeyboardInterrupt:
            self._child.send(signal.SIGTERM)
            raise
        finally:
            self._child.close()

    def _gone(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self._child.wait(min(until, time.monotonic() + 0.1)):
            # srun must not wait for a reader
            self.lines()
            if time.monotonic() >= until:
                return False
        return True


def _available(pipe: int) -> bytes:
    found = b""
    with suppress(OSError):  # BlockingIOError: nothing there now
        while len(found) < 16 * _CAP and (chunk := os.read(pipe, _CAP)):
            found += chunk
    return found


# For the first line of a node; srun itself gives up after CREATED_S.
START_S = 30.0
BEAT_S = 10.0
# Between two values over time.
MEAN_S = 5.0
NODES = 8  # that are asked
_ASK_S = 10.0


class Gpus:
    """GPU use of one job at a time. `most`: nodes that are asked, the job's first ones."""

    def __init__(self, environ: Mapping[str, str], most: int = NODES) -> None:
        self._environ, self._most = environ, most
        self._steps: list[GpuStep] = []
        self._user: tuple[int, int] | None = None
        # Job id and start: a requeued job runs anew.
        self._run: tuple[int, int | None] | None = None
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
        """There is nothing to wait for any more: all nodes have said something, or are reported as silent."""
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
        # Asked before its last words are read.
        gone = [step for step in self._steps if step.ended]
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
            # The view must not wait long for what never came.
            step.end(0.5)


def may_measure(record: JobRecord) -> bool:
    """Slurm lets no one but its user make a step of a job; root can become them."""
    return os.geteuid() in (record.uid, 0)
