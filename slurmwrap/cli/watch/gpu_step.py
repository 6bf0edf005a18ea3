"""The step that `slurmwrap watch --gpus` adds to a running job: its command line, and the edge that runs it.

`srun --overlap` shares CPUs, memory and GPUs with the job's own steps. Facts that shaped the rest (22.05 to 26.05):
a step may be made by the job's user alone, so root becomes that user. It sees the GPUs that it asks for, and without a
word those of the job's own request, --gpus-per-task too. --gres=gpu:N gives N on each node; 22.05 refuses it where the
job did not ask per node. There --gpus=N does on one node, and leaves some out on several. A task that ends with another
code than 0 sets the job's DerivedExitCode; srun passes the end of its stdin on, but nothing when it is killed.
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
from slurmwrap.host.spawn import SpawnedProcess
from slurmwrap.model.hostlist import names_in
from slurmwrap.slurm.scontrol_parser import parse_gres_used

CREATED_S = 25  # until Slurm gives up to make the step
NAME = "slurmwrap-watch"
_ENDS_S = 3.0  # for the programs to see the end of their input; then srun is told
_CAP = 1 << 16  # bytes that are kept of an unfinished line, and of stderr
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


Plan = tuple[str, tuple[str, ...]]  # of a step: the option that asks for the GPUs, its nodes


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
        *("--wait=0", "--kill-on-bad-exit=0"),  # a node whose program ends must not end the others
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
        self._child = SpawnedProcess(
            argv, program=None, environ=environ, fed=True, session=True, cwd=None, uid=None
        )  # a session of its own: Ctrl-C is for the watch
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
            with suppress(OSError):  # gone, or it reads no more
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
            self.lines()  # srun must not wait for a reader
            if time.monotonic() >= until:
                return False
        return True


def _available(pipe: int) -> bytes:
    found = b""
    with suppress(OSError):  # BlockingIOError: nothing there now
        while len(found) < 16 * _CAP and (chunk := os.read(pipe, _CAP)):
            found += chunk
    return found
