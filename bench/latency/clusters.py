"""Two clusters for submissions: a lab of 8 nodes with slurmds, and any number of nodes without slurmds."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from synthetic.peers import controller

BIN = Path(sys.executable).parent
_LAB_NODES = 8


@contextmanager
def cluster(nodes: int, place: Path, existing_lab: str = "") -> Iterator[dict[str, str]]:
    """Yield a user's environment for a cluster of this many nodes. Eight: a lab; more: slurmctld alone."""
    if nodes != _LAB_NODES:
        with controller(place, nodes) as environ:
            yield user_environ(environ, place)
        return
    directory = existing_lab or f"{place}/lab"
    lab = [str(BIN / "slurmwrap"), "lab"]
    if not existing_lab:
        up = [*lab, "up", "--dir", directory, "--base-port", "23800", "--no-reconcile"]
        subprocess.run(up, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield user_environ({**os.environ, **_of_lab(lab, directory)}, place)
    finally:
        if not existing_lab:
            subprocess.run([*lab, "down", "--dir", directory], check=True, stdout=subprocess.DEVNULL)


def _of_lab(lab: list[str], directory: str) -> dict[str, str]:
    shown = subprocess.run([*lab, "env", "--dir", directory], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^export (SLURM_CONF|SLURMWRAP_CONFIG)=(.*)$", shown, re.MULTILINE)
    return {name: shlex.split(value)[0] for name, value in found}


def user_environ(environ: dict[str, str], place: Path) -> dict[str, str]:
    """With a home and a past of its own, and with all modules compiled, as an installer leaves them (and as they are
    for the peers, which were installed)."""
    kept = {name: value for name, value in environ.items() if not name.startswith(("PYTHON", "SLURMWRAP_STAGES"))}
    runtime = place / "run"
    runtime.mkdir(mode=0o700)
    return {
        **kept,
        "PATH": f"{BIN}:{environ['PATH']}",
        "HOME": str(place),
        "XDG_STATE_HOME": str(place / "state"),
        "XDG_RUNTIME_DIR": str(runtime),
        "PYTHONPYCACHEPREFIX": str(place / "compiled"),
    }
