"""Does a Python program compile: turns a Source into at most one finding, after asking the job's own Python."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.python_source import PythonSource
from slurmwrap.prerun.static.static_context import StaticContext

# Reads a program from standard input and says what its own compile() does; runs nothing of it.
_COMPILE = "import sys; compile(getattr(sys.stdin, 'buffer', sys.stdin).read(), 'program', 'exec', 0, True)"


def check_syntax(
    source: PythonSource, python: str | None, desk: StaticContext, *, may_err: bool = True
) -> Iterator[Finding]:
    """`python`: path of the interpreter that will run it, None when that is not known."""
    if source.error is None:
        return
    second = ask_job_interpreter(source, python, desk)
    if second is False:
        return  # a newer or older Python than ours, and it takes the file
    error, line = source.error, source.line + (source.error.lineno or 0)
    certain = may_err and (second or is_error_in_every_version(error))
    shown = f": {error.text.strip()}" if error.text else ""
    yield Finding(
        severity=Severity.ERROR if certain else Severity.WARNING,
        message=f"{type(error).__name__}: {error.msg}{shown}",
        file=source.path,
        line=line,
        fix=f"fix line {line}",
        category="syntax_error",
    )


def ask_job_interpreter(source: PythonSource, python: str | None, desk: StaticContext) -> bool | None:
    """True: the job's own interpreter refuses the text as well; False: it takes it; None: it cannot be asked."""
    if python is None or desk.left() <= 0.1:
        return None
    if Path(python).resolve() == Path(sys.executable).resolve():
        return True
    argv = [python, "-I", "-S", "-W", "ignore", "-c", _COMPILE]
    answer = desk.run(argv, timeout_s=min(1.0, desk.left()), stdin=source.content)
    if answer.exit_code == 0:
        return False
    return True if b"Error" in answer.stderr and answer.exit_code == 1 else None


def is_error_in_every_version(error: SyntaxError) -> bool:
    """Later Pythons allow more inside f-strings, and print was a statement once; a lost bracket is lost everywhere."""
    if isinstance(error, IndentationError):
        return True
    return bool(re.search(r"was never closed|^unmatched|does not match opening|^unterminated string", error.msg or ""))
