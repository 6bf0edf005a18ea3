"""Whether what an earlier failure blamed is still as it was: only then does the same script fail the same way again.

Everything that may have fixed the failure counts as a change, and doubt counts as a change: a job that is refused
wrongly costs its user more than one that fails a third time. Pure; the caller hands in what looks at files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.past_failure import PastFailure

# A node, a driver or a neighbor may be the cause: another run may end well.
_MAY_BE_THE_NODE = frozenset(("core_dump", "invalid_memory_access", "cuda_failure"))
_OF_THE_ENVIRONMENT = frozenset(("import_error", "cannot_load_libs", "cuda_version_mismatch"))
_MISSING = re.compile(r"No such file|does not exist|FileNotFoundError|not found|cannot find", re.IGNORECASE)
_NO_COMMAND = re.compile(r"command not found|execve\(\)|: not found", re.IGNORECASE)
_QUOTED = re.compile(r"""['"]([^'"\n]{1,500})['"]""")
_ABSOLUTE = re.compile(r"(?<![\w/])/[\w.@%+=~-]+(?:/[\w.@%+=~-]+)*")
# What chooses the job's packages where no mark of the caller's environment shows it.
_ELSEWHERE = re.compile(
    r"(?m)^[^#\n]*\b(?:module|ml|conda|mamba|micromamba|spack|guix|apptainer|singularity|podman|docker|enroot|pixi|uv)\b"
)
_PREFIX = re.compile(r"([\w/.~${}-]+)/bin/(?:activate|python[\w.]*)\b")
_WRITTEN_BY_JOBS = (".out", ".err", ".log")
_FILES = 500  # of one directory
_SECOND = 1.0  # Slurm's times are whole seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a submission rests on besides its fingerprint, and how to look at it."""

    script: str
    chdir: str
    environ: Mapping[str, str]
    inputs: Sequence[str]  # files that the job names
    code: Sequence[str]  # paths of its programs
    changed_at: Callable[[str], float | None]  # newest of mtime and ctime, Unix seconds; None: it is not there
    files_in: Callable[[str], Iterable[str]]  # names of the files in a directory; () where it cannot be read


def select_unfixed_failures(failures: Sequence[PastFailure], around: Surroundings) -> tuple[PastFailure, ...]:
    """Those of `failures` that nothing changed since could have fixed."""
    return tuple(failure for failure in failures if not _may_be_fixed(failure, around))


def _may_be_fixed(failure: PastFailure, around: Surroundings) -> bool:
    if failure.node or failure.category in _MAY_BE_THE_NODE:
        return True
    texts = [c.text for c in failure.evidence if c.role != "cascade"]
    said = "\n".join([failure.reason, *texts] if failure.prerun else texts)
    blamed = [posixpath.join(around.chdir, path) for path in _find_named_paths(failure.input_path, said)]
    if failure.category == "permission_error":
        if not blamed:
            return True  # a token or a licence: it cannot be looked at
        blamed += [posixpath.dirname(path) for path in blamed]
    missing = bool(_MISSING.search(said))
    if any(_has_appeared(path, missing, around) or _has_changed(path, failure.at, around) for path in blamed):
        return True
    needs_packages = failure.category in _OF_THE_ENVIRONMENT or bool(_NO_COMMAND.search(said))
    if needs_packages and _may_packages_have_changed(failure.at, around):
        return True
    return any(_has_changed(path, failure.at, around) for path in (*around.inputs, *_list_neighbouring_files(around)))


def _find_named_paths(first: str, said: str) -> Iterator[str]:
    """What the failure names and may be a file; a word too many only makes a refusal rarer."""
    if first:
        yield first
    yield from _ABSOLUTE.findall(said)
    yield from (text for text in _QUOTED.findall(said) if "\0" not in text and ("/" in text or "." in text))


def _has_appeared(path: str, missing: bool, around: Surroundings) -> bool:
    """A script or a program of the job's own is named in every message: that it is there says nothing."""
    return missing and path not in around.code and _is_specific(path, around) and around.changed_at(path) is not None


def _is_specific(path: str, around: Surroundings) -> bool:
    """No directory that the message only mentions on its way to the file, and no program of the system."""
    if around.chdir == path or around.chdir.startswith(path.rstrip("/") + "/"):
        return False
    return not path.startswith(("/usr/", "/bin/", "/lib", "/opt/", "/var/spool/", "/proc/", "/dev/"))


def _has_changed(path: str, since: float, around: Surroundings) -> bool:
    at = around.changed_at(path)
    return at is not None and at > since + _SECOND


def _may_packages_have_changed(since: float, around: Surroundings) -> bool:
    """True when it is not known which packages the job has, or where they are kept was written to."""
    if _ELSEWHERE.search(around.script):
        return True
    home = around.environ.get("HOME", "")
    prefixes = [around.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    for found in _PREFIX.findall(around.script):
        expanded = re.sub(r"^~(?=/)|\$\{?HOME\}?", lambda _: home, found)
        if "$" in expanded:
            return True
        prefixes.append(posixpath.join(around.chdir, expanded))
    path = [folder for folder in around.environ.get("PATH", "").split(":") if folder.startswith("/")]
    prefixes += [posixpath.dirname(folder) for folder in path if posixpath.basename(folder) == "bin"]
    libraries = [folder for folder in around.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    places = [*path, *libraries, *_list_package_folders([*prefixes, f"{home}/.local"], around)]
    return any(_has_changed(place, since, around) for place in dict.fromkeys(places))


def _list_package_folders(prefixes: Sequence[str], around: Surroundings) -> Iterator[str]:
    for prefix in dict.fromkeys(one for one in prefixes if one):
        for name in around.files_in(f"{prefix}/lib"):
            if name.startswith("python3"):
                yield f"{prefix}/lib/{name}/site-packages"
                yield f"{prefix}/lib/{name}/dist-packages"


def _list_neighbouring_files(around: Surroundings) -> Iterator[str]:
    """Files where the job runs and next to its programs: settings and data that the code names itself."""
    for folder in dict.fromkeys([around.chdir, *(posixpath.dirname(path) for path in around.code if path[:1] == "/")]):
        names = [name for name in around.files_in(folder) if not name.startswith(".")]
        yield from (f"{folder}/{name}" for name in names[:_FILES] if not name.endswith(_WRITTEN_BY_JOBS))
