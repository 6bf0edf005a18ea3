"""Turn this process into a lab's node and exec `argv`: python -I node_launcher.py NAME HOSTS GROUP... -- ARGV...

This file runs by itself, with the standard library only. In this order it joins the lab's cgroups (GROUP is
`MOUNTPOINT=DIRECTORY`), enters new mount, UTS and cgroup namespaces, bind-mounts HOSTS over /etc/hosts and each
DIRECTORY over its MOUNTPOINT, and sets the host name NAME. All of this applies only to this process and its children
(namespaces(7)), and disappears when the last of them ends.
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
    """Set up namespaces, mounts and host name. Raise OSError with the call that was refused."""
    for _, directory in groups:
        Path(directory, "cgroup.procs").write_text("0", encoding="ascii")
    _call("unshare", CLONE_NEWNS | CLONE_NEWUTS | (CLONE_NEWCGROUP if groups else 0))
    # Mounts made here do not propagate to the machine, but unmounts of the machine propagate to here.
    _mount(None, "/", MS_REC | MS_SLAVE)
    _mount(hosts, "/etc/hosts", MS_BIND)
    for mountpoint, directory in groups:
        # Slurm's v1 plugin always uses slurm_NODENAME at the root of each controller, so that two labs would share the
        # cgroups of their jobs. With its own root, each lab has a separate tree.
        _mount(directory, mountpoint, MS_BIND)
    socket.sethostname(name)


def main(arguments: list[str]) -> None:
    """Set up the node and exec the program; does not return."""
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
