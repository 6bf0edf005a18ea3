"""Makes the calling process a node and becomes `argv`: python -I node_launcher.py NAME HOSTS GROUP... -- ARGV...

Runs as a file of its own, standard library only. In order: joins the lab's cgroups (GROUP is `MOUNTPOINT=DIRECTORY`),
takes its own mount, UTS and cgroup namespace, lays HOSTS over /etc/hosts and each DIRECTORY over its MOUNTPOINT, takes
the host name NAME. All of it is private to this process and what it starts (namespaces(7)); it is gone when the last of
them ends.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from pathlib import Path

# <sched.h>, <sys/mount.h>; the os module has unshare() only from Python 3.12 on and mount() never.
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000


def become_node(name: str, hosts: str, groups: list[tuple[str, str]]) -> None:
    """Namespaces, mounts and host name. OSError says which call was refused."""
    for _, directory in groups:
        Path(directory, "cgroup.procs").write_text("0", encoding="ascii")
    _call("unshare", CLONE_NEWNS | CLONE_NEWUTS | (CLONE_NEWCGROUP if groups else 0))
    # Nothing mounted here travels back to the machine; what the machine unmounts still goes away here.
    _mount(None, "/", MS_REC | MS_SLAVE)
    _mount(hosts, "/etc/hosts", MS_BIND)
    for mountpoint, directory in groups:
        # Slurm's v1 plugin hard-wires slurm_NODENAME at the root of each controller: two labs would share their jobs'
        # groups. Below its own root each lab has a tree of its own.
        _mount(directory, mountpoint, MS_BIND)
    socket.sethostname(name)


def main(arguments: list[str]) -> None:
    """Does not return."""
    cut = arguments.index("--")
    name, hosts, *groups = arguments[:cut]
    become_node(name, hosts, [(pair.split("=", 1)[0], pair.split("=", 1)[1]) for pair in groups])
    argv = arguments[cut + 1 :]
    os.execv(argv[0], argv)


def _mount(source: str | None, target: str, flags: int) -> None:
    _call("mount", None if source is None else os.fsencode(source), os.fsencode(target), None, flags, None)


def _call(function: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


if __name__ == "__main__":
    main(sys.argv[1:])
