"""The calling user, as the access lists of partitions name them."""

from __future__ import annotations

import grp
import os
import pwd
from contextlib import suppress

from slurmwrap.placement.partition_choice import PartitionUser


def find_partition_user(account: str, qos: str) -> PartitionUser:
    """Return the calling user with their groups. `account`, `qos`: of the job; "": only Slurm knows which apply."""
    gids = {os.getegid(), *os.getgroups()}
    with suppress(KeyError):
        entry = pwd.getpwuid(os.getuid())
        gids.update(os.getgrouplist(entry.pw_name, entry.pw_gid))
    names = set()
    for gid in gids:
        with suppress(KeyError):
            names.add(grp.getgrgid(gid).gr_name)
    return PartitionUser(groups=frozenset(names), account=account, qos=qos, root=os.getuid() == 0)
