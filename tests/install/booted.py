"""Boots a Debian with systemd as first process in a systemd-nspawn container, to test the units.

Its changes are kept in memory. Its processes, mounts, network (only loopback) and cgroups vanish when it is stopped,
and when the test that booted it is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
NAME = "slurmwrap-booted"
PLACE = Path(os.environ.get("SLURMWRAP_RELEASES", "/var/cache/slurmwrap"))
_HIERARCHIES = ("unified", "systemd", "")  # below /sys/fs/cgroup: both of a hybrid machine, or the only one
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BOOT_S = 90.0
# $0: the lower tree; $1: a directory for the overlay; then the arguments of systemd-nspawn.
_START = """
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=$0,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
root=$1/root
shift
exec systemd-nspawn --directory="$root" "$@"
"""


ADDRESS = "192.0.2.1"  # on lo: Slurm resolves names with AI_ADDRCONFIG, which finds none with 127.0.0.1 alone
BACKUP = "192.0.2.2"  # for a backup slurmctld that a test may start
SLURM_CONF = f"""ClusterName=booted
SlurmctldHost={NAME}
SlurmctldHost=slurmwrap-backup({BACKUP})
CommunicationParameters=NoCtldInAddrAny
SlurmctldTimeout=5
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/of-slurmctld/pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName={NAME} CPUs=4 RealMemory=4000 Gres=gpu:2
PartitionName=gpu Nodes=ALL Default=YES
"""


class CannotBootError(Exception):
    """Tells why systemd cannot be booted on this machine."""


@dataclass(frozen=True, slots=True)
class Booted:
    """The running container. `leader`: the pid of its systemd on this machine."""

    process: subprocess.Popen[bytes]
    leader: int
    over: Path
    console: Path

    def run(self, *argv: str | Path, timeout: float = 120, given: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command as root in the container's namespaces, with the environment of a login."""
        command = ["nsenter", f"--target={self.leader}", "--all", "env", "-i", _PATH, "HOME=/root", "LANG=C.UTF-8"]
        return subprocess.run([*command, *map(str, argv)], input=given, capture_output=True, text=True, timeout=timeout)

    def out(self, *argv: str | Path, timeout: float = 120, given: str = "") -> str:
        """Runs a command and returns its output. AssertionError with all its output if it failed."""
        done = self.run(*argv, timeout=timeout, given=given)
        if done.returncode:
            log = self.run("journalctl", "-n", "20", "-o", "cat", "--no-pager").stdout
            raise AssertionError(f"{argv}: {done.returncode}: {done.stdout}{done.stderr}\n{log}")
        return done.stdout

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Writes a file that belongs to root."""
        self.out("sh", "-c", 'mkdir -p "${1%/*}" && cat >"$1" && chmod "$2" "$1"', "sh", path, f"{mode:o}", given=text)

    def copy(self, source: Path, path: str) -> None:
        """Copies a file of this machine into the container."""
        with source.open("rb") as stream:
            argv = ["nsenter", f"--target={self.leader}", "--all", "sh", "-c", 'cat >"$0"', path]
            subprocess.run(argv, stdin=stream, check=True, timeout=60)

    def start_slurm(self, release_conf: str = "") -> None:
        """Starts a one-node cluster with two GPUs by Debian's units. `release_conf`: the content of cgroup.conf."""
        for address in (ADDRESS, BACKUP):
            self.out("ip", "address", "add", f"{address}/32", "dev", "lo")
        self.write("/etc/hosts", f"127.0.0.1 localhost\n{ADDRESS} {NAME}\n{BACKUP} slurmwrap-backup\n")
        self.out("install", "-d", "-o", "slurm", "/run/of-slurmctld")
        self.write("/etc/slurm/slurm.conf", SLURM_CONF)
        self.write("/etc/slurm/gres.conf", "Name=gpu File=/srv/gpu[0-1]\n")
        self.write("/etc/slurm/cgroup.conf", release_conf)
        self.out("touch", "/srv/gpu0", "/srv/gpu1")
        self.out("systemctl", "restart", "munge", "slurmctld", "slurmd")
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%T").stdout.strip() == "idle", "its one node is idle")

    def stop(self) -> None:
        """Ends the container and removes its files and cgroups."""
        self.process.kill()  # its children die with it (--kill-child), then its namespaces and mounts vanish
        self.process.wait(timeout=30)
        exists = psutil.pid_exists
        wait_until(lambda: not exists(self.leader), "its systemd ends", 30)
        _remove_cgroups(self.process.pid)
        self.over.rmdir()
        self.console.unlink()


def wait_until(condition: object, what: str, patience_s: float = 60.0) -> None:
    """Waits until `condition()` is true. AssertionError after `patience_s` seconds."""
    assert callable(condition)
    late = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < late, f"waited {patience_s:.0f} s: {what}"
        time.sleep(0.2)


def boot(suite: str) -> Booted:
    """Boots a new system. CannotBootError tells in one sentence why that is not possible."""
    _check_requirements()
    made = subprocess.run([ROOT / ".ci" / "systemd", "tree", suite], capture_output=True, text=True)
    if made.returncode:
        raise CannotBootError(f"no {suite} could be made: {made.stderr.strip().splitlines()[-1:]}")
    over = Path(tempfile.mkdtemp(prefix="slurmwrap-booted-"))
    handle, name = tempfile.mkstemp(prefix="slurmwrap-console-")
    own = [] if Path("/run/systemd/system").is_dir() else ["--keep-unit"]
    argv = [
        "setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--propagation=private", "--pid", "--mount-proc", "--fork",
        "--kill-child", "sh", "-euc", _START, str(PLACE / f"booted-{suite}"), str(over), "--quiet", "--boot",
        "--register=no", *own, "--private-network", "--resolv-conf=off", "--timezone=off", f"--machine={NAME}",
        "--console=pipe",
    ]  # fmt: skip
    environ = {**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=handle, stderr=handle, env=environ,
        preexec_fn=_enter_own_cgroups if own else None,
    )  # fmt: skip
    os.close(handle)
    return _wait_until_booted(process, over, Path(name))


def _check_requirements() -> None:
    if os.geteuid() != 0:
        raise CannotBootError("systemd is booted by root alone")
    for program in ("systemd-nspawn", "nsenter", "setpriv", "unshare"):
        if shutil.which(program) is None:
            raise CannotBootError(f"{program} is not installed (apt-get install systemd-container util-linux)")


def _wait_until_booted(process: subprocess.Popen[bytes], over: Path, console: Path) -> Booted:
    late = time.monotonic() + _BOOT_S
    while process.poll() is None and time.monotonic() < late:
        leader = _find_leader(process.pid)
        if leader is not None:
            found = Booted(process=process, leader=leader, over=over, console=console)
            state = found.run("systemctl", "is-system-running").stdout.strip()
            if state in ("running", "degraded"):
                return found
        time.sleep(0.3)
    process.kill()
    process.wait(timeout=30)
    message = console.read_text(errors="replace").strip()[-500:] or f"it did not come up within {_BOOT_S:.0f} s"
    console.unlink()
    over.rmdir()
    _remove_cgroups(process.pid)
    raise CannotBootError(f"systemd-nspawn: {message}")


def _find_leader(pid: int) -> int | None:
    """The first process of the innermost PID namespace below `pid`."""
    try:
        below = psutil.Process(pid).children(recursive=True)
        for one in below:
            numbers = [line.split()[1:] for line in _read_status(one.pid) if line.startswith("NSpid:")]
            if numbers and numbers[0][-1] == "1" and len(numbers[0]) > 2:
                return one.pid
    except (psutil.NoSuchProcess, OSError):
        return None
    return None


def _read_status(pid: int) -> Sequence[str]:
    return Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()


def _list_cgroups(pid: int) -> list[Path]:
    """The cgroups of one container, on a machine whose own systemd does not provide them."""
    roots = [Path("/sys/fs/cgroup", name) for name in _HIERARCHIES]
    return [root / f"{NAME}-{pid}" for root in roots if (root / "cgroup.procs").exists()]


def _enter_own_cgroups() -> None:
    """Creates the cgroups and enters them; runs in the child before systemd-nspawn."""
    for group in _list_cgroups(os.getpid()):
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


def _remove_cgroups(pid: int) -> None:
    """Removes the cgroups; dead processes may remain in them for a moment."""
    wait_until(lambda: all(_remove_cgroup(group) for group in _list_cgroups(pid)), "its cgroups are empty", 30)


def _remove_cgroup(group: Path) -> bool:
    folders = [*(path for path in group.rglob("*") if path.is_dir()), group] if group.is_dir() else []
    try:
        for folder in sorted(folders, reverse=True):
            folder.rmdir()
    except OSError:
        return False
    return True
