"""List what a batch script starts: its commands, and the entry points of those that start Python.

Programs that the script itself contains (`python - <<EOF`, `python -c`, `bash -c`) are included. With `read`, the
commands of shell scripts that it starts are included as well. What cannot be known without running the script is left
out, or is not `certain`. Pure but for what started_program.py looks up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from slurmwrap.fast_dataclasses import replace
from slurmwrap.prerun.static.command_wrappers import (
    CONDAS,
    HARMLESS,
    OWN_ENVIRONMENT,
    PYTHON,
    get_inline_python,
    get_inline_shell,
    is_installing,
    unwrap_command,
)
from slurmwrap.prerun.static.container_calls import BoundPath, find_container_view, find_runtime, map_to_host
from slurmwrap.prerun.static.search_path import apply_search_path_change, make_search_path
from slurmwrap.prerun.static.shell_parser import parse_commands
from slurmwrap.prerun.static.shell_words import UNKNOWN, Guess, RawCommand, RawWord, expand, split_shell_assignment
from slurmwrap.prerun.static.started_program import (
    EntryPoint,
    StartedProgram,
    join_paths,
    make_file_entry,
    parse_program,
)

SUBMIT_DIR = "SLURM_SUBMIT_DIR"
# Path -> text of a shell script; None if it cannot be read.
Read = Callable[[str], "str | None"]


def list_started_programs(
    script_text: str,
    chdir: str,
    args: Sequence[str],
    environ: Mapping[str, str] | None = None,
    read: Read | None = None,
) -> tuple[StartedProgram, ...]:
    """Return all commands of a shell script in order. The arguments are those of `list_entry_points`."""
    return tuple(_CommandWalk(chdir, tuple(args), environ or {}, read).commands(script_text))


def compute_variables_after(
    script_text: str, chdir: str | None, args: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return `environ` as the script leaves it, as far as that is known without running it."""
    walk = _CommandWalk(chdir, tuple(args), environ or {}, None)
    for _ in walk.commands(script_text):
        pass
    return {name: value for name, value in walk.variables.items() if value is not None and UNKNOWN not in value}


def list_entry_points(
    script_text: str,
    chdir: str,
    args: Sequence[str],
    environ: Mapping[str, str] | None = None,
    read: Read | None = None,
) -> tuple[EntryPoint, ...]:
    """Return the entry points of a shell script that runs in `chdir` with `args`, in order.

    `environ`: the variables that sbatch will pass on, and SLURM_SUBMIT_DIR if it is known (sbatch sets it to its own
    working directory). With `read`, shell scripts that the script starts are followed as well.
    """
    return tuple(one.entry for one in list_started_programs(script_text, chdir, args, environ, read) if one.entry)


# How many levels of scripts that start scripts are followed.
_DEPTH = 4


class _CommandWalk:
    """Walks the commands and tracks what is known: variables, directory, whether files may have been created."""

    def __init__(
        self, chdir: str | None, args: tuple[str, ...], environ: Mapping[str, str | None], read: Read | None
    ) -> None:
        self.cwd: str | None = chdir
        self.args: tuple[str, ...] | None = args
        self.own_args: tuple[str, ...] | None = args
        self.variables: dict[str, str | None] = {
            k: v for k, v in environ.items() if not k.startswith("SLURM_") or k == SUBMIT_DIR
        }
        self.variables["PWD"] = chdir
        self.variables.setdefault("PYTHONPATH", "")
        self.read = read
        self.files_known = True
        self.installs = False
        self.depth = 0
        self.before = ""
        self.file = ""
        self.devices: str | None = None
        # The command that started this script is certain to run.
        self.surely = True

    def commands(self, script_text: str) -> Iterator[StartedProgram]:
        """Yield the commands of a script in order, and update what is known after each of them."""
        for command in parse_commands(script_text):
            self.args = None if command.in_function else self.own_args
            words, local = self._assign(command)
            if not words:
                continue
            name = os.path.basename(words[0])
            self.before = self.cwd or ""
            if name in ("cd", "pushd", "popd"):
                self._change_directory(words, command.sure)
            before = {key: self.variables.get(key) for key in local}
            self.variables.update(local)
            yield from self._list_started(words, command)
            self.variables.update(before)
            apply_search_path_change(words, self.variables, cwd=self.cwd, sure=command.sure and self.surely)
            ends = command.sure and name in ("exit", "exec") and len(words) > (name == "exec")
            if ends:
                return
            if name == "shift" or words[:2] == ["set", "--"]:
                self.own_args = None
            self.installs = self.installs or is_installing(words)

    def _list_started(self, words: list[str], command: RawCommand) -> Iterator[StartedProgram]:
        found = self._make_entry(words, command)
        rest, contained = unwrap_command(words)
        bound, workdir = self._find_view(words) if contained else ((), "")
        reads = tuple(text for word in command.reads for text in expand(word, self.variables, self.args))
        yield StartedProgram(
            words=tuple(rest),
            reads=reads,
            cwd=self.cwd or "",
            entry=found,
            line=command.line,
            sure=command.sure and self.surely,
            search=make_search_path(self.variables.get("PATH")),
            contained=contained,
            before=self.before,
            raw=command,
            targets=tuple(_join_word(expand(t.word, self.variables, self.args)) for t in command.targets),
            inner=self.depth > 0,
            whole=tuple(words),
            runtime=find_runtime(words) if contained else "",
            bound=bound,
            workdir=workdir,
        )
        yield from self._list_inner(rest, contained, found, command)
        name = os.path.basename(words[0])
        self.files_known = self.files_known and not command.writes and (found is not None or name in HARMLESS)

    def _list_inner(
        self, rest: list[str], contained: bool, found: EntryPoint | None, command: RawCommand
    ) -> Iterator[StartedProgram]:
        """Yield the commands of a script that this command starts: `bash -c "..."` and, with `read`, `bash run.sh`."""
        if self.depth >= _DEPTH or self.read is None:
            return
        file = ""
        if found is not None and found.kind == "shell":
            text, args, file = (None if found.contained else self.read(found.path)), found.argv, found.path
        else:
            text, args = get_inline_shell(rest)
        if text is None:
            return
        bound, workdir = self._find_view(self._expand(command)) if contained else ((), "")
        inner = _CommandWalk(workdir or self.cwd, tuple(args), self.variables, self.read)
        inner.depth, inner.files_known, inner.installs = self.depth + 1, self.files_known, self.installs
        inner.devices, inner.file = self.devices, file or self.file
        inner.surely = self.surely and command.sure and not contained
        first = next((w.line for w in command.words if expand(w, self.variables, self.args) == (text,)), command.line)
        for one in inner.commands(text):
            entry = one.entry and _move_to_host(one.entry, bound)
            entry = entry and _place_in_outer_script(entry, first, bool(file), contained)
            moved = one.line if file else first + one.line - 1
            runtime = one.runtime or (find_runtime(self._expand(command)) if contained else "")
            yield replace(
                one,
                entry=entry,
                line=moved,
                contained=contained or one.contained,
                raw=None,
                runtime=runtime,
                bound=one.bound or bound,
                inside=contained or one.inside,
            )
        self.files_known = inner.files_known

    def _assign(self, command: RawCommand) -> tuple[list[str], dict[str, str | None]]:
        """Apply leading and exported assignments to the variables.

        Return the remaining words, and the assignments for this command alone (`PYTHONPATH=. python x.py`).
        """
        words = list(command.words)
        name = words[0].literal
        if name in ("export", "declare", "local", "readonly", "typeset"):
            words = words[1:]
            while words and (words[0].literal or "").startswith("-"):
                words = words[1:]
        taken, found = 0, dict[str, str | None]()
        while taken < len(words) and (pair := split_shell_assignment(words[taken])):
            known = _evaluate_word(pair[1], {**self.variables, **found} if found else self.variables, self.args)
            found[pair[0]] = known if command.sure and self.surely else None
            taken += 1
        exported = name in ("export", "declare", "local", "readonly", "typeset")
        rest = [] if exported else [text for word in words[taken:] for text in self._expand_word(word)]
        if "CUDA_VISIBLE_DEVICES" in found:
            self.devices = found["CUDA_VISIBLE_DEVICES"]
        if not rest:
            self.variables.update(found)
            return ([name] if exported and name else []), {}
        return rest, found

    def _expand_word(self, word: RawWord) -> tuple[str, ...]:
        return expand(word, self.variables, self.args)

    def _change_directory(self, words: list[str], sure: bool) -> None:
        target = words[1] if len(words) == 2 and words[0] == "cd" else UNKNOWN
        known = sure and self.cwd is not None and UNKNOWN not in target and not isinstance(target, Guess)
        self.cwd = join_paths(self.cwd, target) if known and target != "-" else None
        self.variables["PWD"] = self.cwd

    def _make_entry(self, words: list[str], command: RawCommand) -> EntryPoint | None:
        rest, contained = unwrap_command(words)
        bound, workdir = self._find_view(words) if contained else ((), "")
        moved = map_to_host(workdir, bound) if workdir else ""
        found = parse_program(rest, moved or self.cwd) or self._make_given_entry(rest, command)
        if found is None:
            return None
        found = replace(found, bound=bool(moved and _is_below(found.path, moved)))
        found = _move_to_host(found, bound)
        sure = command.sure and not contained and self.files_known and self.cwd is not None and self.surely
        # After `||` the script itself handles a failure, so the program need not succeed.
        sure = sure and command.then != "||"
        return replace(
            found,
            line=command.line,
            certain=sure and found.certain,
            cwd=self.cwd or "",
            argv=tuple(UNKNOWN if "{}" in w or w == ":::" else w for w in found.argv)
            + ((UNKNOWN,) if words[0] == "xargs" else ()),
            contained=contained,
            search=self._search(words, contained),
            modules=self.variables.get("PYTHONPATH", "") or ("" if self._is_unset("PYTHONPATH") else UNKNOWN),
            installs=self.installs,
            whole=tuple(words),
            devices=self.devices,
            file=self.file,
        )

    def _expand(self, command: RawCommand) -> list[str]:
        return [text for word in command.words for text in self._expand_word(word)]

    def _find_view(self, words: Sequence[str]) -> tuple[tuple[BoundPath, ...], str]:
        return find_container_view(words, self.cwd or UNKNOWN, self.variables)

    def _is_unset(self, name: str) -> bool:
        return name not in self.variables or self.variables[name] == ""

    def _search(self, words: list[str], contained: bool) -> str:
        """Return PATH in the program's own environment."""
        known = make_search_path(self.variables.get("PATH"))
        for at, word in enumerate(words):
            name = os.path.basename(word)
            if name in OWN_ENVIRONMENT and words[at + 1 : at + 2] == ["run"]:
                return UNKNOWN
            if name in CONDAS and words[at + 1 : at + 2] == ["run"]:
                pairs = zip(words[at:], words[at + 1 :], strict=False)
                chosen = next((value for option, value in pairs if option in ("-n", "-p", "--name", "--prefix")), None)
                return make_search_path(known, conda=chosen)
        return UNKNOWN if contained else known

    def _make_given_entry(self, rest: list[str], command: RawCommand) -> EntryPoint | None:
        """Return a program that the script itself contains or passes on standard input."""
        if not rest or not PYTHON.fullmatch(os.path.basename(rest[0])):
            return None
        at, code = get_inline_python(rest)
        if code is not None:
            line = next((w.line for w in command.words if self._expand_word(w) == (code,)), command.line)
            argv = tuple(rest[at:])
            return EntryPoint(
                kind="python", path="", argv=argv, line=0, interpreter=rest[0], code=code, code_line=line, certain=False
            )
        if at < 0 or command.feeds:
            return None
        stdin = command.stdin
        here = stdin.heredoc if stdin is not None else None
        if here is not None and here.ended and (here.quoted or not set("$`\\") & set(here.body)):
            argv = tuple(rest[at:])
            return EntryPoint(
                kind="python", path="", argv=argv, line=0, interpreter=rest[0], code=here.body, code_line=here.line
            )
        if stdin is None or stdin.operator != "<" or stdin.word.is_process:
            return None
        reads = self._expand_word(stdin.word)
        if len(reads) == 1:
            return make_file_entry("python", [reads[0], *rest[at:]], self.cwd, rest[0])
        return None


def _move_to_host(entry: EntryPoint, bound: Sequence[BoundPath]) -> EntryPoint:
    """Return the entry point with the host's path of a file that a container has by a bound directory."""
    mapped = map_to_host(entry.path, bound) if entry.path and UNKNOWN not in entry.path else ""
    return replace(entry, path=mapped, bound=True) if mapped and UNKNOWN not in mapped else entry


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _join_word(words: Sequence[str]) -> str:
    """Join the parts of a redirection's target to one word, which is a Guess if a part of it is one."""
    kind = Guess if any(isinstance(word, Guess) for word in words) else str
    return kind("".join(words))


def _evaluate_word(word: RawWord, variables: Mapping[str, str | None], args: tuple[str, ...] | None) -> str | None:
    """Return the assigned value, with UNKNOWN for the parts that are not known; None if no part is known."""
    value = expand(word, variables, args)
    return value[0] if len(value) == 1 and value[0] != UNKNOWN else None


def _place_in_outer_script(entry: EntryPoint, first: int, in_file: bool, contained: bool) -> EntryPoint:
    """Return an entry point of an inner script with the lines and restrictions that it has in the outer one."""
    moved = {} if in_file else {"line": first + entry.line - 1, "code_line": first + entry.code_line - 1}
    search = UNKNOWN if contained else entry.search
    return replace(entry, contained=contained or entry.contained, search=search, **moved)  # type: ignore[arg-type]
