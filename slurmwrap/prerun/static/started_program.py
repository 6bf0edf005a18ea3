"""Parse the words of one command into the Python entry point, with its arguments, or the shell script that it starts.

The words are those that remain after srun, mpirun, env, timeout, uv run, conda run, apptainer exec and the like
(command_wrappers.py). torchrun, accelerate, deepspeed and `python -m` are parsed here. entry_points.py calls this for
each command of a batch script. Pure but for a check whether `python -m module` has its file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.inject import slurmwrap_launcher_options
from slurmwrap.prerun.static.command_wrappers import PYTHON, SHELLS, skip
from slurmwrap.prerun.static.container_calls import BoundPath
from slurmwrap.prerun.static.shell_words import UNKNOWN, Guess, RawCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoint:
    """One program that the script starts."""

    # "python" | "module" | "torchrun" | "accelerate" | "deepspeed" | "shell"
    kind: str
    # Absolute path of the file that runs, whether it exists or not; "" if it cannot be known.
    path: str
    # The program's own arguments; UNKNOWN ("\0") in those that only the shell knows.
    argv: tuple[str, ...]
    # Line of the batch script.
    line: int
    # It is certain to run, from a directory that is known.
    certain: bool = True
    # As the script writes it: "python3", "/venv/bin/python", "\0/bin/python"; "" if it names none.
    interpreter: str = ""
    # Working directory; "" if it is not known.
    cwd: str = ""
    # The program itself, if the script contains it (`python - <<EOF`); `path` is "" then.
    code: str | None = None
    # Line of the script on which `code` begins.
    code_line: int = 0
    # The module of `python -m module`, if no file of that name is in the working directory.
    module: str = ""
    # It runs in a container, which has its own paths and packages.
    contained: bool = False
    # A container has `path`, which is the host's, in a directory that its command line binds.
    bound: bool = False
    # Its PATH; parts that are not known are UNKNOWN, a conda environment is CONDA + its name.
    search: str = UNKNOWN
    # Its PYTHONPATH; UNKNOWN if it is not known.
    modules: str = ""
    # The script may have installed packages before.
    installs: bool = False
    # All words of the command, including srun and the launcher.
    whole: tuple[str, ...] = ()
    # CUDA_VISIBLE_DEVICES, if the script sets it.
    devices: str | None = None
    # The script that contains this command, if it is another one that the batch script starts.
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedProgram:
    """One simple command of the script, of any kind, without srun, env, timeout and the like."""

    # UNKNOWN in those that only the shell knows.
    words: tuple[str, ...]
    # Files after `<`.
    reads: tuple[str, ...]
    # Working directory; "" if it is not known.
    cwd: str
    entry: EntryPoint | None
    line: int = 0
    sure: bool = False
    # As in EntryPoint.
    search: str = UNKNOWN
    contained: bool = False
    # The directory before this command; it differs for `cd`.
    before: str = ""
    raw: RawCommand | None = None
    # Files that its redirections write to.
    targets: tuple[str, ...] = ()
    # It is in another script, or in the text of `bash -c`.
    inner: bool = False
    # All words of the command, including srun, containers and the like.
    whole: tuple[str, ...] = ()
    # The kind of the container's runtime (container_calls.py); "" if it is in none, or Slurm starts the container.
    runtime: str = ""
    # What its container binds, and the working directory inside; "" if its command line names none.
    bound: tuple[BoundPath, ...] = ()
    workdir: str = ""
    # A shell in the container starts it, so `cwd` and `targets` are paths inside.
    inside: bool = False


def parse_program(words: Sequence[str], cwd: str | None) -> EntryPoint | None:
    """Return the entry point that `words` start, with line 0; None if it is neither Python nor a shell script."""
    name = os.path.basename(words[0]) if words else UNKNOWN
    if UNKNOWN in name:
        return None
    if launched := slurmwrap_launcher_options.launcher(list(words)):
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
    module = slurmwrap_launcher_options.module_of(list(words))
    if module is None:
        rest = _skip_python_options(words[1:])
        return make_file_entry("python", rest, cwd, words[0]) if rest else None
    at = next(
        i for i, word in enumerate(words) if i and word.startswith("-") and not word.startswith("--") and "m" in word
    )
    argv = ["-m", *words[at + (1 if words[at].endswith(module) and words[at] != "-m" else 2) :]]
    if launched := slurmwrap_launcher_options.launcher(argv, module):
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
    options, rest = slurmwrap_launcher_options.split(kind, list(words[first:]))
    names = {name for name, _ in options}
    if rest[:1] == [UNKNOWN] and rest[1:2] and rest[1].endswith(".py"):
        # `torchrun $OPTIONS train.py`
        rest = rest[1:]
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
    # Without such a file it is an installed module.
    path = next((p for p in tried if UNKNOWN not in p and os.path.isfile(p)), "")
    return EntryPoint(
        kind=kind, path=path, argv=tuple(words[1:]), line=0, interpreter=interpreter, module="" if path else words[0]
    )


def join_paths(cwd: str | None, path: str) -> str:
    if cwd is None and not path.startswith("/"):
        return ""
    return os.path.normpath(os.path.join(cwd or "/", path))
