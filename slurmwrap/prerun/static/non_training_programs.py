"""Programs that never train: servers, simulation codes, and commands that only hold a node. Pure.

A script that starts nothing but these has nothing to show in a pre-run, so its job starts at once. Anything that is not
known here is given its pre-run, which ends soon where nothing trains (no_training.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from slurmwrap.inject import slurmwrap_launch
from slurmwrap.prerun.static.command_wrappers import HARMLESS, PYTHON, SHELLS, get_inline_shell
from slurmwrap.prerun.static.entry_points import list_started_programs
from slurmwrap.prerun.static.shell_parser import UNKNOWN
from slurmwrap.prerun.static.started_program import StartedProgram
from slurmwrap.prerun.verdict import python_traceback

# The first words of a command, each a shell pattern; "python -m X" stands for any Python that runs module X.
# A site adds its own: prerun.no_training.
KNOWN = (
    *("vllm serve", "python -m vllm.entrypoints.*", "python -m sglang.launch_server", "sglang serve"),
    *("text-generation-launcher", "tritonserver", "trtllm-serve", "ollama", "llama-server", "lmdeploy serve"),
    *("ray start", "python -m http.server", "tensorboard", "jupyter*", "code-server", "code tunnel", "sshd"),
    *("uvicorn", "gunicorn", "streamlit run", "mlflow server", "mlflow ui", "redis-server", "dask scheduler"),
    *("gmx", "gmx_mpi", "lmp", "lmp_*", "namd2", "namd3", "charmrun", "vasp_*", "pmemd*", "sander*", "cp2k*", "pw.x"),
)


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Next to wrappers.HARMLESS: what only handles files and processes.
_BESIDE = _split_words(
    """cp mv rm ln touch tar unzip gzip gunzip rsync mkdir rmdir mktemp find ssh scp curl wget git kill pkill disown
    jobs break continue return exit logger stdbuf getconf ulimit ss ip lsof ps top id tty screen tmux fi done"""
)
# A sleep of this length or more holds a node; a shorter one waits for something.
_LONG_S = 600.0
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def find_holder_of_script(
    script: str, chdir: str, args: Sequence[str], environ: Mapping[str, str], more: Sequence[str] = ()
) -> str:
    """`find_holder` of a script's text and of the scripts that it starts. Arguments as of `list_entry_points`."""
    unread: list[str] = []

    def read(path: str) -> str | None:
        text = python_traceback.read(path)
        if text is None:
            unread.append(path)
        return text

    found = find_holder(tuple(list_started_programs(script, chdir, args, environ, read)), more)
    return "" if unread or not _is_shell(script) else found


def _is_shell(script: str) -> bool:
    words = script.partition("\n")[0][2:].split()
    return any(os.path.basename(word) in SHELLS for word in words[:2])  # noqa: PTH119


def find_holder(commands: Iterable[StartedProgram], more: Sequence[str] = ()) -> str:
    """The known program that a script consists of, as the script says it ("vllm serve"); "" when anything else may run.

    `commands`: all of the script and of the scripts that it starts. `more`: the site's own patterns.
    """
    found = ""
    for one in commands:
        if (one.entry is not None and one.entry.kind == "shell") or get_inline_shell(one.words)[0] is not None:
            # Its own commands are among these.
            continue
        named = _match_known(one.words, (*KNOWN, *more))
        if not named and not _is_harmless(one.words):
            return ""
        found = found or named
    return found


def _match_known(words: Sequence[str], patterns: Sequence[str]) -> str:
    said = _normalize_words(words)
    if not said:
        return ""
    if said[0] == "sleep" and _is_long(said[1:]):
        return " ".join(said)
    if said[0] == "tail" and any(re.fullmatch(r"-[a-zA-Z0-9]*[fF].*|--follow.*", word) for word in said[1:]):
        return "tail -f"
    for pattern in patterns:
        wanted = pattern.split()
        if len(said) >= len(wanted) and all(map(fnmatchcase, said, wanted)):
            return " ".join(said[: len(wanted)])
    return ""


def _normalize_words(words: Sequence[str]) -> list[str]:
    """The words with the program's base name; of `python3.11 -u -m x` "python -m x"."""
    if not words or UNKNOWN in words[0]:
        return []
    name = os.path.basename(words[0])  # noqa: PTH119
    if PYTHON.fullmatch(name) and (module := slurmwrap_launch.module_of(list(words))):
        return ["python", "-m", module]
    return [name, *words[1:]]


def _is_long(durations: Sequence[str]) -> bool:
    """Whether `sleep` with these arguments takes so long that it holds a node; False for what only the shell knows."""
    total = 0.0
    for text in durations:
        if text.lower() in ("inf", "infinity"):
            return True
        match = re.fullmatch(r"(\d+\.?\d*)([smhd]?)", text)
        if match is None:
            return False
        total += float(match[1]) * _UNITS[match[2]]
    return total >= _LONG_S


def _is_harmless(words: tuple[str, ...]) -> bool:
    name = os.path.basename(words[0]) if words else ""  # noqa: PTH119
    # `[ -d x ]` reads as a pattern of file names
    if words[:1] == (UNKNOWN,) and words[-1] == "]":
        return True
    return UNKNOWN not in name and name not in SHELLS and (name in HARMLESS or name in _BESIDE)
