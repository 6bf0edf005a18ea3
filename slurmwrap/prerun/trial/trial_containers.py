"""The containers of a trial: what its shims recorded, their processes, and what must be ended after the trial.

Adapter: files of the trial, /proc, and the runtime's own `rm`. The shims write one line per container, in JSON, to a
file in the trial's directory, which the user's programs can change; it is read as their claim, with their rights.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.static.container_calls import BoundPath, map_to_host

# Mark in the directory of steps: a runtime cannot work in the private overlay. Its content is the runtime's name.
NO_OVERLAY = "no_overlay"
# Begins the message of a shim that does not start a container, because it would run on another machine.
UNREACHABLE = "slurmwrap: this container cannot be tried: "
# Mark of inside/enter: the user's command was started inside a container.
ENTERED = "entered"
_RECORDS = "containers"
# Runtimes in whose containers /bin/sh starts the user's command (shims/enter).
_WITH_SHELL = ("apptainer", "bwrap", "ch-run", "shifter", "sarus", "srun")
_MAX_BYTES = 1 << 20
# Seconds that removing one container may take.
_REMOVE_S = 20.0
_CONTAINER_ID = re.compile(r"[0-9a-f]{12,64}")
# What runtimes print if they miss privileges that they have outside of a user namespace (the sources of Apptainer's
# starter, Podman's pkg/rootless and shadow's newuidmap).
_NO_PRIVILEGES = re.compile(
    r"(?i)newuidmap|newgidmap|starter-suid|\bset[ug]id\b|not allowed to create new namespace"
    r"|(?:failed|error|cannot|can't).{0,80}user namespace|fusermount3?: mount failed: Operation not permitted"
)
_MISSING = re.compile(r"No such file or directory|FileNotFoundError|not found|does not exist|Read-only file system")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedContainer:
    """One container that a shim started."""

    kind: str
    program: str = ""
    cidfile: str = ""
    bound: tuple[BoundPath, ...] = ()
    # Directory of the host -> directory that has what the container wrote to it.
    layers: Mapping[str, str]
    # Its processes are not below the trial's, and it does not see the trial's overlay.
    detached: bool = False


def record_container(trial_dir: str, fields: Mapping[str, object]) -> None:
    """Add a line to the trial's list of containers. A line that cannot be written is left out."""
    with suppress(OSError), Path(trial_dir, _RECORDS).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(fields) + "\n")


def list_containers(trial_dir: str) -> tuple[StartedContainer, ...]:
    """Return the containers that the trial's shims started, in order."""
    try:
        with Path(trial_dir, _RECORDS).open("rb") as stream:
            lines = stream.read(_MAX_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(found for line in lines if (found := _parse_record(line)))


def _parse_record(line: str) -> StartedContainer | None:
    try:
        plain: dict[str, Any] = json.loads(line)
        return StartedContainer(
            kind=str(plain["kind"]),
            program=str(plain.get("program", "")),
            cidfile=str(plain.get("cidfile", "")),
            bound=tuple(BoundPath(source=str(s), target=str(t)) for s, t in plain.get("bound", ())),
            layers={str(k): str(v) for k, v in dict(plain.get("layers", {})).items()},
            detached=plain.get("detached") is True,
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def needs_no_overlay(step_dir: str) -> str:
    """Return the runtime that cannot work in the overlay of this trial; "" if there is none."""
    try:
        return Path(step_dir, NO_OVERLAY).read_text(encoding="utf-8", errors="replace").strip()[:40]
    except OSError:
        return ""


def list_detached_pids(trial_dir: str) -> tuple[int, ...]:
    """Return the processes of containers that a daemon started: those whose cgroup has the container's id."""
    ids = {i for one in list_containers(trial_dir) if one.detached and (i := _read_id(one.cidfile))}
    return tuple(_find_pids(ids)) if ids else ()


def _find_pids(ids: set[str]) -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                text = Path("/proc", name, "cgroup").read_text(encoding="ascii", errors="replace")
                if any(one in text for one in ids):
                    yield int(name)


def _read_id(cidfile: str) -> str:
    if not cidfile:
        return ""
    try:
        text = Path(cidfile).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    return text if _CONTAINER_ID.fullmatch(text) else ""


def end_containers(trial_dir: str, environ: Mapping[str, str]) -> None:
    """Remove the containers that the trial left, so that none goes on and none keeps its name."""
    for one in list_containers(trial_dir):
        if one.program and (container := _read_id(one.cidfile)):
            _run([one.program, "rm", "-f", container], environ)


def remove_container_layers(trial_dir: str, environ: Mapping[str, str]) -> None:
    """Remove what containers wrote to the temporary overlays of their volumes."""
    containers = list_containers(trial_dir)
    layers = Path(trial_dir, "layers")
    folder = layers.read_text(encoding="utf-8").strip() if layers.is_file() else ""
    if os.path.basename(folder).startswith("slurmwrap-overlay-"):
        _remove_layers(folder, next((one.program for one in containers if one.layers), ""), environ)
        layers.unlink(missing_ok=True)


def _remove_layers(folder: str, program: str, environ: Mapping[str, str]) -> None:
    """Remove layers. A container's other users own files there, which only `podman unshare` can remove."""
    for at, _, _ in os.walk(folder):
        with suppress(OSError):
            for name in os.listdir(at):
                path = os.path.join(at, name)
                if os.path.isdir(path) and not os.path.islink(path):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
    if program and os.path.exists(folder):
        _run([program, "unshare", "rm", "-rf", folder], environ)


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_REMOVE_S,
            env=dict(environ),
            check=False,
        )


def find_container_doubt(trial_dir: str, step_dir: str, text: str, *, in_overlay: bool, wrote_elsewhere: bool) -> str:
    """Return why a failure in or of a container may be the trial's own doing; "" if nothing indicates it.

    `text`: the trial's output. `in_overlay`: there was a private overlay. `wrote_elsewhere`: what the script wrote
    outside of containers is not where it wrote it.
    """
    containers = list_containers(trial_dir)
    if not containers:
        return ""
    if refused := next((line for line in text.splitlines() if line.startswith(UNREACHABLE)), ""):
        return refused.removeprefix("slurmwrap: ")[:160]
    entered = os.path.exists(f"{step_dir}/{ENTERED}")
    words = (trial_dir, *(("/bin/sh",) if any(one.kind in _WITH_SHELL for one in containers) else ()))
    # A traceback that names the step counter shows that it is there.
    lines = (line.strip() for line in text.splitlines() if f"{trial_dir}/inject/" not in line)
    own = next((line for line in lines if any(word in line for word in words)), "")
    if not entered and own:
        return f"the container could not be started with the step counter in it: {own[:160]}"
    if not _MISSING.search(text):
        return ""
    detached = next((one.kind for one in containers if one.detached), "")
    if detached and (in_overlay or wrote_elsewhere):
        return f"{_NAMES.get(detached, detached)} starts its containers where files that the pre-run wrote are not seen"
    layers = {upper for one in containers for upper in one.layers.values()}
    if any(_has_entries(upper) for upper in layers):
        return "a program may not find a file that a container of its pre-run wrote elsewhere"
    return ""


_NAMES = {"srun": "Slurm"}


def _has_entries(folder: str) -> bool:
    try:
        with os.scandir(folder) as found:
            return next(found, None) is not None
    except OSError:
        return False


def find_missing_privilege(trial_dir: str, text: str) -> str:
    """Return the message of a runtime that missed its privileges in the trial's user namespace; "" if there is none."""
    if not any(not one.detached for one in list_containers(trial_dir)):
        return ""
    return next((line.strip() for line in text.splitlines() if _NO_PRIVILEGES.search(line)), "")


def list_container_logs(trial_dir: str) -> tuple[tuple[str, str], ...]:
    """Return (path on the host as the user knows it, directory with the container's writes to it)."""
    return tuple(dict.fromkeys(pair for one in list_containers(trial_dir) for pair in one.layers.items()))


def map_paths(trial_dir: str, look: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """Return `look` for paths as the programs of the trial print them, also inside containers."""
    return lambda path: look(map_inside_path(trial_dir, path))


def map_inside_path(trial_dir: str, path: str) -> str:
    """Return the host's path of a path inside one of the trial's containers; the path itself if none binds it."""
    for one in list_containers(trial_dir):
        if found := map_to_host(path, one.bound):
            return found
    return path
