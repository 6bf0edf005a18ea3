"""Start the lab's daemons, and find and end all processes of one lab and no others (adapter).

A process belongs to the lab in any of these cases: its /etc/hosts is the file of one of the lab's nodes (everything on
a node with namespaces); it is in the lab's cgroups; its environment has the lab's mark (daemons); it is a slurmstepd
that logs to the lab's directory; Slurm runs it as a hook from the lab's directory; or its environment has the lab's
SLURM_CONF together with a SLURMD_NODENAME (job processes without namespaces). None of these applies to a user's shell
that evaluated `lab env`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmwrap.errors import LabError
from slurmwrap.lab import lab_cgroups
from slurmwrap.lab.lab_directories import LabDirectories

MARK = "SLURMWRAP_LAB"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KILL_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A daemon that was started. `started` is its start time in clock ticks since boot (proc(5), stat field 22)."""

    # munged, slurmctld, reconcile, or the node's name
    name: str
    pid: int
    started: int


def start(
    name: str,
    argv: Sequence[str],
    layout: LabDirectories,
    *,
    user: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Daemon, subprocess.Popen[bytes]]:
    """Start `argv` in a new session with its output in D/log/NAME.err. Raise LabError when it cannot be started."""
    env = {
        "PATH": PATH,
        "LC_ALL": "C",
        MARK: str(layout.root),
    }
    uid, gid, groups = _identity(user) if user else (None, None, None)
    with layout.errors(name).open("ab") as errors:
        try:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd="/", start_new_session=True,
                env={**env, **(environ or {})}, umask=0o022,
                user=uid, group=gid, extra_groups=groups,
            )  # fmt: skip
        except OSError as error:
            raise LabError(f"cannot start {argv[0]}: {error.strerror}") from error
    return Daemon(name=name, pid=process.pid, started=started_at(process.pid)), process


def as_service_of(user: str) -> list[str]:
    """Return a command prefix with which root starts a program as `user` that may read users' files as these users.

    systemd does the same after `slurmwrap hooks install --become-users`. [] when this process is not root, `user` is
    root, or setpriv (util-linux) is missing.
    """
    program = shutil.which("setpriv", path=PATH)
    if os.geteuid() != 0 or user == "root" or program is None:
        return []
    uid, gid, _ = _identity(user)
    caps = "caps=+setuid,+setgid"
    return [program, f"--reuid={uid}", f"--regid={gid}", "--init-groups", f"--inh-{caps}", f"--ambient-{caps}",
            "--no-new-privs"]  # fmt: skip


def alive(daemon: Daemon) -> bool:
    """Return whether exactly this process still runs; another process with the same pid and a zombie do not count."""
    return started_at(daemon.pid) == daemon.started != 0


def started_at(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 when it has ended or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # The command name may contain blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def owned(layout: LabDirectories) -> set[int]:
    """Return the pids of all processes of this lab, except for this process and its ancestors."""
    hosts = _hosts_files(layout)
    found = {pid for pid in _pids() if _is_of_lab(pid, layout, hosts)} | set(lab_cgroups.members(layout.cgroup_name))
    return {pid for pid in found - set(_ancestry()) if started_at(pid)}


def kill_all(layout: LabDirectories) -> int:
    """Kill every process of this lab, wait until all have ended, and return their number.

    Raise LabError when a process does not end.
    """
    deadline, total = time.monotonic() + _KILL_PATIENCE_S, set[int]()
    while pids := owned(layout):
        total |= pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise LabError(
                f"process {min(pids)} of {layout.root} does not end", hint="find out what it waits for, then try again"
            )
        time.sleep(0.02)
    return len(total)


def _is_of_lab(pid: int, layout: LabDirectories, hosts: set[tuple[int, int]]) -> bool:
    with contextlib.suppress(OSError):
        seen = os.stat(f"/proc/{pid}/root/etc/hosts")  # noqa: PTH116 - follows the process's own mounts
        if (seen.st_dev, seen.st_ino) in hosts:
            return True
    environ = _strings(pid, "environ")
    if _is_stepd(pid, layout):
        return True
    if f"{MARK}={layout.root}" in environ:
        return True
    if f"SLURM_CONF={layout.slurm_conf}" in environ and any(e.startswith("SLURMD_NODENAME=") for e in environ):
        return True
    # slurmctld passes neither its own environment nor SLURM_CONF to its hooks.
    is_hook = any(entry.startswith("SLURM_SCRIPT_CONTEXT=") for entry in environ)
    return is_hook and any(argument.startswith(f"{layout.hooks}/") for argument in _strings(pid, "cmdline"))


def _is_stepd(pid: int, layout: LabDirectories) -> bool:
    """Return whether the process is a slurmstepd of this lab.

    slurmstepd overwrites its environment with its title, so it is recognized by its open log file.
    """
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace") == "slurmstepd\n":
            logs = f"{layout.logs}/"
            return any(str(link.readlink()).startswith(logs) for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def _hosts_files(layout: LabDirectories) -> set[tuple[int, int]]:
    stats = [path.stat() for path in layout.node("any").parent.glob("*/hosts")]
    return {(stat.st_dev, stat.st_ino) for stat in stats}


def _strings(pid: int, name: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return []


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208


def _ancestry() -> Iterator[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        pid = int(stat.rpartition(")")[2].split()[1])


def _identity(user: str) -> tuple[int, int, list[int]]:
    entry = pwd.getpwnam(user)
    return entry.pw_uid, entry.pw_gid, os.getgrouplist(user, entry.pw_gid)
