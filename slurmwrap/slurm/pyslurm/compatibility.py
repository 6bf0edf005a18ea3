"""Find out whether PySlurm can be used here, without importing it into this process.

PySlurm X.Y works with Slurm X.Y only: its classes map libslurm's structures, and a mismatch causes no ImportError but
wrong numbers or a crash (the library's file name does not change with its release).
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
# Further releases that adapter = "auto" accepts if the probe finds that PySlurm reads the partitions as scontrol does.
PROBED = frozenset({(25, 5), (25, 11)})
# Time-out in seconds. The probe takes 0.1 s; without slurm.conf libslurm would retry for 60 s and end the process.
_PROBE_S = 5.0


def find_installed_version() -> str:
    """Return the version of PySlurm in this Python; "" if it is not installed."""
    try:
        return metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        return ""


def read_commands_release(environ: Mapping[str, str]) -> str:
    """Return the release that sinfo reports, "22.05.8"; "" if unknown. It needs a slurm.conf but no controller."""
    if not has_readable_conf(environ):
        # Without slurm.conf sinfo would retry for 60 s.
        return ""
    output = run(["sinfo", "--version"], timeout_s=_PROBE_S, environ=environ).stdout.decode("utf-8", "replace")
    return output.split()[-1] if output.split() else ""


def find_misfit(environ: Mapping[str, str], *, proven_only: bool) -> str:
    """Return why PySlurm cannot be started here; "" if it may be tried."""
    pyslurm_version = find_installed_version()
    if not pyslurm_version:
        return "PySlurm is not installed"
    if not has_readable_conf(environ):
        return "there is no slurm.conf that can be read: libslurm would end the process"
    slurm_version = read_commands_release(environ)
    if parse_release(slurm_version) is None:
        return "Slurm's commands do not report their release"
    if parse_release(pyslurm_version) != parse_release(slurm_version):
        return f"PySlurm {pyslurm_version} is not for Slurm {slurm_version}"
    if proven_only and parse_release(pyslurm_version) not in PROVEN | PROBED:
        return f'not tried with Slurm {slurm_version} (slurm.adapter = "pyslurm" uses it all the same)'
    return ""


def has_readable_conf(environ: Mapping[str, str]) -> bool:
    """Return whether there is a readable slurm.conf where Slurm's builds look for it."""
    configured = environ.get("SLURM_CONF")
    return any(
        os.access(path, os.R_OK) and Path(path).is_file() for path in ([configured] if configured else CONF_PLACES)
    )


def probe(link: Link) -> str:
    """Import PySlurm in the child. Return "" if that worked and PySlurm was built for the release that it names."""
    try:
        releases = link.ask("releases", timeout_s=_PROBE_S)
    except (UnsupportedPyslurm, SlurmRefused, WorkerTimeout) as error:
        link.broken = link.broken or str(error)
        return str(error)
    if tuple(releases["slurm"][:2]) != parse_release(releases["pyslurm"]):
        return f"PySlurm {releases['pyslurm']} was built for Slurm {'.'.join(map(str, releases['slurm']))}"
    return ""
