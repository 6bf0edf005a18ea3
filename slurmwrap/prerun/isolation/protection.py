"""What keeps the user's files as they are during a trial, put together: overlay, shadow tree, shims, script copy.

Edge: the trial's own directory, the overlay's probe. Nothing of the user's is saved aside or put back, since other
jobs of their work in the same directories: what a trial writes lands somewhere else in the first place.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.prerun.isolation import file_effects, script_writes, writable_paths
from slurmwrap.prerun.isolation.download_caches import (
    Cache,
    drop_cleaned_caches,
    find_caches,
    make_sources,
    put_in_place,
)
from slurmwrap.prerun.isolation.overlay import NOT_ENTERED, Overlay, find_overlay_breakage, plan
from slurmwrap.prerun.isolation.overlay_enter import is_below
from slurmwrap.prerun.isolation.script_writes import FileWrite
from slurmwrap.prerun.static.entry_points import compute_variables_after, list_started_programs
from slurmwrap.prerun.trial.trial_spec import TrialSpec

BROKEN = "what keeps the job's files as they are failed"
_SCRATCH = ("/tmp", "/var/tmp", "/dev", "/proc", "/run/user")
_LOGS = (".log", ".out", ".err")
_LOGS_READ = 6  # the newest
# Files of what the trial wrote, in search of logs.
_LOOKED_AT = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """How one trial is kept from the user's files."""

    # As it is run: its script may be a copy whose redirections go elsewhere.
    spec: TrialSpec
    overlay: Overlay
    # Directories in which a trial may write; the longer one of both lists decides.
    free: tuple[str, ...]
    held: tuple[str, ...]
    touched: tuple[FileWrite, ...] = ()  # what would be touched all the same, known before anything starts
    caches: tuple[Cache, ...] = ()  # what the trial writes to these stays
    reads_back: bool = False  # the script reads what its own redirections wrote

    def environment(self) -> dict[str, str]:
        """For the guard inside Python and for the shims."""
        return {
            "SLURMWRAP_FREE": ":".join(self.free),
            "SLURMWRAP_HELD": ":".join(self.held),
            "PYTHONDONTWRITEBYTECODE": "1",  # __pycache__ is written behind the guard's back
            "GIT_OPTIONAL_LOCKS": "0",  # `git status` refreshes .git/index
            "CUDA_CACHE_PATH": f"{self.spec.trial_dir}/nv",  # the driver writes ~/.nv
        }

    def refusal(self) -> str:
        """Why the trial cannot be run, or could not go on; "" when it can."""
        return self._describe_touched(self.touched or list_met_writes(self.spec.step_dir))

    def _describe_touched(self, touched: tuple[FileWrite, ...]) -> str:
        if not touched:
            return ""
        hint = script_writes.make_hint(_launch(self.spec))
        return f"{script_writes.format_touch_reason(touched)}; try it without these lines: {hint}"

    def after(self, result: TrialResult) -> TrialResult:
        """`result` with what the protection itself did to it taken into account."""
        touched = tuple(map(str, list_met_writes(self.spec.step_dir)))
        if touched:
            return replace(result, layer="supervisor", error=self.refusal(), touched=touched)
        if result.layer != "exit" or (result.exit_code == 0 and not result.crashed):
            return result
        if result.exit_code == NOT_ENTERED and self.overlay.roots:
            return replace(result, layer="supervisor", error="the private overlay could not be set up")
        text = "\n".join(log.text for log in result.logs)
        symptom = find_overlay_breakage(text)
        if symptom and (self.overlay.roots or (Path(self.spec.trial_dir) / "outputs").exists()):
            return replace(result, layer="supervisor", error=f"{BROKEN}: {symptom}")
        if "CalledProcessError" in text and (Path(self.spec.trial_dir) / "outputs").exists():
            return replace(result, layer="supervisor", error="a program it starts does not see what its trial wrote")
        if self.reads_back and _list_redirected(self.spec.step_dir):
            return replace(result, layer="supervisor", error="the script reads a file that its trial wrote elsewhere")
        return result

    def logs(self) -> tuple[tuple[str, str], ...]:
        """(name as the user knows it, where it lies) of files that the script's programs wrote their output to."""
        outputs = Path(self.spec.trial_dir) / "outputs"
        folders = [("/", str(outputs))]
        folders += [(root, self.overlay.upper(root) or "") for root in self.overlay.roots]
        redirected = {(path[len(str(outputs)) :], path) for path in _list_redirected(self.spec.step_dir)}
        found = [*redirected, *(pair for root, folder in folders for pair in _log_files(root, folder))]
        newest = sorted(dict.fromkeys(found), key=lambda pair: _get_mtime(pair[1]), reverse=True)
        return tuple(newest[:_LOGS_READ])

    def gave_way(self, result: TrialResult) -> bool:
        """The overlay, not the script, ended this trial: it can be tried again without (EOVERFLOW in a directory of
        another group, found too late)."""
        return bool(self.overlay.roots) and result.layer == "supervisor" and result.error.startswith(BROKEN)

    def remove(self) -> None:
        """Takes everything away that only the trial needed, once none of its processes is left."""
        put_in_place(self.caches)
        self.overlay.remove()
        for name in ("caches", "outputs", "gone", "nv", "mlruns"):
            shutil.rmtree(f"{self.spec.trial_dir}/{name}", ignore_errors=True)
        for line in reversed(_read_lines(f"{self.spec.step_dir}/made")):
            # Not empty: someone uses it.
            with suppress(OSError, ValueError):
                _remove_empty_directory(*line.split(" ", 2))


def set_up_protection(spec: TrialSpec, environ: Mapping[str, str]) -> Protection:
    """Sets up the protection of one trial; `environ` is the one its script gets. Raises OSError (script, own files)."""
    text = f"#!/bin/bash\n{spec.command}\n" if spec.command else _read(spec.script)
    told = {**environ, "SLURM_SUBMIT_DIR": environ.get("SLURM_SUBMIT_DIR", spec.chdir)}
    overlay = plan(spec, told, programs=script_writes.list_programs(text, spec.chdir, spec.args, told))
    caches = _make_caches(spec, text, told, overlay)
    overlay = replace(overlay, through=tuple((one.source, one.place) for one in caches))
    free, held = list_places(spec, told, overlay)
    free = tuple(dict.fromkeys([*free, *(one.place for one in caches)]))
    whole = bool(overlay.roots) and not overlay.left_out

    def is_free(path: str) -> bool:
        path = _find_python(told) if path == file_effects.ENVIRONMENT else path
        return writable_paths.is_free(writable_paths.resolve_directories(path), free, held)

    touched = script_writes.find_touched_files(
        text,
        spec.chdir,
        spec.args,
        told,
        is_free=is_free,
        exists=os.path.lexists,
        read=_read_text,
        covered=whole,
    )
    return Protection(
        spec=spec if whole else _redirect_script(spec, text),
        overlay=overlay,
        free=free,
        held=held,
        touched=touched,
        caches=caches,
        reads_back=not whole and bool(script_writes.list_files_read_back(text, spec.chdir, spec.args, told)),
    )


def _make_caches(spec: TrialSpec, text: str, environ: Mapping[str, str], overlay: Overlay) -> tuple[Cache, ...]:
    """Those that the trial fills. One that is not there yet needs the overlay, in which its directory can be made."""
    if not spec.caches:
        return ()
    with suppress(OSError, ValueError):
        known = compute_variables_after(text, spec.chdir, spec.args, {**environ, **spec.environment})
        own = [spec.chdir, environ.get("SLURM_SUBMIT_DIR", ""), environ.get("VIRTUAL_ENV", ""), spec.trial_dir]
        found = find_caches(spec.caches, {**environ, **known}, kept_from=own, folder=os.path.realpath(spec.trial_dir))
        kept = [one for one in found if one.is_there or any(is_below(one.place, root) for root in overlay.roots)]
        caches = drop_cleaned_caches(kept, text, spec.chdir, spec.args, environ)
        make_sources(caches)
        return caches
    return ()


def list_places(
    spec: TrialSpec, environ: Mapping[str, str], overlay: Overlay
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(free, held): absolute, links resolved. A job that runs below /tmp has its directory held all the same."""
    scratch = [environ.get(name, "") for name in ("TMPDIR", "SLURM_TMPDIR")]
    own = [spec.chdir, environ.get("SLURM_SUBMIT_DIR", ""), environ.get("HOME", "")]
    held = [os.path.realpath(p) for p in own if p.startswith("/") and not overlay.covers(os.path.realpath(p))]
    # TMPDIR=/ or TMPDIR=$HOME frees nothing.
    wide = {"/", *held}
    free = [os.path.realpath(p) for p in (*scratch, *_SCRATCH, spec.trial_dir) if p.startswith("/")]
    kept = [p for p in (*free, *overlay.roots) if p not in wide and ":" not in p]
    return tuple(dict.fromkeys(kept)), tuple(dict.fromkeys(p for p in held if p != "/"))


def list_met_writes(step_dir: str) -> tuple[FileWrite, ...]:
    """What the shims and the guard were asked to do to the user's files, and did not."""
    found = []
    for line in _read_lines(f"{step_dir}/touched"):
        command, _, path = line.partition("\t")
        found.append(FileWrite(path="" if "?" in path[:1] else path, line=0, command=command))
    return tuple(dict.fromkeys(found))


def is_met(step_dir: str) -> bool:
    """True when `met` has something; one look."""
    return os.path.exists(f"{step_dir}/touched")


def _redirect_script(spec: TrialSpec, text: str) -> TrialSpec:
    redirect = f"{spec.trial_dir}/shims/redirect"
    led = script_writes.redirect_script(text, redirect)
    if led == text:
        return spec
    if spec.command:
        return replace(spec, command=led.partition("\n")[2].rstrip("\n"))
    folder = Path(spec.trial_dir) / "redirected"
    folder.mkdir(mode=0o700, exist_ok=True)
    copy = folder / Path(spec.script).name
    copy.write_bytes(led.encode("utf-8", "surrogateescape"))
    copy.chmod(0o700)
    return replace(spec, script=str(copy))


def _remove_empty_directory(before: str, after: str, folder: str) -> None:
    """Removes an empty directory of the trial; the one above gets its time back if no one else changed it since."""
    parent = os.path.dirname(folder)
    untouched = os.stat(parent).st_mtime_ns == int(after)
    os.rmdir(folder)
    if untouched:
        os.utime(parent, ns=(os.stat(parent).st_atime_ns, int(before)))


def _launch(spec: TrialSpec) -> tuple[str, ...]:
    """The words of the script's launcher line, for the hint."""
    with suppress(OSError):
        commands = list_started_programs(_read(spec.script), spec.chdir, spec.args, {})
        return next((one.entry.whole for one in commands if one.entry is not None and one.entry.kind != "shell"), ())
    return ()


def _find_python(environ: Mapping[str, str]) -> str:
    return environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX") or environ.get("HOME", "/")


def _read(path: str) -> str:
    # \r stays: bash minds it
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as stream:
        return stream.read()


def _read_text(path: str) -> str | None:
    """A shell script that the script starts."""
    with suppress(OSError):
        if stat.S_ISREG(os.stat(path).st_mode) and os.path.getsize(path) < 1 << 20:
            return _read(path)
    return None


def _read_lines(path: str) -> list[str]:
    try:
        return _read(path).splitlines()
    except OSError:
        return []


def _list_redirected(step_dir: str) -> list[str]:
    return list(dict.fromkeys(_read_lines(f"{step_dir}/redirected")))


def _log_files(root: str, folder: str) -> list[tuple[str, str]]:
    found, seen = [], 0
    for at, _, names in os.walk(folder):
        seen += len(names)
        if seen > _LOOKED_AT:
            break
        for name in names:
            path = os.path.join(at, name)
            if name.endswith(_LOGS) and os.path.isfile(path) and not os.path.islink(path):
                found.append((os.path.normpath("/" + (root + path[len(folder) :]).lstrip("/")), path))
    return found


def _get_mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
