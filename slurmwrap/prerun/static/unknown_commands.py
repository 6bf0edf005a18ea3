"""Find commands that no shell will find: lost line continuations, misspelt names, blanks around `=`; run shellcheck.

The commands of a node are not known here, so a name is reported only if it looks like a misspelt well-known one.
(adapter)
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import find_nearest, is_typo
from slurmwrap.prerun.static.python_source import read_head
from slurmwrap.prerun.static.shell_words import UNKNOWN
from slurmwrap.prerun.static.started_program import StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.word_tables import split_word_table

_WELL_KNOWN = split_word_table(
    """python python3 pip pip3 conda mamba module source export torchrun accelerate deepspeed srun sbatch mpirun
    mpiexec horovodrun echo printf mkdir rsync unzip chmod sleep hostname nvidia-smi scontrol squeue sacct
    singularity apptainer docker podman timeout unset ulimit cat head tail grep awk sed sort uniq tar gzip git
    wget curl date env time wait cd cp mv rm ls ln touch exit eval exec nproc numactl taskset bash test true false
    trap tee find xargs wc cut"""
)
# Used in many scripts, but installed on few nodes.
_MAIL_COMMANDS = ("mail", "mailx", "sendmail", "mutt")
_ENVIRONMENT_FILES = (
    "activate",
    "conda.sh",
    "mamba.sh",
    ".bashrc",
    "bashrc",
    ".bash_profile",
    ".profile",
    "profile",
    "modules.sh",
)
_LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec")
_BUILTINS = frozenset(
    [
        ":",
        ".",
        "[",
        "[[",
        "alias",
        "bg",
        "bind",
        "break",
        "builtin",
        "caller",
        "case",
        "cd",
        "command",
        "compgen",
        "complete",
        "compopt",
        "continue",
        "coproc",
        "declare",
        "dirs",
        "disown",
        "do",
        "done",
        "echo",
        "elif",
        "else",
        "enable",
        "esac",
        "eval",
        "exec",
        "exit",
        "export",
        "false",
        "fc",
        "fg",
        "fi",
        "for",
        "function",
        "getopts",
        "hash",
        "help",
        "history",
        "if",
        "in",
        "jobs",
        "kill",
        "let",
        "local",
        "logout",
        "mapfile",
        "popd",
        "printf",
        "pushd",
        "pwd",
        "read",
        "readarray",
        "readonly",
        "return",
        "select",
        "set",
        "shift",
        "shopt",
        "source",
        "suspend",
        "test",
        "then",
        "time",
        "times",
        "trap",
        "true",
        "type",
        "typeset",
        "ulimit",
        "umask",
        "unalias",
        "unset",
        "until",
        "wait",
        "while",
        "{",
        "}",
        "!",
        "((",
        "))",
        "module",
        "ml",
    ]
)
# shellcheck codes of errors at run time, independent of style: spaces, dashes and quotes that change the meaning, and
# impossible commands. Parse errors are reported by the shell itself.
_CODES = [
    "SC1017",
    "SC1018",
    "SC1020",
    "SC1035",
    "SC1037",
    "SC1045",
    "SC1066",
    "SC1068",
    "SC1069",
    "SC1082",
    "SC1095",
    "SC1097",
    "SC1100",
    "SC1101",
    "SC1108",
    "SC1110",
    "SC1113",
    "SC1114",
    "SC1115",
    "SC1128",
    "SC2071",
    "SC2122",
    "SC2170",
    "SC2171",
    "SC2210",
    "SC2215",
    "SC2218",
    "SC2224",
    "SC2225",
    "SC2259",
    "SC2270",
    "SC2276",
    "SC2281",
    "SC2282",
    "SC2283",
    "SC2286",
    "SC2287",
    "SC2288",
    "SC2290",
]


def check_shell_commands(started: Sequence[StartedProgram], text: str, context: StaticContext) -> Iterator[Finding]:
    """Yield slurmwrap's own findings, and those of shellcheck in other lines."""
    found = [*_check_commands(started, text, context), *_check_variables(started, text, context)]
    yield from found
    yield from _run_shellcheck(text, context, {f.line for f in found})


def _check_commands(started: Sequence[StartedProgram], text: str, context: StaticContext) -> Iterator[Finding]:
    # None: the functions are not known, so any word may be one.
    functions: set[str] | None = set(_list_functions(text))
    for one in started:
        if one.raw is not None and one.words and not one.contained:
            yield from _check_command(one, functions, context)
            if one.words[0] in (".", "source"):
                new_functions = _list_sourced_functions(one)
                functions = functions | new_functions if functions is not None and new_functions is not None else None


def _list_sourced_functions(program: StartedProgram) -> set[str] | None:
    """Return the functions of a sourced file; None if not known. The files of an environment define none."""
    path = program.words[1] if len(program.words) > 1 else UNKNOWN
    if os.path.basename(path) in _ENVIRONMENT_FILES:  # noqa: PTH119
        return set()
    where = os.path.join(program.cwd, path)  # noqa: PTH118
    if UNKNOWN in path or not os.path.isfile(where):  # noqa: PTH113
        return None
    text = read_head(Path(where)).decode("utf-8", "replace")
    return None if re.search(r"^\s*(\.|source|eval)\s", text, re.M) else set(_list_functions(text))


def is_sourcing_environment(program: StartedProgram) -> bool:
    """Return whether the command only sets up an environment, and so starts and creates nothing.

    Such commands are `source .../activate`, `eval "$(conda shell.bash hook)"` and the like.
    """
    if program.words[0] == "eval":
        texts = [part[1] for word in program.raw.words[1:] for part in word.parts] if program.raw is not None else []
        return any(re.match(r"\s*\S*(conda|mamba|ssh-agent|spack|pyenv|brew|modulecmd)\b", text) for text in texts)
    return program.words[0] in (".", "source") and os.path.basename(" ".join(program.words[1:2])) in _ENVIRONMENT_FILES  # noqa: PTH119


def _list_functions(text: str) -> list[str]:
    return [*re.findall(r"^\s*(?:function\s+)?([\w:.+-]+)\s*\(\s*\)", text, re.M), *_list_functions_and_aliases(text)]


def _list_functions_and_aliases(text: str) -> list[str]:
    """Return the functions that are defined without brackets, and the aliases."""
    pairs = re.findall(r"^\s*function\s+([\w:.+-]+)|\balias\s+([\w-]+)=", text, re.M)
    return [name for pair in pairs for name in pair if name]


def _check_command(program: StartedProgram, functions: set[str] | None, context: StaticContext) -> Iterator[Finding]:
    name = program.words[0]
    if re.match(r"--?[A-Za-z]", name):
        if program.raw is not None and program.raw.then == "|":
            # `--lr|-l)` is a pattern of `case`.
            return
        # No command has such a name.
        certain = program.sure and name.startswith("--") and UNKNOWN not in name
        message = f"{name.replace(UNKNOWN, '...')}: command not found: an option is at the beginning of a command"
        fix = "the line before must end with a backslash, with nothing after it"
        yield _make_finding(program, message, fix, context, certain)
    elif program.raw is not None and _is_assignment_to_value(program):
        yield _make_finding(
            program, "an assignment begins with the name alone, without $", "remove the $", context, False
        )
    elif (bare := _get_first_literal(program)).startswith("[") and len(bare) > 1 and bare != "[[":
        yield _make_finding(
            program, f"{bare}: command not found: a blank is missing after [", f"[ {bare[1:]}", context, False
        )
    elif UNKNOWN in name or (functions and name in functions) or name in _BUILTINS or "=" in name:
        return
    elif len(program.words) > 1 and program.words[1] == "=" and not _is_installed(name, program, context):
        yield _make_finding(
            program,
            f"{name}: command not found: there must be no blanks around =",
            f"{name}=...",
            context,
            program.sure,
        )
    elif name in _MAIL_COMMANDS and functions is not None and not _is_installed(name, program, context):
        fix = "install it on the nodes, or let Slurm send it: --mail-type=END,FAIL --mail-user=..."
        yield _make_finding(program, f"{name}: command not found on this machine", fix, context, False)
    elif (
        functions is not None
        and "/" not in name
        and name not in _WELL_KNOWN
        and not _is_installed(name, program, context)
    ):
        near = find_nearest(name, _WELL_KNOWN, 0.79 if len(name) > 4 else 0.85)
        if near:
            certain = program.sure and UNKNOWN not in program.search and near in _LAUNCHERS and is_typo(name, near)
            yield _make_finding(
                program, f"{name}: command not found on this machine", f"did you mean {near}?", context, certain
            )


def _is_assignment_to_value(program: StartedProgram) -> bool:
    assert program.raw is not None
    parts = program.raw.words[0].parts if program.raw.words else ()
    whole = len(parts) > 1 and parts[0][0] == "variable" and parts[1][0] == "text" and parts[1][1].startswith("=")
    return whole and not program.raw.words[0].quoted


def _get_first_literal(program: StartedProgram) -> str:
    assert program.raw is not None
    return (program.raw.words[0].literal or "") if program.raw.words and not program.raw.words[0].quoted else ""


def _is_installed(name: str, program: StartedProgram, context: StaticContext) -> bool:
    known = ":".join(p for p in program.search.split(":") if UNKNOWN not in p)
    paths = f"{known}:{context.environ.get('PATH', '')}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    return shutil.which(name, path=paths) is not None


def _make_finding(program: StartedProgram, message: str, fix: str, context: StaticContext, certain: bool) -> Finding:
    return Finding(
        severity=Severity.ERROR if certain else Severity.WARNING,
        message=message,
        file=context.script,
        line=program.line,
        fix=fix,
        category="syntax_error",
    )


# Variables that a node, a module or a launcher may set without the script.
_SET_ELSEWHERE = re.compile(r"SLURM|CUDA|NCCL|OMPI|PMI|CONDA|LMOD|MODULE|XDG|SSH|LC_|LD_|BASH|PWD|HOME|USER|TMP")


def _check_variables(started: Sequence[StartedProgram], text: str, context: StaticContext) -> Iterator[Finding]:
    """Find `$LEARNIGN_RATE` if the script sets LEARNING_RATE and nothing sets the misspelt name."""
    names = set(re.findall(r"(?:^|[\s;(\"'`{])([A-Za-z_]\w*)\+?=", text, re.M))
    named = names | set(re.findall(r"\b(?:read|for|mapfile|readarray|getopts|unset)\b[^\n;|]*", text))
    everything = " ".join(named - names)
    reported: set[str] = set()
    for one in started:
        for word in one.raw.words if one.raw is not None else ():
            for kind, name, default in word.parts:
                if (
                    kind != "variable"
                    or default
                    or len(name) < 4
                    or name in names | reported
                    or name in context.environ
                ):
                    continue
                if _SET_ELSEWHERE.match(name) or re.search(rf"\b{name}\b", everything):
                    continue
                near = find_nearest(name, (n for n in names if len(n) > 3 and _is_only_misspelt(n, name)), 0.85)
                if near and text.count(name) == 1:
                    reported.add(name)
                    yield _make_finding(one, f"${name} is never set", f"did you mean ${near}?", context, False)


def _is_only_misspelt(one: str, other: str) -> bool:
    """Return whether one name is a misspelling of the other. MODEL_1 and MODEL_2, or NODE and NODES, are not."""
    plain = [re.sub(r"\d+", "", n).lower() for n in (one, other)]
    return plain[0] != plain[1] and not plain[0].startswith(plain[1]) and not plain[1].startswith(plain[0])


def _run_shellcheck(text: str, context: StaticContext, reported: set[int]) -> Iterator[Finding]:
    """Yield shellcheck's findings with the codes above; none if it is not installed or no time is left."""
    if (
        context.left() < 0.4
        or shutil.which("shellcheck", path=context.environ.get("PATH")) is None
        or len(text) > 50_000
    ):
        return
    argv = ["shellcheck", "--norc", "-s", "bash", "-f", "json", f"--include={','.join(_CODES)}", "-"]
    answer = context.run(argv, timeout_s=min(0.8, context.left() - 0.1), stdin=os.fsencode(text))
    try:
        reported_rows = json.loads(answer.stdout or b"[]")
        rows = [(int(row["line"]), int(row["code"]), str(row["message"])) for row in reported_rows]
    except (ValueError, KeyError, TypeError):
        return
    for line, code, message in rows:
        if line in reported or f"SC{code}" not in _CODES:
            continue
        reported.add(line)
        yield Finding(
            severity=Severity.WARNING,
            message=f"shellcheck: {message}",
            file=context.script,
            line=line,
            fix=f"see https://www.shellcheck.net/wiki/SC{code}",
            category="syntax_error",
        )
