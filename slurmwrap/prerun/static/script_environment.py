"""Check what a script needs before its programs start: directories of `cd`, sourced files, variables under `set -u`.

Reads the file system only (adapter).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import suggest_path
from slurmwrap.prerun.static.command_wrappers import CONDAS, HARMLESS
from slurmwrap.prerun.static.shell_words import UNKNOWN, Guess
from slurmwrap.prerun.static.started_program import StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext, is_mounted
from slurmwrap.prerun.static.word_tables import split_word_table

# Commands that create no directory. After any other command a directory may exist that did not exist before.
_MAKES_NO_FILES = HARMLESS | split_word_table(
    ". source cd pushd popd conda mamba micromamba deactivate exit if [ [[ (("
)


def check_script_environment(started: Sequence[StartedProgram], text: str, context: StaticContext) -> Iterator[Finding]:
    """Yield one finding for each missing directory or sourced file, and each variable at which `set -u` fails."""
    may_exist = False
    strict = is_stopped_by_failure(text)
    for at, one in enumerate(started):
        if one.raw is None or not one.words:
            continue
        following = started[at + 1].words[:1] if at + 1 < len(started) else ()
        if one.words[0] in ("cd", "pushd", ".", "source") and len(one.words) == 2 and one.sure and not may_exist:
            yield from _check_target(one, strict, following == ("exit",), context)
        may_exist = may_exist or may_create_files(one)
    if re.search(r"^\s*set\s+-\w*u|^\s*set\s+-o\s+nounset|^#!\S+\s+-\w*u", text, re.M):
        yield from _check_unset_variables(started, text, context)


def is_stopped_by_failure(text: str) -> bool:
    """Return whether the script sets `set -e` and never unsets it."""
    on = re.search(r"^\s*set\s+-\w*e|^\s*set\s+-\w*o\s+errexit|^#!\S+\s+-\w*e", text, re.M)
    return on is not None and re.search(r"\bset\s+\+\w*e|\bset\s+\+o\s+errexit", text) is None


def may_create_files(program: StartedProgram) -> bool:
    """Return whether a command of the script itself may create files or directories."""
    assert program.raw is not None
    if not program.words:
        return False
    name = os.path.basename(program.words[0])  # noqa: PTH119
    environment = name in CONDAS and program.words[1:2] != ("activate",)
    return name not in _MAKES_NO_FILES or environment or program.raw.writes


def _check_target(program: StartedProgram, strict: bool, or_exit: bool, context: StaticContext) -> Iterator[Finding]:
    word = program.words[1]
    sources = program.words[0] in (".", "source")
    if UNKNOWN in word or isinstance(word, Guess) or word.startswith("-") or not word.strip():
        return
    base = _find_directory_before(program, context)
    if (not word.startswith("/") and not base) or (sources and "/" not in word):
        # `source` searches PATH for a name without a slash.
        return
    path = os.path.normpath(os.path.join(base, word))  # noqa: PTH118
    if Path(path).exists() if sources else Path(path).is_dir():
        return
    if path.startswith((*context.node_local, "/etc/", "/usr/", "/opt/")):
        # The node may have its own files there.
        return
    assert program.raw is not None
    activates = sources and os.path.basename(path) == "activate"  # noqa: PTH119
    ends = or_exit if program.raw.then == "||" else strict and program.raw.then != "&&"
    certain = (ends or (activates and program.raw.then not in ("||", "&&"))) and is_mounted(path)
    # If the directory does not exist, the `cd` before it failed and is reported itself.
    certain = certain and (word.startswith("/") or Path(base).is_dir())
    what = "file" if sources else "directory"
    yield Finding(
        severity=Severity.ERROR if certain else Severity.WARNING,
        message=f"{program.words[0]} {word}: there is no {what} {path}",
        file=context.script,
        line=program.line,
        fix="remove the quotes: the shell leaves a quoted ~ as it is"
        if word.startswith("~/")
        else f"correct the path{suggest_path(path)}",
        category="incorrect_inputs",
    )


def _find_directory_before(program: StartedProgram, context: StaticContext) -> str:
    """Return the directory in which a command runs; for `cd` itself, the directory before it."""
    return program.before if program.words[0] in ("cd", "pushd") else program.cwd


# Slurm, a login and a node's Prolog set these variables. Modules and sourced files may set any variable.
_SET = re.compile(
    r"SLURM|CUDA|NCCL|OMP|PMI|LMOD|MODULE|XDG|SSH|LC_|LD_|BASH|TMP|SCRATCH|WORK|HOST|JOB|PBS|SGE|RANDOM|EUID"
)
_SHELL_OWN = split_word_table(
    """PWD OLDPWD HOME USER LOGNAME SHELL PATH UID PPID IFS SECONDS LINENO FUNCNAME PIPESTATUS REPLY OPTARG OPTIND LANG
    HOSTNAME OSTYPE MACHTYPE SHLVL PS1 DEBUG GPU_DEVICE_ORDINAL ROCR_VISIBLE_DEVICES MAIL TERM EPOCHSECONDS"""
)


def _check_unset_variables(started: Sequence[StartedProgram], text: str, context: StaticContext) -> Iterator[Finding]:
    names = {one.words[0] for one in started if one.words}
    if names & {
        "module",
        "ml",
        "source",
        ".",
        "eval",
        "spack",
        "conda",
        "mamba",
        "read",
        "getopts",
        "mapfile",
        "readarray",
    }:
        return
    reported: set[str] = set()
    for one in started:
        if one.raw is None or not one.sure or one.raw.in_function:
            continue
        for name in (
            n for word in one.raw.words for kind, n, default in word.parts if kind == "variable" and not default
        ):
            if (
                name in reported
                or name in context.environ
                or name in _SHELL_OWN
                or _SET.match(name)
                or not name.isidentifier()
            ):
                continue
            if re.search(rf"(?<![$\{{\w]){name}(\+?=|\b(?=[^\n]*;?\s*(?:do|in)\b))|\$\{{{name}:?[-=]", text):
                continue
            reported.add(name)
            yield Finding(
                severity=Severity.WARNING,
                message=f"${name} is never set, and set -u ends the script at its first use",
                file=context.script,
                line=one.line,
                fix=f"set {name}, or write ${{{name}:-}}",
                category="semantic_error",
            )
