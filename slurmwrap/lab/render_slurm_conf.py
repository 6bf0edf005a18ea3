"""Render slurm.conf, gres.conf, cgroup.conf, topology.conf and config.toml of a lab. Pure.

The same slurm.conf works with 22.05, 24.11 and 26.05. Only cgroup.conf differs: since 23.02, slurmd does not start
without a usable cgroup unless CgroupPlugin=disabled is set. 22.05 does not know that value, so the file is omitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurmwrap.config.load_config import RULES
from slurmwrap.errors import LabError
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_spec import QUEUE_RULES, LabSpec
from slurmwrap.package_files import make_template_environment

CGROUP_DISABLED_SINCE = (23, 2)
OLDEST_RELEASE = (22, 5)
PRERUN_PARTITION = "prerun"
DATABASE = "slurm_acct_db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What this machine supports. Each `no_*` is the reason why something is not available; "": it is available."""

    release: tuple[int, int]  # of Slurm: (22, 5)
    root: bool
    no_namespaces: str = ""  # a mount and UTS namespace for each node
    no_cgroups: str = ""  # memory and device limits by cgroup v1
    no_devices: str = ""  # character devices as GPU files


@dataclass(frozen=True, slots=True, kw_only=True)
class HookPaths:
    """Paths of the hooks in slurm.conf."""

    prolog: str
    epilog: str
    epilog_slurmctld: str


def parse_release(version: str) -> tuple[int, int]:
    """Return (22, 5) for the output of `slurmctld -V`, "slurm-wlm 22.05.8" or "slurm 24.11.5".

    Raise LabError for other text and for a release that is too old.
    """
    match = re.search(r"\b(\d{2})\.(\d{2})\b", version)
    if match is None:
        raise LabError(f"cannot read Slurm's release from '{version.strip()}'")
    release = int(match[1]), int(match[2])
    if release < OLDEST_RELEASE:
        raise LabError(f"Slurm {match[0]} is too old", hint="the lab needs Slurm 22.05 or newer")
    return release


def render(spec: LabSpec, layout: LabDirectories, means: Means, hooks: HookPaths | None) -> dict[str, str]:
    """Return file name below D/etc -> text. `hooks`: None without hooks."""
    values = _values(spec, layout, means, hooks)
    names = ["slurm.conf", "gres.conf", "slurmwrap/config.toml"]
    if spec.topology == "tree":
        names.append("topology.conf")
    if not means.no_cgroups or means.release >= CGROUP_DISABLED_SINCE:
        names.append("cgroup.conf")
    if spec.accounting:
        names.append("slurmdbd.conf")
    environment = make_template_environment("lab")
    return {name: environment.get_template(name.rsplit("/", 1)[-1] + ".j2").render(values) for name in names}


def enforcement(means: Means) -> dict[str, str]:
    """Return for memory, devices and cores how they are enforced, or why not."""
    by_cgroup = f"no: {means.no_cgroups}" if means.no_cgroups else "yes: cgroup v1"
    devices = f"no: {means.no_devices}" if means.no_devices and not means.no_cgroups else by_cgroup
    return {"memory": by_cgroup, "devices": devices, "cores": "no: the nodes' CPUs are invented"}


def _values(spec: LabSpec, layout: LabDirectories, means: Means, hooks: HookPaths | None) -> Mapping[str, Any]:
    return {
        "spec": spec,
        "layout": layout,
        "hooks": hooks,
        "release": means.release,
        "cgroups": not means.no_cgroups,
        "devices": not means.no_devices,
        "slurmd_user": "root" if means.root else spec.slurm_user,
        "own_hostname": not means.no_namespaces,
        "nodes": tuple(zip(spec.node_names, spec.node_ports, strict=True)),
        "first_to_last": _format_index_range(spec.nodes),
        "gpu_files": _format_index_range(spec.gpus),
        "def_mem_per_cpu": max(1, spec.mem_mib // spec.cpus),
        "prerun_partition": PRERUN_PARTITION,
        "database": DATABASE,
        "rules": RULES,
        "advised": [rule for rule in QUEUE_RULES if rule not in spec.act],
        # On a small lab the default cap of a tenth would be rounded down to no node.
        "exclude_cap": max(0.1, round(1.0 / spec.nodes + 0.125, 3)) if spec.nodes > 1 else 0.1,
    }


def _format_index_range(count: int) -> str:
    return f"[0-{count - 1}]" if count > 1 else "0"
