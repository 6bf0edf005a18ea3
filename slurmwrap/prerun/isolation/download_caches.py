"""The caches that a trial may fill for the job that follows: what it downloads into them is not downloaded again.

Only caches whose tools name an entry by its content and write it in one step, under a lock where two may meet: a trial
that is killed leaves nothing in them that the job would take for whole. A cache that is there is shown through the
overlay as it is. One that is not there yet is filled in the trial's own directory and put in its place in one step
when the trial has ended, so that a trial which downloads nothing leaves nothing. Edge: looks at directories.
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
from slurmwrap.prerun.static.shell_parser import UNKNOWN

_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)(/.*)?")
_XDG = "~/.cache/"
# What is at the top of the caches of huggingface_hub, datasets, torch.hub, triton, inductor, pip and uv, and of
# the directories that HF_HOME and TORCH_HOME name.
_ENTRY = re.compile(
    r"(?:models|datasets|spaces)--.+|version[\w.]*\.txt|\.locks|tmp\w*|hub|datasets|xet|modules|assets|metrics|evaluate"
    r"|accelerate|token|stored_tokens|downloads|.+\.lock|checkpoints|kernels|sentence_transformers|trusted_list"
    r"|[\w.-]+_[\w.-]+_[\w.-]+|[A-Z2-7]{32,}|[0-9a-f]{2}|[0-9a-f]{40,}|[a-z0-9]{2}|fxgraph|aotautograd|triton|locks"
    r"|\.triton|cache|http(?:-v2)?|wheels|selfcheck|chunk-cache|shard-cache|staging|logs|[\w-]+-v\d+|\.gitignore|\.git"
)
# One of these is enough.
_MARKS = ("CACHEDIR.TAG", ".locks", "downloads")
_LOOKED_AT = 2000
_REMOVERS = ("rm", "rmdir", "mv", "find", "shred", "unlink", "rsync", "truncate")
_CLEANERS = (("pip", "cache"), ("pip3", "cache"), ("uv", "cache"), ("hf", "cache"), ("huggingface-cli", "delete-cache"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One cache. `source` is `place` itself, or where the trial fills one that is not there yet."""

    place: str
    source: str

    @property
    def is_there(self) -> bool:
        """It was, when the trial began."""
        return self.source == self.place


def find_caches(
    listed: Sequence[str],
    environ: Mapping[str, str],
    *,
    kept_from: Sequence[str],
    folder: str,
) -> tuple[Cache, ...]:
    """Those of `listed` (prerun.caches) that a trial may write to, each once; nothing is made yet.

    `environ`: the variables that the program will see. `kept_from`: directories of the user's that no cache may be or
    hold, the home and the working directory among them. `folder`: where those that are not there are filled.
    """
    home = environ.get("HOME", "")
    if not home.startswith("/"):
        return ()
    guarded = tuple(os.path.realpath(one) for one in (home, *kept_from) if one.startswith("/"))
    found: dict[str, Cache] = {}
    for line in listed:
        place, base = _place(line, environ)
        if place and (cache := _check_cache(place, base, home, guarded, folder, len(found))):
            found.setdefault(cache.place, cache)
    outermost = [one for one in found if not any(one != other and is_below(one, other) for other in found)]
    return tuple(found[one] for one in outermost)


def drop_cleaned_caches(
    caches: Sequence[Cache], script: str, chdir: str, args: Sequence[str], environ: Mapping[str, str]
) -> tuple[Cache, ...]:
    """Those that no command of the script removes or empties: a trial does not do that."""
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
    """Makes the directories in which caches that are not there are filled. OSError."""
    for cache in caches:
        if not cache.is_there:
            os.makedirs(cache.source, exist_ok=True)


def put_in_place(caches: Sequence[Cache]) -> None:
    """What the trial downloaded into a cache that was not there goes to where its tool looks for it. Never raises."""
    for cache in caches:
        if cache.is_there:
            continue
        with suppress(OSError):
            if os.listdir(cache.source):
                os.makedirs(os.path.dirname(cache.place), exist_ok=True)
                _move_entry(cache.source, cache.place)


def _move_entry(source: str, place: str) -> None:
    """In one step; where another process has made it meanwhile, what that has not got."""
    with suppress(OSError):
        os.rename(source, place)
        return
    for name in os.listdir(source):
        if not os.path.lexists(f"{place}/{name}"):
            with suppress(OSError):
                os.rename(f"{source}/{name}", f"{place}/{name}")


def _place(line: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """(where the tool keeps this cache: the first place of the line that is known; the directory that a variable names
    for it, "" where it lies in the home as ever)."""
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
    """None where writing there might touch anything of the user's but a cache."""
    real = os.path.realpath(place)
    if set(":,\\\n") & set(real) or any(is_below(one, real) for one in guarded):
        return None
    linked = real != os.path.normpath(place) and real != os.path.realpath(home) + place[len(home) :]
    if base and any(is_below(one, os.path.realpath(base)) for one in guarded):
        # HF_HOME=$PWD: what lies next to the cache is the user's.
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
    """True when all that lies there is what the tools put there; an empty or missing directory is one."""
    try:
        names = os.listdir(folder)[:_LOOKED_AT]
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return any(mark in names for mark in _MARKS) or all(_ENTRY.fullmatch(name) for name in names)
