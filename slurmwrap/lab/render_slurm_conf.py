"""Turns a LabSpec into the text of slurm.conf, gres.conf, cgroup.conf, topology.conf and config.toml. Pure.

One slurm.conf serves 22.05, 24.11 and 26.05. Only cgroup.conf differs: from 23.02 on slurmd refuses to start where no
cgroup can be used unless CgroupPlugin=disabled says so; 22.05 does not know that value, there the file is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurmwrap.config.load_config import RULES
from slurmwrap.errors import LabError
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_spec import LabSpec
from slurmwrap.package_files import make_template_environment

CGROUP_DISABLED_SINCE = (23, 2)
OLDEST_RELEASE = (22, 5)
PRERUN_PARTITION = "prerun"
DATABASE = "slurm_acct_db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What this machine gives the lab. Each `no_*` says why something is missing; empty: it is there."""

    release: tuple[int, int]  # of Slurm: (22, 5)
    root: bool
    no_namespaces: str = ""  # own mount and UTS namespace per node
    no_cgroups: str = ""  # memory and device limits by cgroup v1
    no_devices: str = ""  # character devices as GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class HookPaths:
    """What slurm.conf names; None where there are no hooks."""

    prolog: str
    epilog: str
    epilog_slurmctld: str


def parse_release(version: str) -> tuple[int, int]:
    """(22, 5) from `slurmctld -V`: "slurm-wlm 22.05.8", "slurm 24.11.5". LabError for anything else or too old."""
    match = re.search(r"\b(\d{2})\.(\d{2})\b", version)
    if match is None:
        raise LabError(f"cannot read Slurm's release from '{version.strip()}'")
    release = int(match[1]), int(match[2])
    if release < OLDEST_RELEASE:
        raise LabError(f"Slurm {match[0]} is too old", hint="the lab needs Slurm 22.05 or newer")
    return release


def render(spec: LabSpec, layout: LabDirectories, means: Means, hooks: HookPaths | None) -> dict[str, str]:
    """File name below D/etc -> text."""
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
    """What is enforced and how, or why not: memory, devices, cores."""
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
        "first_to_last": _bracketed(spec.nodes),
        "gpu_files": _bracketed(spec.gpus),
        "def_mem_per_cpu": max(1, spec.mem_mib // spec.cpus),
        "prerun_partition": PRERUN_PARTITION,
        "database": DATABASE,
        "rules": RULES,
        # On a small lab the shipped cap of a tenth would round down to no node at all.
        "exclude_cap": max(0.1, round(1.0 / spec.nodes + 0.125, 3)) if spec.nodes > 1 else 0.1,
    }


def _bracketed(count: int) -> str:
    return f"[0-{count - 1}]" if count > 1 else "0"
