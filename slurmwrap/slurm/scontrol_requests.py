"""What `scontrol -o` is asked for a snapshot, on its standard input. Pure.

Apart from snapshot.py, which reads the answers: gsub asks first, and loads that while it waits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass

# From here on a topology.yaml may hold several, and a partition name its own.
SEVERAL_TOPOLOGIES = (25, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryUser:
    """Whose limits are asked after."""

    user: str
    uid: int


def make_assoc_mgr_request(user: str) -> str:
    """What scontrol gets on its standard input; "" for a name that it would read as more than one word."""
    return f"show assoc_mgr users={user} flags=assoc,qos" if re.fullmatch(r"[\w.@\\+-]+", user) else ""


def make_scontrol_requests(config: Mapping[str, str] | None, asker: QueryUser) -> bytes:
    """What the second command is asked. `config`: as far as it is known already, then it is not asked for again.

    Reservations go last: their comments may hold line breaks.
    """
    lines = ["show topology", "show partition"]
    if _has_several_topologies(config):
        lines.append("show topoconf")
    if _may_keep_limits(config):
        lines += filter(None, [make_assoc_mgr_request(asker.user)])
    if config is None:
        lines.append("show config")
    return "".join(f"{line}\n" for line in (*lines, "show reservation")).encode()


def _has_several_topologies(config: Mapping[str, str] | None) -> bool:
    """They may be; so too where nothing is known yet."""
    if config is None:
        return True
    from slurmwrap.slurm.scontrol_parser import release_of

    return (release_of(config) or SEVERAL_TOPOLOGIES) >= SEVERAL_TOPOLOGIES


def _may_keep_limits(config: Mapping[str, str] | None) -> bool:
    """It may; so too where nothing is known yet."""
    if config is None:
        return True
    from slurmwrap.slurm.assoc_mgr_parser import enforced

    return enforced(config)
