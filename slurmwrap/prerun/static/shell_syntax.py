"""Does a shell script parse: asks its own shell with -n, and looks for line ends that no shell takes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.static_context import StaticContext

_SHELLS = ("bash", "sh", "dash", "ksh", "zsh")


def find_shell(text: str) -> str | None:
    """The shell of the #! line, None when it is none we know."""
    words = text.partition("\n")[0].removeprefix("#!").split()
    words = [w for w in words if os.path.basename(w) != "env" and w != "-S"]  # noqa: PTH119
    name = os.path.basename(words[0]) if text.startswith("#!") and words else ""  # noqa: PTH119
    return name if name in _SHELLS else None


def check_shell_syntax(content: bytes, shell: str, name: str, desk: StaticContext) -> Iterator[Finding]:
    """At most one finding: what the shell says first."""
    if b"\r\n" in content[: 1 << 20]:
        yield make_dos_line_end_finding(content, name, refused=name == desk.script)
        return
    if desk.left() <= 0.1:
        return
    # Patterns like !(x) parse only when extglob is on, and `-n` does not run the `shopt` that turns it on.
    options = ["-O", "extglob"] if shell == "bash" and b"extglob" in content else []
    answer = desk.run([shell, *options, "-n"], timeout_s=min(1.0, desk.left()), stdin=content)
    said = answer.stderr.decode("utf-8", "replace")
    if answer.missing or answer.exit_code is None or not said:
        return
    found = re.search(r"^\S*?: (?:line )?(\d+): (?:[Ss]yntax error: )?(.*)$", said, re.M)
    failed = answer.exit_code != 0
    swallowed = None if failed else _find_indented_delimiter(said, content)
    if swallowed:
        yield Finding(
            severity=Severity.ERROR,
            message="the here-document does not end: its delimiter is not alone at the beginning of the line",
            file=name,
            line=swallowed,
            fix="remove the blanks around the delimiter, or begin with <<- and indent by tabs",
            category="syntax_error",
        )
        return
    yield Finding(
        severity=Severity.ERROR if failed and found else Severity.WARNING,
        message=f"shell syntax: {found[2] if found else said.splitlines()[0]}",
        file=name,
        line=int(found[1]) if found else 0,
        fix=f"{shell} -n {name} shows it",
        category="syntax_error" if failed else "",
    )


def _find_indented_delimiter(said: str, content: bytes) -> int:
    """The line on which a here-document that swallowed the rest of the script should have ended, or 0."""
    found = re.search(r"here-document at line (\d+) delimited by end-of-file \(wanted [`'](.+)'\)", said)
    if found is None:
        return 0
    lines = content.decode("utf-8", "replace").split("\n")
    after = enumerate(lines[int(found[1]) :], int(found[1]) + 1)
    return next((number for number, line in after if line.strip() == found[2]), 0)


def make_dos_line_end_finding(content: bytes, name: str, *, refused: bool) -> Finding:
    """sbatch refuses a batch script with DOS line ends; another script fails on the \\r at the end of each word."""
    return Finding(
        severity=Severity.ERROR if refused else Severity.WARNING,
        message="DOS line ends (\\r\\n): "
        + ("sbatch refuses the script" if refused else "the shell takes \\r as a letter"),
        file=name,
        line=content[: content.index(b"\r\n")].count(b"\n") + 1,
        fix=f"sed -i 's/\\r$//' {name}",
        category="syntax_error",
    )
