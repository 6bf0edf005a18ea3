"""Find what a batch script's own lines would write to the user's files, and make a copy that writes elsewhere. Pure.

This is needed if no overlay covers these files. There are three measures in turn. Writes that are certain are found
here before anything starts. Redirections go to the trial's own directory in a copy of the script. For what only the
running shell knows there are the shims of rm, cp, mv, ... (touch_shim.py). Programs that are not Python and write files
by themselves are reported here, because nothing can redirect them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.isolation.file_effects import (
    ENVIRONMENT,
    REMOVERS,
    SHIMMED,
    UNKNOWN,
    find_changed_paths,
    make_absolute,
)
from slurmwrap.prerun.static.entry_points import Read, list_started_programs
from slurmwrap.prerun.static.shell_parser import parse_commands, parse_substitutions
from slurmwrap.prerun.static.shell_words import Redirection
from slurmwrap.prerun.static.started_program import StartedProgram

_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh", "mksh"})
# Programs that compute and write files, for which there is neither a shim nor a guard.
_UNGUARDED = frozenset({"julia", "Rscript", "R", "matlab", "octave", "gmx", "lmp", "vasp_std"})
_DESCRIPTOR = re.compile(r"\d+-?|-")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWrite:
    """A line that would create, change or remove a file of the user."""

    path: str  # absolute path; "" if only the running shell knows it
    line: int  # line of the batch script; 0 if the write was refused in the running trial
    command: str  # name of the command; ">" for a redirection

    def __str__(self) -> str:
        where = f"line {self.line}: {self.command}" if self.line else self.command
        return f"{self.path or 'files that are not known before it runs'} ({where})"


def find_touched_files(
    script_text: str,
    chdir: str,
    args: Sequence[str],
    environ: Mapping[str, str],
    *,
    is_free: Callable[[str], bool],
    exists: Callable[[str], bool] = lambda path: True,
    read: Read | None = None,
    covered: bool = False,
) -> tuple[FileWrite, ...]:
    """Return the certain writes to files that are not free, in order, up to the first program that may train.

    `is_free(path)`: whether the path is scratch or covered by an overlay. `exists`: used because removing a missing
    file is no write. `covered`: all directories of the job are covered, so redirections to unknown paths are harmless.
    For a script that is not a shell script, return ().
    """
    if not is_shell(script_text):
        return ()
    found: list[FileWrite] = []
    for one in list_started_programs(script_text, chdir, args, environ, read):
        found += _list_writes(one, is_free, exists) + _list_inner_redirections(one, is_free)
        if one.entry is not None and one.entry.kind != "shell":
            break
    found += _list_substitution_redirections(script_text, chdir, is_free)
    return tuple(dict.fromkeys(one for one in found if not (covered and one.command == ">" and not one.path)))


# Containers of these runtimes have the user's directories at the paths of the host, and writable.
_SHOWS_HOME = ("apptainer", "shifter", "sarus")


def _list_inner_redirections(program: StartedProgram, is_free: Callable[[str], bool]) -> list[FileWrite]:
    """Return the redirections of other scripts and of `bash -c`, of which no copy is made."""
    if not program.inner or (program.contained and program.runtime not in _SHOWS_HOME):
        return []
    files = (word for word in program.targets if not _DESCRIPTOR.fullmatch(word) and not word.startswith("/dev/"))
    paths = [make_absolute(word, program.cwd) for word in files]
    known = [path if UNKNOWN not in path else "" for path in paths]
    return [FileWrite(path=path, line=0, command=">") for path in known if not path or not is_free(path)]


def _list_substitution_redirections(script_text: str, chdir: str, is_free: Callable[[str], bool]) -> list[FileWrite]:
    """Return the redirections inside $(...) and the like, which redirect_script leaves as they are."""
    found = []
    for command in parse_substitutions(script_text):
        for target in command.targets:
            word = target.word.literal
            path = make_absolute(word, chdir) if word is not None else ""
            if _is_file(target) and not (path and is_free(path)):
                found.append(FileWrite(path=path, line=command.line, command=">"))
    return found


def _list_writes(
    program: StartedProgram, is_free: Callable[[str], bool], exists: Callable[[str], bool]
) -> list[FileWrite]:
    if program.contained or not program.words:
        return []
    word = program.words[0]
    name = os.path.basename(word)  # noqa: PTH119
    if name in _UNGUARDED and program.sure:
        return [FileWrite(path="", line=program.line, command=name)]
    if not (program.sure or "/" in word) or (word == name and name not in SHIMMED):
        return []
    # chmod is left to its shim, which checks whether it would change anything.
    paths = find_changed_paths(program.words, program.cwd) if name != "chmod" else ()
    known = [path for path in paths if UNKNOWN not in path and not set("*?[") & set(path) and path != ENVIRONMENT]
    touched = [p for p in known if not is_free(p) and (name not in REMOVERS or exists(p))]
    # A command that is called by its path, such as /bin/rm, does not reach its shim.
    if "/" in word and len(known) < len(paths):
        touched.append("")
    if ENVIRONMENT in paths and not is_free(ENVIRONMENT):
        touched.append(ENVIRONMENT)
    return [FileWrite(path=path, line=0 if program.inner else program.line, command=name) for path in touched]


def is_shell(script_text: str) -> bool:
    """Return whether the #! line names a shell whose grammar the parser supports."""
    first = script_text.partition("\n")[0]
    names = [os.path.basename(word) for word in first[2:].split()] if first.startswith("#!") else []  # noqa: PTH119
    return bool(_SHELLS & set(names[:1] if names[:1] != ["env"] else names[1:]))


def redirect_script(script_text: str, redirect: str) -> str:
    """Return a copy of the script whose redirections go to the paths that the program `redirect` prints at run time.

    Each target W becomes "$(redirect OPERATOR W)". Line numbers do not change, so $LINENO and messages remain correct.
    Not changed are descriptors, /dev/..., targets that span two lines, and scripts in other languages.
    """
    if not is_shell(script_text):
        return script_text
    targets = [t for command in parse_commands(script_text) for t in command.targets if _is_file(t)]
    text = script_text
    for target in sorted(targets, key=lambda t: t.start, reverse=True):
        word = text[target.start : target.end]
        asked = f'"$({shlex.quote(redirect)} {shlex.quote(target.operator)} {word})"'
        text = text[: target.start] + asked + text[target.end :]
    return text


def _is_file(target: Redirection) -> bool:
    literal = target.word.literal
    if literal is not None and (literal.startswith("/dev/") or literal == "" or _DESCRIPTOR.fullmatch(literal)):
        return False
    return not (target.operator == ">&" and literal is None) and not _has_line_break(target)


def _has_line_break(target: Redirection) -> bool:
    return any("\n" in part[1] for part in target.word.parts)


def list_files_read_back(
    script_text: str, chdir: str, args: Sequence[str], environ: Mapping[str, str]
) -> tuple[FileWrite, ...]:
    """Return the files that the script redirects to and that one of its later commands reads or names.

    Such a command would not find them in a trial, which writes them elsewhere.
    """
    if not is_shell(script_text):
        return ()
    written: dict[str, FileWrite] = {}
    found = []
    for one in list_started_programs(script_text, chdir, args, environ):
        named = {make_absolute(word, one.cwd) for word in (*one.words[1:], *one.reads)} - {UNKNOWN}
        found += [written[path] for path in sorted(named & set(written))]
        for target in one.targets:
            path = make_absolute(target, one.cwd)
            if UNKNOWN not in path and not path.startswith("/dev/"):
                written.setdefault(path, FileWrite(path=path, line=one.line, command=">"))
    return tuple(dict.fromkeys(found))


def list_programs(script_text: str, chdir: str, args: Sequence[str], environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of all programs that the script starts, including wrappers such as srun and env."""
    if not is_shell(script_text):
        return frozenset()
    words = (
        word
        for one in list_started_programs(script_text, chdir, args, environ)
        for word in (*one.words[:1], *(w.literal or "" for w in (one.raw.words if one.raw else ())[:4]))
    )
    return frozenset(os.path.basename(word) for word in words if word and UNKNOWN not in word)  # noqa: PTH119


def make_hint(launch: Sequence[str]) -> str:
    """Return the option that runs the trial without the script's other lines. `launch`: words of the launcher line."""
    line = shlex.join(launch) if launch and not any(UNKNOWN in word for word in launch) else "python train.py ..."
    return f"--prerun-command={shlex.quote(line)}"


def format_touch_reason(touched: Iterable[FileWrite | str]) -> str:
    """Format the reason for the verdict: "would touch /a (line 3: rm), /b (cp)"."""
    shown = [str(one) for one in touched]
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return f"would touch {', '.join(shown[:3])}{more}"
