"""Unwrap commands that start other commands: return the words of the program that runs in the end.

Wrappers are srun, mpirun, env, timeout, nohup, numactl, uv run, conda run, containers and the like. Pure but for
`is_program`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from slurmwrap.prerun.static.container_calls import RUNTIMES, parse_container_call
from slurmwrap.prerun.static.launcher_args import parse_mpirun, parse_srun
from slurmwrap.prerun.static.shell_words import UNKNOWN


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?")
SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_MPI = ("mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra", "horovodrun")

# (subcommands of which one must follow, options with a value, number of words to skip, whether it is a container).
# Container runtimes are in container_calls.py.
_Wrapper = tuple[tuple[str, ...], frozenset[str], int, bool]
_CONDA = _split_words("-n -p --name --prefix --cwd")
_WRAPPERS: Mapping[str, _Wrapper] = {
    "env": ((), _split_words("-u -C -S"), 0, False),
    "exec": ((), _split_words("-a"), 0, False),
    "command": ((), frozenset(), 0, False),
    "nohup": ((), frozenset(), 0, False),
    "setsid": ((), frozenset(), 0, False),
    "time": ((), _split_words("-f -o"), 0, False),
    "timeout": ((), _split_words("-k -s"), 1, False),
    "nice": ((), _split_words("-n"), 0, False),
    "ionice": ((), _split_words("-c -n"), 0, False),
    "chrt": ((), frozenset(), 1, False),
    "stdbuf": ((), _split_words("-i -o -e"), 0, False),
    "unbuffer": ((), frozenset(), 0, False),
    "numactl": ((), _split_words("-N -m -C -i -p"), 0, False),
    "taskset": ((), frozenset(), 1, False),
    "catchsegv": ((), frozenset(), 0, False),
    "dumb-init": ((), frozenset(), 0, False),
    "tini": ((), frozenset(), 0, False),
    "nsys": (("profile",), _split_words("-o -t -d -c -s -f -w -e -y"), 0, False),
    "ncu": ((), _split_words("-o -k -c -s --set --section --target-processes --metrics"), 0, False),
    "perf": (("stat", "record"), _split_words("-e -o -F -p"), 0, False),
    "strace": ((), _split_words("-o -e -s"), 0, False),
    "xvfb-run": ((), _split_words("-s -n -e"), 0, False),
    "ddtrace-run": ((), frozenset(), 0, False),
    "uv": (
        ("run",),
        _split_words("--with --python -p --extra --group --project --directory --env-file --with-requirements --index"),
        0,
        False,
    ),
    "poetry": (("run",), frozenset(), 0, False),
    "pipenv": (("run",), frozenset(), 0, False),
    "pdm": (("run",), _split_words("-p --project"), 0, False),
    "rye": (("run",), frozenset(), 0, False),
    "hatch": (("run",), frozenset(), 0, False),
    "pixi": (("run",), _split_words("-e --environment --manifest-path"), 0, False),
    "conda": (("run",), _CONDA, 0, False),
    "mamba": (("run",), _CONDA, 0, False),
    "micromamba": (("run",), _CONDA, 0, False),
    "xargs": ((), _split_words("-I -n -P -L -d -a -s --max-args --max-procs --arg-file --delimiter"), 0, False),
}
# These commands run the program in an environment of their own, whose packages cannot be found through PATH.
OWN_ENVIRONMENT = _split_words("uv poetry pipenv pdm rye hatch pixi")
CONDAS = _split_words("conda mamba micromamba")

# Commands that create no file of the user's. After any other command a missing file may have been created.
HARMLESS = _split_words(
    """
    : [ [[ test echo printf set unset export declare local readonly shopt ulimit umask module ml source . cd
    pushd popd conda mamba date hostname whoami pwd sleep wait trap true false which type nvidia-smi nproc
    free df env printenv scontrol squeue sacct head tail cut grep awk sed tr wc sort uniq cat tee ls mkdir
    lscpu eval read shift hash spack pip pip3 ulimit set unset chmod id realpath dirname basename seq wandb
    """
)


def unwrap_command(words: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words that srun, mpirun, env, timeout and the like run in the end, and whether in a container."""
    rest, contained = list(words), False
    # No script nests more wrappers. The bound ends the loop if a table entry removes no word.
    for _ in range(12):
        if not rest:
            break
        name = os.path.basename(rest[0])  # noqa: PTH119
        if name == "srun":
            call = parse_srun(rest[1:])
            rest, contained = list(call.command), contained or call.in_container
        elif name in _MPI:
            rest = list(parse_mpirun(rest[1:], is_program).command)
        elif name in RUNTIMES:
            inside = parse_container_call(rest)
            if inside is None:
                break
            rest, contained = list(inside.command), True
        elif name in _WRAPPERS:
            subcommands, valued, skipped, container = _WRAPPERS[name]
            if subcommands and (len(rest) < 2 or rest[1] not in subcommands):
                break
            rest = skip(rest[2 if subcommands else 1 :], valued, skipped)
            contained = contained or container
        else:
            break
    return rest, contained


def is_installing(words: Sequence[str]) -> bool:
    """Return whether the command may install packages."""
    if not {"install", "sync", "create", "update", "develop", "build_ext", "add"} & set(words):
        return False
    names = {os.path.basename(w) for w in words}  # noqa: PTH119
    return bool(names & _split_words("pip pip3 uv conda mamba micromamba poetry pipenv pixi pdm setup.py easy_install"))


def get_inline_shell(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return (text, arguments) of `bash -c text name arguments`; (None, ()) for any other command."""
    if len(words) < 3 or os.path.basename(words[0]) not in SHELLS:  # noqa: PTH119
        return None, ()
    for at, word in enumerate(words[1:-1], 1):
        if not word.startswith("-") or word.startswith("--"):
            return None, ()
        if "c" in word:
            return words[at + 1], tuple(words[at + 3 :])
    return None, ()


def get_inline_python(words: Sequence[str]) -> tuple[int, str | None]:
    """Return (index of the first argument, code of -c or None if the program comes from standard input).

    The index is negative if Python reads neither.
    """
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if found := re.fullmatch(r"-[bBdEiIOPqsSuvx]*c(.*)", words[at], re.DOTALL):
            code = found[1] or (words[at + 1] if at + 1 < len(words) else UNKNOWN)
            return (at + (1 if found[1] else 2), code) if UNKNOWN not in code else (-1, None)
        if not re.fullmatch(r"-[bBdEiIOPqsSuvxWX]+", words[at]):
            return -1, None
        at += 2 if words[at] in ("-W", "-X") else 1
    if at < len(words) and words[at] != "-":
        return -1, None
    return at + 1 if at < len(words) else at, None


def is_program(word: str) -> bool:
    """Return whether `word` can be a command: a Python, or found on PATH."""
    import shutil

    return bool(PYTHON.fullmatch(os.path.basename(word))) or shutil.which(word) is not None  # noqa: PTH119


def skip(words: Sequence[str], valued: frozenset[str], positionals: int) -> list[str]:
    """Return `words` without leading options (those in `valued` take the next word), assignments and positionals."""
    rest = list(words)
    while rest and (rest[0].startswith("-") or re.match(r"[A-Za-z_]\w*=", rest[0])):
        word = rest.pop(0)
        if word == "--":
            break
        if word in valued and rest:
            rest.pop(0)
    return rest[positionals:]
