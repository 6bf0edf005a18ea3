"""Track how a script's commands change PATH and PYTHONPATH: activate, module load and the like. Pure.

A search path here is PATH as text. A part that is not known is UNKNOWN. The environment of `conda activate NAME` is
written as CONDA + NAME, because only the disk shows its directory.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence

from slurmwrap.prerun.static.shell_words import UNKNOWN, Guess

CONDA = UNKNOWN + "conda="
_CONDAS = ("conda", "mamba", "micromamba")
# Commands that add programs and packages of their own.
_LOADERS = ("module", "ml", "spack", "eval", "guix", "nix-shell", "setpkgs", "use")
# Files that define functions and little else when they are sourced. A later activate puts its directory before theirs.
_HARMLESS_SOURCES = (
    "conda.sh",
    "mamba.sh",
    "bashrc",
    ".bashrc",
    "profile",
    ".profile",
    "lmod.sh",
    "modules.sh",
    "bash",
)


def make_search_path(path: str | None, conda: str | None = None) -> str:
    """Return the search path for the PATH `path`; with `conda`, that environment comes first."""
    known = path if path else UNKNOWN
    if conda is None:
        return known
    return f"{CONDA}{conda}:{known}" if conda and UNKNOWN not in conda else UNKNOWN


def apply_search_path_change(
    words: Sequence[str], variables: MutableMapping[str, str | None], *, cwd: str | None, sure: bool
) -> None:
    """Apply to `variables` what one command does to PATH and PYTHONPATH."""
    name = words[0]
    if name in (".", "source") and len(words) > 1:
        _apply_sourced(words[1], variables, cwd, sure)
    elif name in _CONDAS and words[1:2] == ["activate"]:
        chosen = words[2] if len(words) > 2 else "base"
        _set_path(variables, make_search_path(variables.get("PATH"), conda=chosen) if sure else UNKNOWN)
    elif name in ("module", "ml", "spack") and words[1:2] in (["list"], ["purge"], ["avail"], ["use"], ["help"]):
        if words[1] == "purge":
            _set_path(variables, UNKNOWN)
    elif name in _LOADERS or (name in _CONDAS and words[1:2] == ["deactivate"]) or name == "deactivate":
        _set_path(variables, UNKNOWN)
        if name not in _CONDAS and name != "deactivate":
            variables["PYTHONPATH"] = None
    elif name == "unset" and "PYTHONPATH" in words:
        variables["PYTHONPATH"] = ""


def _apply_sourced(path: str, variables: MutableMapping[str, str | None], cwd: str | None, sure: bool) -> None:
    base = os.path.basename(path)  # noqa: PTH119
    if base == "activate" and UNKNOWN not in path and not isinstance(path, Guess) and (cwd or path.startswith("/")):
        home = os.path.normpath(os.path.join(cwd or "/", os.path.dirname(path)))  # noqa: PTH118, PTH120
        _set_path(variables, f"{home}:{make_search_path(variables.get('PATH'))}" if sure else UNKNOWN)
    elif base in _HARMLESS_SOURCES:
        _set_path(variables, UNKNOWN)
    else:
        _set_path(variables, UNKNOWN)
        variables["PYTHONPATH"] = None


def _set_path(variables: MutableMapping[str, str | None], path: str) -> None:
    variables["PATH"] = path
