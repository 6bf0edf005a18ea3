"""Set up the protection of the user's files during a trial: overlay, shadow tree, shims, and a copy of the script.

Adapter: the trial's own directory and the probe of the overlay. The user's files are never backed up and restored,
because other jobs of theirs work in the same directories. Instead all writes of a trial go to another place.
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
    move_filled_caches,
)
from slurmwrap.prerun.isolation.overlay import NOT_ENTERED, Overlay, find_overlay_error, plan
from slurmwrap.prerun.isolation.overlay_enter import is_below
from slurmwrap.prerun.isolation.script_writes import FileWrite
from slurmwrap.prerun.static.entry_points import compute_variables_after, list_started_programs
from slurmwrap.prerun.trial.trial_containers import (
    find_container_doubt,
    find_missing_privilege,
    list_container_logs,
    map_inside_path,
    needs_no_overlay,
)
from slurmwrap.prerun.trial.trial_spec import TrialSpec

# Begins the error of a trial that the overlay or the shadow tree, not the job, made fail.
BROKEN = "the protection of the job's files failed"
_SCRATCH = ("/tmp", "/var/tmp", "/dev", "/proc", "/run/user")
_LOG_SUFFIXES = (".log", ".out", ".err")
_MAX_LOGS = 6  # maximum number of log files that are read, the newest first
# Maximum number of files that are examined in the search for logs.
_MAX_FILES = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """The protection of the user's files during one trial."""

    # The trial as it is run; its script may be a copy with other targets of redirections.
    spec: TrialSpec
    overlay: Overlay
    # Directories in which a trial may write, and those in which it may not; the longest matching entry decides.
    free: tuple[str, ...]
    held: tuple[str, ...]
    touched: tuple[FileWrite, ...] = ()  # writes to the user's files that are certain before anything starts
    caches: tuple[Cache, ...] = ()  # what the trial writes to these is kept
    reads_back: bool = False  # the script reads files that its own redirections wrote

    def environment(self) -> dict[str, str]:
        """Return the variables for the guard inside Python and for the shims.

        Without an overlay nothing is rehearsed, because checkpoints and results would be written into the user's files.
        """
        return {
            **({} if self.overlay.roots else {"SLURMWRAP_REHEARSE": ""}),
            "SLURMWRAP_FREE": ":".join(self.free),
            "SLURMWRAP_HELD": ":".join(self.held),
            "PYTHONDONTWRITEBYTECODE": "1",  # the guard does not see writes to __pycache__
            "SLURMWRAP_OVERLAY": ":".join(self.overlay.roots),  # for the shims of container runtimes
            "GIT_OPTIONAL_LOCKS": "0",  # otherwise `git status` updates .git/index
            "CUDA_CACHE_PATH": f"{self.spec.trial_dir}/nv",  # otherwise the driver writes to ~/.nv
        }

    def refusal(self) -> str:
        """Return why the trial cannot start or was stopped; "" if nothing prevents it."""
        return self._describe_touched(self.touched or list_forbidden_writes(self.spec.step_dir))

    def _describe_touched(self, touched: tuple[FileWrite, ...]) -> str:
        if not touched:
            return ""
        hint = script_writes.make_hint(_find_launcher_words(self.spec))
        return f"{script_writes.format_touch_reason(touched)}; try it without these lines: {hint}"

    def after(self, result: TrialResult) -> TrialResult:
        """Return `result`, changed to an error of the supervisor if the protection itself made the trial fail."""
        # A failure proves nothing about the job if a forbidden write stopped the trial, if the overlay could not be set
        # up or causes the printed error, or if a program did not find a file that the trial wrote elsewhere.
        touched = tuple(map(str, list_forbidden_writes(self.spec.step_dir)))
        if touched:
            return replace(result, layer="supervisor", error=self.refusal(), touched=touched)
        if self.overlay.roots and (runtime := needs_no_overlay(self.spec.step_dir)):
            return replace(result, layer="supervisor", error=f"{BROKEN}: {runtime} cannot work in a user namespace")
        if result.layer != "exit" or (result.exit_code == 0 and not result.crashed):
            return result
        if result.exit_code == NOT_ENTERED and self.overlay.roots:
            return replace(result, layer="supervisor", error="the private overlay could not be set up")
        text = "\n".join(log.text for log in result.logs)
        symptom = find_overlay_error(text)
        if symptom and (self.overlay.roots or (Path(self.spec.trial_dir) / "outputs").exists()):
            return replace(result, layer="supervisor", error=f"{BROKEN}: {symptom}")
        if why := self._find_container_doubt(text):
            return replace(result, layer="supervisor", error=why)
        if "CalledProcessError" in text and (Path(self.spec.trial_dir) / "outputs").exists():
            return replace(
                result, layer="supervisor", error="a program that it starts does not find a file that its pre-run wrote"
            )
        if self.reads_back and _list_redirected(self.spec.step_dir):
            return replace(result, layer="supervisor", error="the script reads a file that its pre-run wrote elsewhere")
        return result

    def _find_container_doubt(self, text: str) -> str:
        trial_dir = self.spec.trial_dir
        if self.overlay.roots and (message := find_missing_privilege(trial_dir, text)):
            return f"{BROKEN}: {message[:160]}"
        return find_container_doubt(
            trial_dir,
            self.spec.step_dir,
            text,
            in_overlay=bool(self.overlay.roots),
            wrote_elsewhere=os.path.exists(f"{trial_dir}/outputs"),
        )

    def logs(self) -> tuple[tuple[str, str], ...]:
        """Return (path for the user, actual path) of the newest log files that the script's programs wrote."""
        outputs = Path(self.spec.trial_dir) / "outputs"
        folders = [("/", str(outputs))]
        folders += [(root, self.overlay.upper(root) or "") for root in self.overlay.roots]
        folders += list_container_logs(self.spec.trial_dir)
        redirected = {(path[len(str(outputs)) :], path) for path in _list_redirected(self.spec.step_dir)}
        found = [*redirected, *(pair for root, folder in folders for pair in _list_log_files(root, folder))]
        # The shadow tree has the paths inside containers.
        found = [
            (map_inside_path(self.spec.trial_dir, name) if path.startswith(f"{outputs}/") else name, path)
            for name, path in found
        ]
        newest = sorted(dict.fromkeys(found), key=lambda pair: _get_mtime(pair[1]), reverse=True)
        return tuple(newest[:_MAX_LOGS])

    def list_written_files(self) -> tuple[str, ...]:
        """Return the files that the trial wrote into the overlay, by their paths for the user; at most _MAX_FILES."""
        found: list[str] = []
        for root in self.overlay.roots:
            folder = self.overlay.upper(root) or ""
            for at, _, names in os.walk(folder):
                found += [os.path.join(root, os.path.relpath(os.path.join(at, name), folder)) for name in names]
                if len(found) > _MAX_FILES:
                    return tuple(found[:_MAX_FILES])
        return tuple(found)

    def has_overlay_failed(self, result: TrialResult) -> bool:
        """Return whether the overlay, not the script, made this trial fail, so that it can be tried without an overlay.

        For example EOVERFLOW in a directory of another group, which the probe did not find.
        """
        return bool(self.overlay.roots) and result.layer == "supervisor" and result.error.startswith(BROKEN)

    def remove(self) -> None:
        """Remove everything that only the trial needed. Call this after all its processes have ended."""
        move_filled_caches(self.caches)
        self.overlay.remove()
        for name in ("caches", "outputs", "gone", "nv", "mlruns", "loggers"):
            shutil.rmtree(f"{self.spec.trial_dir}/{name}", ignore_errors=True)
        for line in reversed(_read_lines(f"{self.spec.step_dir}/made")):
            # A directory that is not empty is in use and stays.
            with suppress(OSError, ValueError):
                _remove_empty_directory(*line.split(" ", 2))


def set_up_protection(spec: TrialSpec, environ: Mapping[str, str]) -> Protection:
    """Set up the protection of one trial. `environ`: that of its script.

    Raise OSError if the script or the trial's own files cannot be read or written.
    """
    text = f"#!/bin/bash\n{spec.command}\n" if spec.command else _read(spec.script)
    variables = {**environ, "SLURM_SUBMIT_DIR": environ.get("SLURM_SUBMIT_DIR", spec.chdir)}
    overlay = plan(spec, variables, programs=script_writes.list_programs(text, spec.chdir, spec.args, variables))
    caches = _make_caches(spec, text, variables, overlay)
    overlay = replace(overlay, through=tuple((one.source, one.place) for one in caches))
    free, held = list_places(spec, variables, overlay)
    free = tuple(dict.fromkeys([*free, *(one.place for one in caches)]))
    all_covered = bool(overlay.roots) and not overlay.left_out

    def is_free(path: str) -> bool:
        path = _find_python(variables) if path == file_effects.ENVIRONMENT else path
        return writable_paths.is_free(writable_paths.resolve_directories(path), free, held)

    touched = script_writes.find_touched_files(
        text,
        spec.chdir,
        spec.args,
        variables,
        is_free=is_free,
        exists=os.path.lexists,
        read=_read_text,
        covered=all_covered,
    )
    return Protection(
        spec=spec if all_covered else _redirect_script(spec, text),
        overlay=overlay,
        free=free,
        held=held,
        touched=touched,
        caches=caches,
        reads_back=not all_covered and bool(script_writes.list_files_read_back(text, spec.chdir, spec.args, variables)),
    )


def _make_caches(spec: TrialSpec, text: str, environ: Mapping[str, str], overlay: Overlay) -> tuple[Cache, ...]:
    """Return the caches that the trial fills. A missing cache needs the overlay, in which its directory is created."""
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
    """Return (free, held): absolute paths with links resolved. The working directory is held even if below /tmp."""
    scratch = [environ.get(name, "") for name in ("TMPDIR", "SLURM_TMPDIR")]
    own = [spec.chdir, environ.get("SLURM_SUBMIT_DIR", ""), environ.get("HOME", "")]
    held = [os.path.realpath(p) for p in own if p.startswith("/") and not overlay.covers(os.path.realpath(p))]
    # TMPDIR=/ or TMPDIR=$HOME must not make these directories free.
    wide = {"/", *held}
    free = [os.path.realpath(p) for p in (*scratch, *_SCRATCH, spec.trial_dir) if p.startswith("/")]
    kept = [p for p in (*free, *overlay.roots) if p not in wide and ":" not in p]
    return tuple(dict.fromkeys(kept)), tuple(dict.fromkeys(p for p in held if p != "/"))


def list_forbidden_writes(step_dir: str) -> tuple[FileWrite, ...]:
    """Return the writes to the user's files that the shims and the guard refused."""
    found = []
    for line in _read_lines(f"{step_dir}/touched"):
        command, _, path = line.partition("\t")
        found.append(FileWrite(path="" if "?" in path[:1] else path, line=0, command=command))
    return tuple(dict.fromkeys(found))


def has_forbidden_write(step_dir: str) -> bool:
    """Return whether the shims or the guard refused a write to the user's files."""
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
    """Remove an empty directory of the trial. Restore the parent's mtime if no other process has changed it since."""
    parent = os.path.dirname(folder)
    untouched = os.stat(parent).st_mtime_ns == int(after)
    os.rmdir(folder)
    if untouched:
        os.utime(parent, ns=(os.stat(parent).st_atime_ns, int(before)))


def _find_launcher_words(spec: TrialSpec) -> tuple[str, ...]:
    """Return the words of the script's launcher line, for the hint; () if there is none."""
    with suppress(OSError):
        commands = list_started_programs(_read(spec.script), spec.chdir, spec.args, {})
        return next((one.entry.whole for one in commands if one.entry is not None and one.entry.kind != "shell"), ())
    return ()


def _find_python(environ: Mapping[str, str]) -> str:
    return environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX") or environ.get("HOME", "/")


def _read(path: str) -> str:
    # newline="" keeps \r, which matters to bash.
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as stream:
        return stream.read()


def _read_text(path: str) -> str | None:
    """Return the text of a shell script that the script starts; None if it is not a readable file below 1 MiB."""
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


def _list_log_files(root: str, folder: str) -> list[tuple[str, str]]:
    found, seen = [], 0
    for at, _, names in os.walk(folder):
        seen += len(names)
        if seen > _MAX_FILES:
            break
        for name in names:
            path = os.path.join(at, name)
            if name.endswith(_LOG_SUFFIXES) and os.path.isfile(path) and not os.path.islink(path):
                found.append((os.path.normpath("/" + (root + path[len(folder) :]).lstrip("/")), path))
    return found


def _get_mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
