"""Find the download caches that a trial may fill, so that the job need not download the same again (adapter: files).

Only caches are used whose tools name an entry by its content and write it atomically, with a lock against concurrent
writers. So a trial that is killed leaves no incomplete entry that the job would use. An existing cache is bind-mounted
into the overlay. A missing one is filled in the trial's own directory and moved to its place in one step after the
trial, so that a trial that downloads nothing leaves nothing behind.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.isolation.overlay_enter import is_below
from slurmwrap.prerun.static.entry_points import list_started_programs
from slurmwrap.prerun.static.shell_words import UNKNOWN

_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)(/.*)?")
_XDG = "~/.cache/"
# Names of the top-level entries in the caches of huggingface_hub, datasets, torch.hub, triton, inductor, pip and uv,
# and in the directories of HF_HOME and TORCH_HOME.
_CACHE_ENTRY = re.compile(
    r"(?:models|datasets|spaces)--.+|version[\w.]*\.txt|\.locks|tmp\w*|hub|datasets|xet|modules|assets|metrics|evaluate"
    r"|accelerate|token|stored_tokens|downloads|.+\.lock|checkpoints|kernels|sentence_transformers|trusted_list"
    r"|[\w.-]+_[\w.-]+_[\w.-]+|[A-Z2-7]{32,}|[0-9a-f]{2}|[0-9a-f]{40,}|[a-z0-9]{2}|fxgraph|aotautograd|triton|locks"
    r"|\.triton|cache|http(?:-v2)?|wheels|selfcheck|chunk-cache|shard-cache|staging|logs|[\w-]+-v\d+|\.gitignore|\.git"
)
# A directory with one of these entries is a cache, whatever else it contains.
_CACHE_MARKS = ("CACHEDIR.TAG", ".locks", "downloads")
_MAX_ENTRIES = 2000
_REMOVERS = ("rm", "rmdir", "mv", "find", "shred", "unlink", "rsync", "truncate")
_CLEANERS = (("pip", "cache"), ("pip3", "cache"), ("uv", "cache"), ("hf", "cache"), ("huggingface-cli", "delete-cache"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A download cache at `place`. `source` is the directory that the trial fills: `place`, or another if missing."""

    place: str
    source: str

    @property
    def is_there(self) -> bool:
        """Whether the cache existed when the trial began."""
        return self.source == self.place


def find_caches(
    listed: Sequence[str],
    environ: Mapping[str, str],
    *,
    kept_from: Sequence[str],
    folder: str,
) -> tuple[Cache, ...]:
    """Return the caches of `listed` (prerun.caches) that a trial may write to, without duplicates. Creates nothing.

    `environ`: the variables that the program will have. `kept_from`: directories of the user, such as the working
    directory, that must not be a cache or be inside one; the home directory is added. `folder`: the directory below
    which missing caches are filled.
    """
    home = environ.get("HOME", "")
    if not home.startswith("/"):
        return ()
    guarded = tuple(os.path.realpath(one) for one in (home, *kept_from) if one.startswith("/"))
    found: dict[str, Cache] = {}
    for line in listed:
        place, base = _find_cache_place(line, environ)
        if place and (cache := _check_cache(place, base, home, guarded, folder, len(found))):
            found.setdefault(cache.place, cache)
    outermost = [one for one in found if not any(one != other and is_below(one, other) for other in found)]
    return tuple(found[one] for one in outermost)


def drop_cleaned_caches(
    caches: Sequence[Cache], script: str, chdir: str, args: Sequence[str], environ: Mapping[str, str]
) -> tuple[Cache, ...]:
    """Return the caches that no command of the script removes or empties, because a trial must not do that."""
    left = tuple(caches)
    for one in list_started_programs(script, chdir, args, environ) if left else ():
        name, *words = one.words or ("",)
        name = os.path.basename(name)
        if (name, *words[:1]) in _CLEANERS or (words[1:3] in (["pip", "cache"], ["uv", "cache"])):
            return ()
        if name in _REMOVERS:
            if any(UNKNOWN in word for word in words):
                return ()
            named = [os.path.realpath(os.path.join(one.cwd or chdir, os.path.expanduser(word))) for word in words]
            left = tuple(c for c in left if not any(is_below(n, c.place) or is_below(c.place, n) for n in named))
    return left


def make_sources(caches: Sequence[Cache]) -> None:
    """Create the directories in which missing caches are filled. Raise OSError if that fails."""
    for cache in caches:
        if not cache.is_there:
            os.makedirs(cache.source, exist_ok=True)


def move_filled_caches(caches: Sequence[Cache]) -> None:
    """Move the caches that were missing and have been filled by the trial to their places. Never raises."""
    for cache in caches:
        if cache.is_there:
            continue
        with suppress(OSError):
            if os.listdir(cache.source):
                os.makedirs(os.path.dirname(cache.place), exist_ok=True)
                _move_entry(cache.source, cache.place)


def _move_entry(source: str, place: str) -> None:
    """Move the cache in one step. If another process has created it meanwhile, move only the entries that it lacks."""
    with suppress(OSError):
        os.rename(source, place)
        return
    for name in os.listdir(source):
        if not os.path.lexists(f"{place}/{name}"):
            with suppress(OSError):
                os.rename(f"{source}/{name}", f"{place}/{name}")


def _find_cache_place(line: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return (path of the cache, directory that a variable names for it), by the first usable word of the line.

    The directory is "" if the cache is at its default place in the home directory.
    """
    home = environ["HOME"]
    for word in line.split(":"):
        if word.startswith("~/"):
            moved = environ.get("XDG_CACHE_HOME", "") if word.startswith(_XDG) else ""
            return (f"{moved}/{word[len(_XDG) :]}", moved) if moved.startswith("/") else (f"{home}/{word[2:]}", "")
        if word.startswith("/"):
            return word, ""
        if (named := _VARIABLE.fullmatch(word)) and environ.get(named[1]):
            base = environ[named[1]]
            base = f"{home}/{base[2:]}" if base.startswith("~/") else base
            return (base + (named[2] or ""), base) if base.startswith("/") and UNKNOWN not in base else ("", "")
    return "", ""


def _check_cache(place: str, base: str, home: str, guarded: Sequence[str], folder: str, number: int) -> Cache | None:
    """Return the cache; None if writing there could change anything of the user other than a cache.

    The place must not contain a guarded directory. If a variable or a link names the place, the directory must also
    look like a cache, because it may be any directory of the user.
    """
    real = os.path.realpath(place)
    if set(":,\\\n") & set(real) or any(is_below(one, real) for one in guarded):
        return None
    linked = real != os.path.normpath(place) and real != os.path.realpath(home) + place[len(home) :]
    if base and any(is_below(one, os.path.realpath(base)) for one in guarded):
        # For example HF_HOME=$PWD: the files next to the cache belong to the user.
        return None
    if (base and not _is_cache_folder(base)) or ((base or linked) and not _is_cache_folder(real)):
        return None
    if os.path.isdir(real):
        return Cache(place=real, source=real) if _is_own(real) else None
    parent = real
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent) or not _is_own(parent) or os.stat(parent).st_dev != os.stat(folder).st_dev:
        return None
    return Cache(place=real, source=f"{folder}/caches/{number}")


def _is_own(folder: str) -> bool:
    found = os.stat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and os.access(folder, os.W_OK | os.X_OK)


def _is_cache_folder(folder: str) -> bool:
    """Return whether the directory contains only entries of a cache, or is empty or missing."""
    try:
        names = os.listdir(folder)[:_MAX_ENTRIES]
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return any(mark in names for mark in _CACHE_MARKS) or all(_CACHE_ENTRY.fullmatch(name) for name in names)
