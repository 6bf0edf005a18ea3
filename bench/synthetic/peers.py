"""Peers of the planning benchmark: json.loads of the same facts, and Slurm's own answer.

json.loads: parses the fields of the same node lines as JSON and nothing else; these are fewer than `--json` prints.
Slurm: a slurmctld with as many CLOUD nodes (no slurmd), queried by scontrol, and by gsub's own snapshot.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from slurmwrap.slurm.commands import SlurmCommands
from synthetic.text import CPUS, GPUS, LEAF, MEM_MIB

_SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def json_ms(nodes: str, rounds: int) -> float:
    """Return the median CPU milliseconds of json.loads."""
    rows = [dict(word.partition("=")[::2] for word in line.split() if "=" in word) for line in nodes.splitlines()]
    text = json.dumps({"nodes": rows})
    taken = []
    for _ in range(rounds):
        began = time.thread_time()
        json.loads(text)
        taken.append(1000 * (time.thread_time() - began))
    return median(taken)


def why_no_slurm() -> str:
    """Return why no Slurm is available for comparison; "" if one is."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in ("slurmctld", "munged", "mungekey", "scontrol") if not shutil.which(name, path=_SBIN)]
    return f"not installed: {', '.join(missing)}" if missing else ""


def slurm_ms(nodes: int, rounds: int) -> tuple[float, float]:
    """Return the median milliseconds of (`scontrol show node -d -o`, the snapshot: two commands and the parsing)."""
    argv = ["scontrol", "show", "node", "-d", "-o"]
    alone, whole = list[float](), list[float]()
    with (
        tempfile.TemporaryDirectory(prefix="slurmwrap-bench-", dir="/var/tmp") as scratch,
        controller(Path(scratch), nodes) as environ,
    ):
        slurm = SlurmCommands(environ, timeout_s=60)
        seen = slurm.snapshot()
        assert len(seen.nodes) == nodes, f"slurmctld shows {len(seen.nodes)} of {nodes} nodes"
        for _ in range(rounds):
            began = time.perf_counter()
            subprocess.run(argv, env=environ, check=True, stdout=subprocess.PIPE)
            alone.append(1000 * (time.perf_counter() - began))
            began = time.perf_counter()
            slurm.snapshot()
            whole.append(1000 * (time.perf_counter() - began))
    return median(alone), median(whole)


@contextlib.contextmanager
def controller(place: Path, nodes: int) -> Iterator[dict[str, str]]:
    """Run munged and slurmctld from `place`, on loopback; yield the environment of their commands."""
    place.chmod(0o755)  # munged requires that all users can reach its socket
    for folder in ("munge", "state"):
        (place / folder).mkdir(mode=0o755)
    munge = place / "munge"
    subprocess.run([_program("mungekey"), "--create", f"--keyfile={munge}/key"], check=True)
    leaves = range(0, nodes, LEAF)
    (place / "topology.conf").write_text(
        "".join(f"SwitchName=leaf{i} Nodes=g[{at}-{min(at + LEAF, nodes) - 1}]\n" for i, at in enumerate(leaves))
        + f"SwitchName=core Switches=leaf[0-{len(leaves) - 1}]\n"
    )
    (place / "gres.conf").write_text(f"NodeName=g[0-{nodes - 1}] Name=gpu Type=a100 Count={GPUS}\n")
    (place / "slurm.conf").write_text(_slurm_conf(place, nodes, _free_port()))
    environ = {**os.environ, "PATH": _SBIN, "SLURM_CONF": str(place / "slurm.conf"), "LC_ALL": "C"}
    sealed = [
        f"--{name}={munge}/{name.partition('-')[0]}" for name in ("key-file", "log-file", "pid-file", "seed-file")
    ]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    daemons = [subprocess.Popen([_program("munged"), "--foreground", f"--socket={munge}/socket", *sealed], **quiet)]
    try:
        _until(lambda: (munge / "socket").is_socket(), daemons)
        daemons.append(subprocess.Popen([_program("slurmctld"), "-D"], env=environ, **quiet))
        _until(lambda: subprocess.run(["scontrol", "ping"], env=environ, check=False, **quiet).returncode == 0, daemons)
        yield environ
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()


def _slurm_conf(place: Path, nodes: int, port: int) -> str:
    return f"""\
ClusterName=bench
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={port - 1}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge/socket
CredType=cred/munge
StateSaveLocation={place}/state
SlurmctldPidFile={place}/slurmctld.pid
SlurmctldLogFile={place}/slurmctld.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
TopologyPlugin=topology/tree
MpiDefault=none
# CLOUD nodes need no slurmd; without this nobody sees them.
PrivateData=cloud
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=-1
NodeName=DEFAULT CPUs={CPUS} Boards=1 SocketsPerBoard=2 CoresPerSocket={CPUS // 2} RealMemory={MEM_MIB}
NodeName=g[0-{nodes - 1}] Gres=gpu:a100:{GPUS} State=CLOUD
PartitionName=gpu Nodes=g[0-{nodes - 1}] Default=YES State=UP
"""


def _program(name: str) -> str:
    return shutil.which(name, path=_SBIN) or name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until(ready: Callable[[], bool], daemons: Sequence[subprocess.Popen[bytes]], patience_s: float = 60.0) -> None:
    deadline = time.monotonic() + patience_s
    while not ready():
        if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in daemons):
            raise SystemExit("Slurm did not come up for the comparison; --no-slurm goes without")
        time.sleep(0.05)
