"""The lab of a fault run: its daemons, each of which can be killed, stopped and started again, and its small disks.

Runs as root. Spool and state are file systems of their own (tmpfs), so that they can be full while Slurm's are not.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path

import psutil

from slurmwrap.lab import daemons, lab_cgroups, machine
from slurmwrap.lab.lab_directories import LabDirectories, exports
from slurmwrap.lab.lab_state import append_kernel_line, down, read_state, write_state

ROOT = Path(__file__).resolve().parents[2]
SLURM_USER = "slurm"
USERS = ("swchaos-alice", "swchaos-bob")
HOMES = Path("/var/tmp")  # ordinary users may enter it
_DISK_MIB = 48
_ENDS_S = 30.0
# Slurm's own record of every run, and site settings that let retries happen within minutes.
_SLURM_CONF = "\nJobCompType=jobcomp/filetxt\nJobCompLoc={jobcomp}\nDebugFlags=NO_CONF_HASH\n"
_SITE_CONF = "\n[retry]\nbackoff_s = 5\nmax_per_hour = 0\n[incidents]\nquiet_s = 60\nspread_s = 60\n"


@dataclass(slots=True)
class ChaosLab:
    """A running lab. `processes`: the newest pid of each daemon, which may have ended."""

    layout: LabDirectories
    nodes: tuple[str, ...]
    base_port: int
    environ: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    fillers: dict[Path, FileIO] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The directory of the lab."""
        return self.layout.root

    @property
    def jobcomp(self) -> Path:
        """Slurm's own record of all runs."""
        return self.layout.controller / "jobcomp.txt"

    @property
    def clock_file(self) -> Path:
        """The seconds by which the reconciler's clock is wrong."""
        return self.root / "clock-shift"

    def run(self, argv: Sequence[str], user: str = "", timeout_s: float = 120.0, cwd: Path | None = None,
            stdin: str = "") -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a command as `user` ("": root). Exit code 124: it took longer than `timeout_s`."""
        account = pwd.getpwnam(user) if user else pwd.getpwuid(0)
        path = f"{Path(sys.executable).parent}:{daemons.PATH}"
        env = {"PATH": path, "HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name,
               "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **self.environ}  # fmt: skip
        words = list(argv)
        if user:
            ids = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
            words = [machine.program("setpriv"), *ids, "--", *words]
        try:
            return subprocess.run(words, input=stdin, capture_output=True, text=True, errors="replace", env=env,
                                  timeout=timeout_s, cwd=cwd or account.pw_dir, check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, 124, "", f"no answer after {timeout_s:.0f} s")

    def start(self, name: str) -> None:
        """Start a daemon, unless it runs."""
        if self.is_running(name):
            return
        layout, environ, user = self.layout, dict[str, str](), None
        if name == "munged":
            run, key = layout.munge_socket.parent, layout.munge_key
            argv = [machine.program("munged"), "--foreground", "--force", f"--key-file={key}",
                    f"--socket={layout.munge_socket}", f"--pid-file={run}/munged.pid", f"--log-file={layout.log(name)}",
                    f"--seed-file={key.parent}/munged.seed", "--origin=127.0.0.1"]  # fmt: skip
        elif name == "slurmctld":
            argv, user = [machine.program("slurmctld"), "-D", "-f", str(layout.slurm_conf)], SLURM_USER
        elif name == "reconcile":
            script = str(Path(__file__).with_name("shifted_reconciler.py"))
            argv = [*daemons.as_service_of(SLURM_USER), sys.executable, script, str(self.clock_file), name, "--watch",
                    "--poll=5"]  # fmt: skip
            environ = {**self.environ, "PATH": daemons.PATH, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        else:
            groups = lab_cgroups.lab_groups(layout.cgroup_name)
            node = machine.launcher(name, layout.node(name) / "hosts", groups)
            argv = [*node, machine.program("slurmd"), "-D", "-N", name, "-f", str(layout.slurm_conf)]
        daemon, self.processes[name] = daemons.start(name, argv, layout, user=user, environ=environ)
        state = read_state(layout)
        assert state is not None
        others = tuple(one for one in state.daemons if one.name != name)
        write_state(layout, replace(state, daemons=(*others, daemon)))

    def is_running(self, name: str) -> bool:
        """Whether the daemon that was started last has not ended."""
        process = self.processes.get(name)
        return process is not None and process.poll() is None

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a daemon; to all of its processes, because slurmctld has a helper process."""
        process = self.processes[name]
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            family = [psutil.Process(process.pid)]
            if number in (signal.SIGSTOP, signal.SIGCONT) and name == "slurmctld":
                family += family[0].children()
            for one in family:
                os.kill(one.pid, number)

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal that ends the daemon, and wait for its end; SIGKILL follows if it does not end."""
        self.send(name, number)
        try:
            self.processes[name].wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self.processes[name].kill()
            self.processes[name].wait(_ENDS_S)

    def cut_power(self, node: str) -> None:
        """Kill slurmd and all jobs of a node at once; an administrator sets it DOWN."""
        spool = str(self.layout.node(node))
        steps = [p.pid for p in psutil.process_iter(["name"]) if p.info["name"] == "slurmstepd" and _opens(p, spool)]
        family = [child.pid for pid in steps for child in _list_children(pid)]
        self.end(node, signal.SIGKILL)
        for pid in (*steps, *family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power was cut"])

    def add_kernel_line(self, node: str, line: str) -> None:
        """Add a line to the kernel log of the node."""
        append_kernel_line(self.layout, node, line)

    def fill(self, disk: Path) -> None:
        """Use up all space of a small disk, with a file that has no name: every named one would be read as a record."""
        path = disk / ".filler"
        file = path.open("wb", buffering=0)
        path.unlink()
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 12))
        self.fillers[disk] = file

    def free(self, disk: Path) -> None:
        """Give the space back."""
        self.fillers.pop(disk).close()


def _opens(process: psutil.Process, spool: str) -> bool:
    with contextlib.suppress(psutil.Error):
        log = f"{Path(spool).parents[1]}/log/{Path(spool).name}.log"
        return any(file.path == log or file.path.startswith(spool) for file in process.open_files())
    return False


def _list_children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


@contextlib.contextmanager
def start_cluster(directory: Path, base_port: int, nodes: int) -> Iterator[ChaosLab]:
    """Start a lab whose spool and state are small disks, and take it down; its logs and records stay."""
    layout = LabDirectories(directory)
    up = [sys.executable, "-m", "slurmwrap.cli.lab", "up", "--dir", str(directory), "--base-port", str(base_port),
          "--nodes", str(nodes), "--slurm-user", SLURM_USER, "--act=order,limit", "--no-reconcile"]  # fmt: skip
    subprocess.run(up, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    state = read_state(layout)
    assert state is not None
    lab = ChaosLab(layout, state.spec.node_names, base_port, exports(layout))
    disks = (layout.spool, layout.state)
    try:
        for name in ("slurmctld", *lab.nodes, "munged"):
            _end_first(state.daemons, name)
        for disk in disks:
            _mount(disk)
        with layout.slurm_conf.open("a") as file:
            file.write(_SLURM_CONF.format(jobcomp=lab.jobcomp))
        site = layout.site_config.read_text()
        layout.site_config.write_text(site.replace("min_gpus = 1\n", "min_gpus = 1\ngrace_s = 120\n") + _SITE_CONF)
        lab.clock_file.write_text("0")
        lab.clock_file.chmod(0o644)
        for name in ("munged", "slurmctld", *lab.nodes, "reconcile"):
            lab.start(name)
            if name == "munged":
                _wait(layout.munge_socket.is_socket, "munged")
        _wait(lambda: set(lab.run(["sinfo", "-h", "-o", "%T"]).stdout.split()) == {"idle"}, "all nodes idle")
        yield lab
    finally:
        _keep(lab)
        for process in lab.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
        for disk in disks:
            subprocess.run(["umount", "-l", str(disk)], check=False, capture_output=True)
        down(layout)


def _end_first(started: Sequence[daemons.Daemon], name: str) -> None:
    """End a daemon that `lab up` started."""
    daemon = next(one for one in started if one.name == name)
    os.kill(daemon.pid, signal.SIGTERM)
    _wait(lambda: not daemons.alive(daemon), f"{name} ends")


def _mount(disk: Path) -> None:
    found = disk.stat()
    aside = disk.with_name(f"{disk.name}.before")
    shutil.copytree(disk, aside, copy_function=shutil.copy2)
    options = f"size={_DISK_MIB}m,mode={found.st_mode & 0o7777:o},uid={found.st_uid},gid={found.st_gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "slurmwrap-chaos", str(disk)], check=True)
    for entry in aside.iterdir():
        subprocess.run(["cp", "-a", str(entry), str(disk)], check=True)
    shutil.rmtree(aside)
    for path in disk.rglob("*"):
        os.chown(path, found.st_uid, found.st_gid)


def _keep(lab: ChaosLab) -> None:
    """Copy logs, configuration, the site's records and Slurm's to DIRECTORY-records, which stays."""
    target = lab.root.with_name(f"{lab.root.name}-records")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o700)
    for path in (lab.layout.logs, lab.layout.state, lab.layout.spool, lab.layout.etc, lab.jobcomp):
        with contextlib.suppress(OSError, shutil.Error):
            copy = shutil.copytree if path.is_dir() else shutil.copy2
            copy(path, target / path.name)


def _wait(condition: object, what: str, patience_s: float = 120.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {patience_s:.0f} s in vain: {what}")
        time.sleep(0.1)
