"""Whether PySlurm can be used here, found out without importing it into our own process.

PySlurm X.Y works with Slurm X.Y alone: its classes are laid over libslurm's structures, and one that does not fit is
no ImportError but wrong numbers or a crash (the library's name does not change with its release).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from slurmwrap.host.run_command import run
from slurmwrap.slurm.commands import CONF_PLACES
from slurmwrap.slurm.pyslurm.worker_client import Link, SlurmRefused, UnsupportedPyslurm, WorkerTimeout
from slurmwrap.slurm.scontrol_parser import parse_release

# Releases of Slurm on which tests/slurm/test_contract.py has passed.
PROVEN = frozenset({(22, 5), (24, 11)})
# Releases that adapter = "auto" accepts besides, if the probe finds that PySlurm reads the partitions as scontrol does.
PROBED = frozenset({(25, 5), (25, 11)})
# It takes 0.1 s; without slurm.conf libslurm would try for 60 s and then end the process.
_PROBE_S = 5.0


def find_installed_version() -> str:
    """PySlurm's version in this Python; "" where it is not installed."""
    try:
        return metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        return ""


def read_commands_release(environ: Mapping[str, str]) -> str:
    """What sinfo says of itself, "22.05.8"; "" where it cannot. It asks no controller, and yet wants a slurm.conf."""
    if not has_readable_conf(environ):
        # It would try for 60 s.
        return ""
    said = run(["sinfo", "--version"], timeout_s=_PROBE_S, environ=environ).stdout.decode("utf-8", "replace")
    return said.split()[-1] if said.split() else ""


def find_misfit(environ: Mapping[str, str], *, proven_only: bool) -> str:
    """Why PySlurm is not to be started here; "" where it may be tried."""
    ours = find_installed_version()
    if not ours:
        return "PySlurm is not installed"
    if not has_readable_conf(environ):
        return "there is no slurm.conf that can be read: libslurm would end the process"
    slurms = read_commands_release(environ)
    if parse_release(slurms) is None:
        return "Slurm's commands do not tell their release"
    if parse_release(ours) != parse_release(slurms):
        return f"PySlurm {ours} is not for Slurm {slurms}"
    if proven_only and parse_release(ours) not in PROVEN | PROBED:
        return f'not tried with Slurm {slurms} (slurm.adapter = "pyslurm" uses it all the same)'
    return ""


def has_readable_conf(environ: Mapping[str, str]) -> bool:
    """Whether there is a slurm.conf, where Slurm's builds look for it."""
    named = environ.get("SLURM_CONF")
    return any(os.access(place, os.R_OK) and Path(place).is_file() for place in ([named] if named else CONF_PLACES))


def probe(link: Link) -> str:
    """Imports it in the child; "" where that went well and it was built for the release that its name says."""
    try:
        told = link.ask("releases", timeout_s=_PROBE_S)
    except (UnsupportedPyslurm, SlurmRefused, WorkerTimeout) as error:
        link.broken = link.broken or str(error)
        return str(error)
    if tuple(told["slurm"][:2]) != parse_release(told["pyslurm"]):
        return f"PySlurm {told['pyslurm']} was built for Slurm {'.'.join(map(str, told['slurm']))}"
    return ""
