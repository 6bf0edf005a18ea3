"""The static stage: turns a JobRequest into findings, in two seconds at most, without running anything of the user's.

Edge by argument: `run` (host.command.run) starts `bash -n` and, for a second opinion, the job's own interpreter. Reads
the files that the script names. An ERROR is certain; whatever might be different on a node is a WARNING.
"""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slurmwrap.job.request import JobRequest
from slurmwrap.prerun.entry import EntryPoint, entry_points
from slurmwrap.prerun.inputs import missing_paths
from slurmwrap.prerun.shell import UNKNOWN
from slurmwrap.prerun.verdict import Finding, Severity

BUDGET_S = 2.0
_CODE_CAP = 4 << 20  # bytes; nobody wrote a longer file by hand
_SHELLS = ("bash", "sh", "dash", "ksh", "zsh")
# Places that a node has for itself: what is missing on the login node may be there.
NODE_LOCAL = ("/tmp/", "/var/tmp/", "/dev/", "/run/", "/proc/", "/local", "/scratch/local", "/raid/", "/mnt/local")


class Answer(Protocol):
    """What `run` returns: host.command.CommandResult."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def missing(self) -> bool: ...


class Run(Protocol):
    """host.command.run."""

    def __call__(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes | None = None) -> Answer: ...


def check(
    request: JobRequest,
    *,
    run: Run,
    environ: Mapping[str, str] = os.environ,
    node_local: tuple[str, ...] = NODE_LOCAL,
) -> tuple[Finding, ...]:
    """All findings, errors first. `environ` is what sbatch will pass on to the job.

    Below `node_local` a node may hold what the login node does not, so nothing there is an error.
    """
    text = request.script.content.decode("utf-8", "surrogateescape")  # as the file system spells names
    name = request.script.path or request.script.name
    desk = _Desk(script=name, run=run, environ=environ, node_local=node_local, deadline=time.monotonic() + BUDGET_S)
    shell = _shell_of(text)
    findings: list[Finding] = []
    if shell:
        findings += _shell_syntax(request.script.content, shell, name, run)
        for entry in _distinct(entry_points(text, request.chdir, request.args, environ)):
            findings += _entry(entry, desk)
    elif re.match(r"#!\S*(/env\s+|/)python", text):
        findings += _compiled(request.script.content, name, _interpreter_of(text), desk)
    return tuple(sorted(dict.fromkeys(findings), key=lambda f: f.severity is not Severity.ERROR))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desk:
    """What every part of the check is handed."""

    script: str
    run: Run
    environ: Mapping[str, str]
    node_local: tuple[str, ...]
    deadline: float  # time.monotonic()

    def severity(self, entry: EntryPoint) -> Severity:
        certain = entry.certain and not entry.path.startswith(self.node_local)
        return Severity.ERROR if certain else Severity.WARNING


def _entry(entry: EntryPoint, desk: _Desk) -> Iterator[Finding]:
    """One entry point: the file is there, can be read and compiles; the paths it is given exist."""
    if entry.path:
        yield from _program(entry, Path(entry.path), desk)
    for option, path in missing_paths(entry.argv, entry.cwd):
        if entry.certain and not path.startswith(desk.node_local):
            yield Finding(
                severity=Severity.WARNING,
                message=f"{option} {path}: no such file or directory".strip(),
                file=desk.script,
                line=entry.line,
                fix=f"correct the path{_suggestion(path)}, or ignore this if the job makes it",
                category="incorrect_inputs",
            )


def _program(entry: EntryPoint, path: Path, desk: _Desk) -> Iterator[Finding]:
    if not path.exists() or (path.is_dir() and not (path / "__main__.py").exists()):
        yield _no_file(entry, desk)
    elif not os.access(path, os.R_OK):
        yield Finding(
            severity=desk.severity(entry),
            message=f"{path} cannot be read by you",
            file=desk.script,
            line=entry.line,
            fix=f"chmod u+r {path}, or ask its owner",
            category="permission_error",
        )
    elif path.is_file() and entry.kind == "shell":
        content = _head(path)
        shell = _shell_of(content.decode("utf-8", "replace")) or "sh"
        yield from _shell_syntax(content, shell, entry.path, desk.run)
    elif path.is_file():
        yield from _compiled(_head(path), entry.path, entry.interpreter, desk)


def _distinct(entries: Sequence[EntryPoint]) -> Iterator[EntryPoint]:
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for entry in entries:
        if (entry.path, entry.argv) not in seen:
            seen.add((entry.path, entry.argv))
            yield entry


def _no_file(entry: EntryPoint, desk: _Desk) -> Finding:
    return Finding(
        severity=desk.severity(entry),
        message=f"{entry.path}: no such file (started by {entry.kind})",
        file=desk.script,
        line=entry.line,
        fix=f"correct the path{_suggestion(entry.path)}",
        category="incorrect_inputs",
    )


def _suggestion(path: str) -> str:
    """`; did you mean ...?` when a file of nearly this name is in the same directory or one beside it."""
    import difflib

    wanted, parent = Path(path), Path(path).parent
    try:
        beside = [p for p in (parent, parent.parent) if p.is_dir()]
        here = [entry.path for folder in beside[:1] for entry in os.scandir(folder)][:2000]
        below = [str(p) for folder in beside for p in sorted(folder.glob(f"*/{wanted.name}"))[:3]]
    except OSError:
        return ""
    names = difflib.get_close_matches(wanted.name, [os.path.basename(p) for p in here], n=1)  # noqa: PTH119
    found = below[0] if below else str(parent / names[0]) if names else ""
    return f"; did you mean {found}?" if found else ""


def _shell_of(text: str) -> str | None:
    """The shell of the #! line, None when it is none we know."""
    words = text.partition("\n")[0].removeprefix("#!").split()
    words = [w for w in words if os.path.basename(w) != "env" and w != "-S"]  # noqa: PTH119
    name = os.path.basename(words[0]) if text.startswith("#!") and words else ""  # noqa: PTH119
    return name if name in _SHELLS else None


def _interpreter_of(text: str) -> str:
    return text.partition("\n")[0].removeprefix("#!").replace("/usr/bin/env", "").strip().split(" ")[0]


def _shell_syntax(content: bytes, shell: str, name: str, run: Run) -> Iterator[Finding]:
    # Patterns like !(x) parse only when extglob is on, and `-n` does not run the `shopt` that turns it on.
    options = ["-O", "extglob"] if shell == "bash" and b"extglob" in content else []
    answer = run([shell, *options, "-n"], timeout_s=1.0, stdin=content)
    said = answer.stderr.decode("utf-8", "replace")
    if answer.missing or answer.exit_code is None or not said:
        return
    found = re.search(r"^\S*?: (?:line )?(\d+): (?:[Ss]yntax error: )?(.*)$", said, re.M)
    failed = answer.exit_code != 0
    yield Finding(
        severity=Severity.ERROR if failed and found else Severity.WARNING,
        message=f"shell syntax: {found[2] if found else said.splitlines()[0]}",
        file=name,
        line=int(found[1]) if found else 0,
        fix=f"{shell} -n {name} shows it",
        category="syntax_error" if failed else "",
    )


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(_CODE_CAP + 1)
    except OSError:
        return b""


def _compiled(content: bytes, path: str, interpreter: str, desk: _Desk) -> Iterator[Finding]:
    error = syntax_error(content, path)
    if error is None:
        return
    second = _second_opinion(path, interpreter, desk)
    if second is False:
        return  # a newer or older Python than ours, and it takes the file
    line = error.lineno or 0
    shown = f": {error.text.strip()}" if error.text else ""
    yield Finding(
        severity=Severity.ERROR if second or _in_every_version(error) else Severity.WARNING,
        message=f"{type(error).__name__}: {error.msg}{shown}",
        file=path,
        line=line,
        fix=f"mend line {line}",
        category="syntax_error",
    )


def syntax_error(content: bytes, path: str) -> SyntaxError | None:
    """What our own Python says when it compiles `content`, as py_compile would; nothing is written."""
    if len(content) > _CODE_CAP:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(content, path, "exec", dont_inherit=True)
        except SyntaxError as error:
            return error
        except (ValueError, RecursionError, MemoryError, OverflowError):
            return None
    return None


def _second_opinion(path: str, interpreter: str, desk: _Desk) -> bool | None:
    """True: the job's own interpreter refuses the file as well; False: it takes it; None: it cannot be asked."""
    import shutil

    found = None if UNKNOWN in interpreter else shutil.which(interpreter or "python3", path=desk.environ.get("PATH"))
    left = desk.deadline - time.monotonic()
    if found is None or left <= 0.1:
        return None
    if Path(found).resolve() == Path(sys.executable).resolve():
        return True
    code = "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec', 0, True)"
    answer = desk.run([found, "-I", "-S", "-W", "ignore", "-c", code, path], timeout_s=left)
    if answer.exit_code == 0:
        return False
    return True if b"Error" in answer.stderr and answer.exit_code == 1 else None


def _in_every_version(error: SyntaxError) -> bool:
    # Later Pythons allow more inside f-strings, and print was a statement once; a lost bracket is lost everywhere.
    if isinstance(error, IndentationError):
        return True
    return bool(re.search(r"was never closed|^unmatched|does not match opening|^unterminated string", error.msg or ""))
