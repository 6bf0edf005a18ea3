"""What one command starts: turns its words into a Python entry point with its arguments, or into a shell script.

The words are those that srun, mpirun, env, timeout, uv run, conda run, apptainer exec and the like leave
(command_wrappers.py); torchrun, accelerate, deepspeed and `python -m` are read here. list_entry_points.py asks for each
command of a batch script. Pure but for a look at whether `python -m module` has its file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.inject import slurmwrap_launch
from slurmwrap.prerun.static.command_wrappers import PYTHON, SHELLS, skip
from slurmwrap.prerun.static.shell_parser import UNKNOWN, Guess, RawCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoint:
    """One program that the script starts."""

    kind: str  # "python" | "module" | "torchrun" | "accelerate" | "deepspeed" | "shell"
    path: str  # the file that is run, absolute, whether it exists or not; "" when it cannot be known
    argv: tuple[str, ...]  # the program's own arguments; UNKNOWN ("\0") in those that only the shell knows
    line: int  # of the batch script
    certain: bool = True  # it runs for sure, from a directory that is known
    interpreter: str = ""  # as the script says it: "python3", "/venv/bin/python", "\0/bin/python"; "" when it does not
    cwd: str = ""  # "" when unknown
    code: str | None = None  # the program itself, where the script holds it (`python - <<EOF`); `path` is "" then
    code_line: int = 0  # line of the script on which `code` begins
    module: str = ""  # of `python -m module`, where no file of that name lies in the working directory
    contained: bool = False  # behind a container's doors: paths and packages are its own
    search: str = UNKNOWN  # PATH there; parts that are not known are UNKNOWN, a conda environment is CONDA + its name
    modules: str = ""  # PYTHONPATH there; UNKNOWN where it is not known
    installs: bool = False  # the script may have installed packages before
    whole: tuple[str, ...] = ()  # all words of the command, srun and launcher included
    devices: str | None = None  # CUDA_VISIBLE_DEVICES, where the script sets it
    file: str = ""  # the script in which this stands, when it is another one that the batch script starts


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedProgram:
    """One simple command of the script, whatever it is, after srun, env, timeout and the like."""

    words: tuple[str, ...]  # UNKNOWN in those that only the shell knows
    reads: tuple[str, ...]  # what is behind `<`
    cwd: str  # "" when unknown
    entry: EntryPoint | None
    line: int = 0
    sure: bool = False
    search: str = UNKNOWN  # as in EntryPoint
    contained: bool = False
    # The directory before this command; it differs for `cd`.
    before: str = ""
    raw: RawCommand | None = None
    # What its redirections write to.
    targets: tuple[str, ...] = ()
    # It is in another script, or in the text of `bash -c`.
    inner: bool = False


def parse_program(words: Sequence[str], cwd: str | None) -> EntryPoint | None:
    """The entry point that `words` start, with line 0; None when it is no Python and no shell script."""
    name = os.path.basename(words[0]) if words else UNKNOWN
    if UNKNOWN in name:
        return None
    if launched := slurmwrap_launch.launcher(list(words)):
        return _parse_launched(launched, words, cwd, "")
    if PYTHON.fullmatch(name):
        return _parse_python_call(words, cwd)
    if name in SHELLS:
        rest = skip(words[1:], frozenset({"-o", "-O", "--rcfile", "--init-file"}), 0)
        named = bool(rest) and not any(re.fullmatch(r"-\w*[cs]\w*", w) for w in words[1 : len(words) - len(rest)])
        return make_file_entry("shell", rest, cwd, words[0]) if named else None
    if name.endswith(".sh") and "/" in words[0]:
        return make_file_entry("shell", words, cwd, "")
    return make_file_entry("python", words, cwd, "") if name.endswith(".py") else None


def _parse_python_call(words: Sequence[str], cwd: str | None) -> EntryPoint | None:
    module = slurmwrap_launch.module_of(list(words))
    if module is None:
        rest = _skip_python_options(words[1:])
        return make_file_entry("python", rest, cwd, words[0]) if rest else None
    at = next(
        i for i, word in enumerate(words) if i and word.startswith("-") and not word.startswith("--") and "m" in word
    )
    argv = ["-m", *words[at + (1 if words[at].endswith(module) and words[at] != "-m" else 2) :]]
    if launched := slurmwrap_launch.launcher(argv, module):
        return _parse_launched(launched, argv, cwd, words[0])
    return _make_module_entry("module", [module, *argv[1:]], cwd, words[0])


def _skip_python_options(words: Sequence[str]) -> list[str]:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "-" or re.fullmatch(r"-[A-Za-z]*c.*", word):
            return []
        if word in ("-W", "-X", "--check-hash-based-pycs") and rest:
            rest.pop(0)
    return rest


def _parse_launched(
    launched: tuple[str, int], words: Sequence[str], cwd: str | None, interpreter: str
) -> EntryPoint | None:
    kind, first = launched
    options, rest = slurmwrap_launch.split(kind, list(words[first:]))
    names = {name for name, _ in options}
    if rest[:1] == [UNKNOWN] and rest[1:2] and rest[1].endswith(".py"):
        rest = rest[1:]  # `torchrun $OPTIONS train.py`
    if not rest or "no_python" in names:
        return None
    return (_make_module_entry if names & {"m", "module"} else make_file_entry)(kind, rest, cwd, interpreter)


def make_file_entry(kind: str, words: Sequence[str], cwd: str | None, interpreter: str) -> EntryPoint | None:
    if not words or UNKNOWN in words[0] or not words[0].strip():
        return None
    path, certain = join_paths(cwd, words[0]), not isinstance(words[0], Guess)
    return EntryPoint(kind=kind, path=path, argv=tuple(words[1:]), line=0, certain=certain, interpreter=interpreter)


def _make_module_entry(kind: str, words: Sequence[str], cwd: str | None, interpreter: str) -> EntryPoint:
    base = os.path.join(cwd or "/nonexistent", *words[0].split("."))
    tried = (f"{base}.py", f"{base}/__main__.py")
    path = next((p for p in tried if UNKNOWN not in p and os.path.isfile(p)), "")  # else an installed module
    return EntryPoint(
        kind=kind, path=path, argv=tuple(words[1:]), line=0, interpreter=interpreter, module="" if path else words[0]
    )


def join_paths(cwd: str | None, path: str) -> str:
    if cwd is None and not path.startswith("/"):
        return ""
    return os.path.normpath(os.path.join(cwd or "/", path))
