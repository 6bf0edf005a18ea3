"""What a batch script starts: turns its text into Python entry points with their arguments. Pure but for `is_program`.

Found behind srun, mpirun, torchrun, accelerate, deepspeed, `python -m`, env, timeout, nohup, numactl, uv run, conda
run, apptainer exec and the like. What cannot be known without running the script is left out, or is not `certain`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurmwrap.inject import slurmwrap_launch
from slurmwrap.prerun.launch import parse_mpirun, parse_srun
from slurmwrap.prerun.shell import UNKNOWN, Guess, RawCommand, assignment, commands, expand


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SUBMIT_DIR = "SLURM_SUBMIT_DIR"
_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?")
_SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_MPI = ("mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra")

# command -> (subcommands of which one must follow, options with a value, words to skip, in a container)
_WRAPPERS: Mapping[str, tuple[tuple[str, ...], frozenset[str], int, bool]] = {
    "env": ((), frozenset({"-u", "-C", "-S"}), 0, False),
    "exec": ((), frozenset({"-a"}), 0, False),
    "nohup": ((), frozenset(), 0, False),
    "setsid": ((), frozenset(), 0, False),
    "time": ((), frozenset({"-f", "-o"}), 0, False),
    "timeout": ((), frozenset({"-k", "-s"}), 1, False),
    "nice": ((), frozenset({"-n"}), 0, False),
    "ionice": ((), frozenset({"-c", "-n"}), 0, False),
    "stdbuf": ((), frozenset({"-i", "-o", "-e"}), 0, False),
    "numactl": ((), frozenset({"-N", "-m", "-C", "-i", "-p"}), 0, False),
    "taskset": ((), frozenset(), 1, False),
    "catchsegv": ((), frozenset(), 0, False),
    "nsys": (("profile",), frozenset({"-o", "-t", "-d", "-c", "-s", "-f", "-w"}), 0, False),
    "uv": (
        ("run",),
        frozenset({"--with", "--python", "-p", "--extra", "--group", "--project", "--directory"}),
        0,
        False,
    ),
    "poetry": (("run",), frozenset(), 0, False),
    "pipenv": (("run",), frozenset(), 0, False),
    "conda": (("run",), frozenset({"-n", "-p", "--name", "--prefix", "--cwd"}), 0, False),
    "mamba": (("run",), frozenset({"-n", "-p", "--name", "--prefix"}), 0, False),
    "micromamba": (("run",), frozenset({"-n", "-p", "--name", "--prefix"}), 0, False),
    "apptainer": (
        ("exec",),
        frozenset({"-B", "--bind", "--env", "--env-file", "-H", "--home", "--pwd", "-W"}),
        1,
        True,
    ),
    "singularity": (
        ("exec",),
        frozenset({"-B", "--bind", "--env", "--env-file", "-H", "--home", "--pwd", "-W"}),
        1,
        True,
    ),
}

# Commands that make no file of the user's; after any other one a missing file may have been made.
_HARMLESS = _words(
    """
    : [ [[ test echo printf set unset export declare local readonly shopt ulimit umask module ml source . cd
    pushd popd conda mamba date hostname whoami pwd sleep wait trap true false which type nvidia-smi nproc
    free df env printenv scontrol squeue sacct head tail cut grep awk sed tr wc sort uniq cat tee ls mkdir
    lscpu eval read shift hash spack
    """
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """One simple command of the script, whatever it is, after srun, env, timeout and the like."""

    words: tuple[str, ...]  # UNKNOWN in those that only the shell knows
    reads: tuple[str, ...]  # what stands behind `<`
    cwd: str  # "" when unknown
    entry: EntryPoint | None


def started(
    script_text: str, chdir: str, args: Sequence[str], environ: Mapping[str, str] | None = None
) -> tuple[Started, ...]:
    """All commands of a shell script in order; arguments as of `entry_points`."""
    return tuple(_Walk(chdir, tuple(args), environ or {}).commands(script_text))


def entry_points(
    script_text: str, chdir: str, args: Sequence[str], environ: Mapping[str, str] | None = None
) -> tuple[EntryPoint, ...]:
    """The entry points of a shell script run in `chdir` with `args`, in order. `environ`: what sbatch will pass on,
    and SLURM_SUBMIT_DIR where it is known (sbatch sets it to its own directory)."""
    return tuple(one.entry for one in started(script_text, chdir, args, environ) if one.entry)


class _Walk:
    """Goes through the commands with what is known so far: variables, directory, whether files may have appeared."""

    def __init__(self, chdir: str, args: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self.cwd: str | None = chdir
        self.args = args
        self.variables: dict[str, str | None] = {
            k: v for k, v in environ.items() if not k.startswith("SLURM_") or k == SUBMIT_DIR
        }
        self.files_known = True

    def commands(self, script_text: str) -> Iterator[Started]:
        for command in commands(script_text):
            words = self._assign(command)
            if not words:
                continue
            name = os.path.basename(words[0])  # noqa: PTH119 - "" for "dir/", where Path.name is "dir"
            if name in ("cd", "pushd", "popd"):
                self._change_directory(words, command.sure)
            found = self._entry(words, command)
            reads = tuple(text for word in command.reads for text in expand(word, self.variables, self.args))
            yield Started(words=tuple(unwrapped(words)[0]), reads=reads, cwd=self.cwd or "", entry=found)
            ends = command.sure and name in ("exit", "exec") and len(words) > (name == "exec")
            if ends:
                return
            self.files_known = self.files_known and not command.writes and (found is not None or name in _HARMLESS)

    def _assign(self, command: RawCommand) -> list[str]:
        """Takes leading and exported assignments into the variables; the words that are left."""
        words = list(command.words)
        name = words[0].literal
        if name in ("export", "declare", "local", "readonly", "typeset"):
            words = words[1:]
            while words and (words[0].literal or "").startswith("-"):
                words = words[1:]
        taken = 0
        while taken < len(words) and (pair := assignment(words[taken])):
            value = expand(pair[1], self.variables, self.args)
            known = value[0] if len(value) == 1 and UNKNOWN not in value[0] and command.sure else None
            self.variables[pair[0]] = known
            taken += 1
        if name in ("export", "declare", "local", "readonly", "typeset"):
            return [name]
        return [text for word in words[taken:] for text in expand(word, self.variables, self.args)]

    def _change_directory(self, words: list[str], sure: bool) -> None:
        target = words[1] if len(words) == 2 and words[0] == "cd" else UNKNOWN
        known = sure and self.cwd is not None and UNKNOWN not in target and not isinstance(target, Guess)
        self.cwd = _join(self.cwd, target) if known and target != "-" else None

    def _entry(self, words: list[str], command: RawCommand) -> EntryPoint | None:
        rest, contained = unwrapped(words)
        found = program(rest, self.cwd)
        if found is None:
            return None
        sure = command.sure and not contained and self.files_known and self.cwd is not None
        return replace(found, line=command.line, certain=sure and found.certain, cwd=self.cwd or "")


def unwrapped(words: Sequence[str]) -> tuple[list[str], bool]:
    """What srun, mpirun, env, timeout and the like would start in the end, and whether in a container."""
    rest, contained = list(words), False
    for _ in range(12):  # no script wraps deeper; a bound against a table that eats nothing
        if not rest:
            break
        name = os.path.basename(rest[0])  # noqa: PTH119
        if name == "srun":
            call = parse_srun(rest[1:])
            rest, contained = list(call.command), contained or call.in_container
        elif name in _MPI:
            rest = list(parse_mpirun(rest[1:], is_program).command)
        elif name in _WRAPPERS:
            subcommands, valued, skipped, container = _WRAPPERS[name]
            if subcommands and (len(rest) < 2 or rest[1] not in subcommands):
                break
            rest = _skip(rest[2 if subcommands else 1 :], valued, skipped)
            contained = contained or container
        else:
            break
    return rest, contained


def program(words: Sequence[str], cwd: str | None) -> EntryPoint | None:
    """The entry point that `words` start, with line 0; None when it is no Python and no shell script."""
    name = os.path.basename(words[0]) if words else UNKNOWN  # noqa: PTH119
    if UNKNOWN in name:
        return None
    if launched := slurmwrap_launch.launcher(list(words)):
        return _launched(launched, words, cwd, "")
    if _PYTHON.fullmatch(name):
        return _python(words, cwd)
    if name in _SHELLS:
        rest = _skip(words[1:], frozenset({"-o", "-O", "--rcfile", "--init-file"}), 0)
        named = bool(rest) and not any(re.fullmatch(r"-\w*[cs]\w*", w) for w in words[1 : len(words) - len(rest)])
        return _file("shell", rest, cwd, words[0]) if named else None
    return _file("python", words, cwd, "") if name.endswith(".py") else None


def is_program(word: str) -> bool:
    """True when `word` can be a command: found on PATH, or a file."""
    import shutil

    return bool(_PYTHON.fullmatch(os.path.basename(word))) or shutil.which(word) is not None  # noqa: PTH119


def _skip(words: Sequence[str], valued: frozenset[str], positionals: int) -> list[str]:
    rest = list(words)
    while rest and (rest[0].startswith("-") or re.match(r"[A-Za-z_]\w*=", rest[0])):
        word = rest.pop(0)
        if word == "--":
            break
        if word in valued and rest:
            rest.pop(0)
    return rest[positionals:]


def _python(words: Sequence[str], cwd: str | None) -> EntryPoint | None:
    module = slurmwrap_launch.module_of(list(words))
    if module is None:
        rest = _skip_python_options(words[1:])
        return _file("python", rest, cwd, words[0]) if rest else None
    at = next(
        i for i, word in enumerate(words) if i and word.startswith("-") and not word.startswith("--") and "m" in word
    )
    argv = ["-m", *words[at + (1 if words[at].endswith(module) and words[at] != "-m" else 2) :]]
    if launched := slurmwrap_launch.launcher(argv, module):
        return _launched(launched, argv, cwd, words[0])
    return _module("module", [module, *argv[1:]], cwd, words[0])


def _skip_python_options(words: Sequence[str]) -> list[str]:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "-" or re.fullmatch(r"-[A-Za-z]*c.*", word):
            return []
        if word in ("-W", "-X", "--check-hash-based-pycs") and rest:
            rest.pop(0)
    return rest


def _launched(launched: tuple[str, int], words: Sequence[str], cwd: str | None, interpreter: str) -> EntryPoint | None:
    kind, first = launched
    options, rest = slurmwrap_launch.split(kind, list(words[first:]))
    names = {name for name, _ in options}
    if rest[:1] == [UNKNOWN] and rest[1:2] and rest[1].endswith(".py"):
        rest = rest[1:]  # `torchrun $OPTIONS train.py`
    if not rest or "no_python" in names:
        return None
    return (_module if names & {"m", "module"} else _file)(kind, rest, cwd, interpreter)


def _file(kind: str, words: Sequence[str], cwd: str | None, interpreter: str) -> EntryPoint | None:
    if not words or UNKNOWN in words[0]:
        return None
    path, certain = _join(cwd, words[0]), not isinstance(words[0], Guess)
    return EntryPoint(kind=kind, path=path, argv=tuple(words[1:]), line=0, certain=certain, interpreter=interpreter)


def _module(kind: str, words: Sequence[str], cwd: str | None, interpreter: str) -> EntryPoint:
    base = Path(cwd or "/nonexistent", *words[0].split("."))
    tried = (base.with_suffix(".py"), base / "__main__.py")
    path = next((str(p) for p in tried if p.is_file()), "")  # else an installed module
    return EntryPoint(kind=kind, path=path, argv=tuple(words[1:]), line=0, interpreter=interpreter)


def _join(cwd: str | None, path: str) -> str:
    if cwd is None and not path.startswith("/"):
        return ""
    return os.path.normpath(os.path.join(cwd or "/", path))  # noqa: PTH118 - Path does not fold ".."
