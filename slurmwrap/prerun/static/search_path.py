"""What a script's lines change about where its programs are found: PATH after activate, module load and the like. Pure.

A search path here is PATH as text in which what is not known is UNKNOWN, and the environment of `conda activate NAME`
stands as CONDA + NAME: only the disk shows where it lies.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence

from slurmwrap.prerun.static.shell_parser import UNKNOWN, Guess

CONDA = UNKNOWN + "conda="
_CONDAS = ("conda", "mamba", "micromamba")
# These bring programs and packages of their own.
_LOADERS = ("module", "ml", "spack", "eval", "guix", "nix-shell", "setpkgs", "use")
# Sourced, they define functions and little else; what they put on PATH comes behind an activate that follows.
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


def search_of(path: str | None, conda: str | None = None) -> str:
    """The search path after `path`; with `conda`, that environment before it."""
    known = path if path else UNKNOWN
    if conda is None:
        return known
    return f"{CONDA}{conda}:{known}" if conda and UNKNOWN not in conda else UNKNOWN


def apply_search_path_change(
    words: Sequence[str], variables: MutableMapping[str, str | None], *, cwd: str | None, sure: bool
) -> None:
    """Takes what one command does to PATH and PYTHONPATH into `variables`."""
    name = words[0]
    if name in (".", "source") and len(words) > 1:
        _apply_sourced(words[1], variables, cwd, sure)
    elif name in _CONDAS and words[1:2] == ["activate"]:
        chosen = words[2] if len(words) > 2 else "base"
        _prepend_path(variables, search_of(variables.get("PATH"), conda=chosen) if sure else UNKNOWN)
    elif name in ("module", "ml", "spack") and words[1:2] in (["list"], ["purge"], ["avail"], ["use"], ["help"]):
        if words[1] == "purge":
            _prepend_path(variables, UNKNOWN)
    elif name in _LOADERS or (name in _CONDAS and words[1:2] == ["deactivate"]) or name == "deactivate":
        _prepend_path(variables, UNKNOWN)
        if name not in _CONDAS and name != "deactivate":
            variables["PYTHONPATH"] = None
    elif name == "unset" and "PYTHONPATH" in words:
        variables["PYTHONPATH"] = ""


def _apply_sourced(path: str, variables: MutableMapping[str, str | None], cwd: str | None, sure: bool) -> None:
    base = os.path.basename(path)  # noqa: PTH119
    if base == "activate" and UNKNOWN not in path and not isinstance(path, Guess) and (cwd or path.startswith("/")):
        home = os.path.normpath(os.path.join(cwd or "/", os.path.dirname(path)))  # noqa: PTH118, PTH120
        _prepend_path(variables, f"{home}:{search_of(variables.get('PATH'))}" if sure else UNKNOWN)
    elif base in _HARMLESS_SOURCES:
        _prepend_path(variables, UNKNOWN)
    else:
        _prepend_path(variables, UNKNOWN)
        variables["PYTHONPATH"] = None


def _prepend_path(variables: MutableMapping[str, str | None], path: str) -> None:
    variables["PATH"] = path
