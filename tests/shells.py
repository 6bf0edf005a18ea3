"""Real shells on a pty: type a line, press TAB and read the completed line."""

from __future__ import annotations

import os
import pty
import pwd
import re
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from waiting import allow

from slurmwrap.cli.completion import Shell, render_script
from slurmwrap.cli.slurmwrap import app

_DEADLINE_S = allow(60.0)


def _as(user: str | None) -> dict[str, Any]:
    """Arguments of subprocess for running as that user."""
    account = pwd.getpwnam(user) if user else None
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of TAB: the line, and the completions offered for the word."""

    line: str
    offers: tuple[str, ...]


@dataclass(slots=True)
class Terminal:
    """A program on a pty. `seen` holds all of its output."""

    process: subprocess.Popen[bytes]
    master: int
    seen: bytes = b""
    _looked: int = field(default=0)

    @classmethod
    def start(cls, argv: Sequence[str], env: dict[str, str], cwd: Path, user: str | None = None) -> Terminal:
        master, slave = pty.openpty()
        try:
            process = subprocess.Popen(
                argv, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=cwd, start_new_session=True, close_fds=True,
                **_as(user),
            )  # fmt: skip
        finally:
            os.close(slave)
        return cls(process, master)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, pattern: bytes) -> re.Match[bytes]:
        """Read until the new output contains the pattern; on timeout fail and show that output."""
        deadline = time.monotonic() + _DEADLINE_S
        while not (found := re.compile(pattern, re.DOTALL).search(self.seen, self._looked)):
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern!r} did not come: {self.seen[self._looked :]!r}"
            if select.select([self.master], [], [], min(left, 1.0))[0]:
                with suppress(OSError):
                    self.seen += os.read(self.master, 65536)
        self._looked = found.end()
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


_BASH = r"""
PS1='[[''>'; bind 'set enable-bracketed-paste off'; bind 'set bell-style none'; bind 'set completion-query-items 0'
bind 'set page-completions off'
__probe() { "$__real" "$@"; __offers=("${COMPREPLY[@]}"); }
__dump() {
    printf '%s\0' "$READLINE_LINE" "${__offers[@]}" >"$PROBE"
    READLINE_LINE= __offers=()
    echo 'PRO''BED'
}
bind -x '"\C-x\C-d": __dump'
"""

_ZSH = r"""
PS1='[[''>' PS2= RPS1=; unsetopt zle_bracketed_paste beep 2>/dev/null; unset zle_bracketed_paste
zstyle ':completion:*' completer _complete
LISTMAX=10000; setopt no_always_last_prompt
compadd() {
    if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi
    local -a __hits
    builtin compadd -A __hits "$@"
    __offers+=("${__hits[@]}")
    builtin compadd "$@"
}
typeset -ga __offers
__dump() {
    printf '%s\0' "$BUFFER" "${__offers[@]}" >"$PROBE"
    BUFFER= __offers=()
    zle -I
    print 'PRO''BED'
}
zle -N __dump; bindkey '^X^D' __dump; bindkey '^I' complete-word
"""


class TypedShell:
    """bash or zsh on a pty, with the completion script loaded."""

    def __init__(
        self, shell: str, script: Path, env: dict[str, str], cwd: Path, scratch: Path, more: str = "",
        user: str | None = None, dump: Path | None = None,
    ) -> None:  # fmt: skip
        """`dump`: zsh's compdump file; shared by several shells, it shortens their start."""
        self._probe = scratch / f"probe-{shell}"
        env = {**env, "PROBE": str(self._probe), "TERM": "dumb", "INPUTRC": "/dev/null", "ZDOTDIR": str(scratch)}
        argv = ["bash", "--norc", "--noprofile", "-i"] if shell == "bash" else ["zsh", "-f", "-i"]
        self.terminal = Terminal.start(argv, env, cwd, user)
        setup = scratch / f"setup-{shell}"
        setup.write_text(self._setup(shell, script, dump or scratch / "zcompdump") + more, encoding="utf-8")
        self.terminal.type(f". {setup}; echo REA''DY\n")
        self.terminal.until(rb"READY.*\[\[>")

    @staticmethod
    def _setup(shell: str, script: Path, dump: Path) -> str:
        if shell == "zsh":
            return f"autoload -Uz compinit; compinit -u -d {dump}; . {script}\n{_ZSH}"
        wrap = (
            "for __one in gsub slurmwrap sbatch; do\n"
            "  __spec=$(complete -p $__one 2>/dev/null) || continue\n"
            "  [[ $__spec =~ -F\\ ([^ ]+) ]] || continue\n"
            '  eval "__probe_$__one() { __real=${BASH_REMATCH[1]} __probe \\"\\$@\\"; }"\n'
            "  complete -F __probe_$__one $__one\n"
            "done\n"
        )
        return f". {script}\n{_BASH}\n{wrap}"

    def run(self, line: str) -> None:
        """Type the line and ENTER, and wait for the next prompt."""
        self.terminal.type(line + "\n")
        self.terminal.until(rb"\[\[>")

    def complete(self, line: str) -> Completed:
        """Type the line and press TAB."""
        self.terminal.type(line + "\t\x18\x04")
        self.terminal.until(rb"PROBED.*\[\[>")
        text, *offers = self._probe.read_text(encoding="utf-8", errors="replace").split("\0")[:-1]
        return Completed(text, tuple(sorted({one for one in offers if one})))

    def close(self) -> None:
        self.terminal.close()


@dataclass(frozen=True, slots=True)
class Fish:
    """fish without a terminal: `complete -C` prints what TAB would offer, with descriptions."""

    script: Path
    env: dict[str, str]
    cwd: Path
    user: str | None = None

    def complete(self, line: str) -> dict[str, str]:
        """Offer → description."""
        return self.complete_all([line])[line]

    def complete_all(self, lines: Sequence[str]) -> dict[str, dict[str, str]]:
        """Line → offer → description, all in one fish."""
        said = self.run("for line in $argv[2..]; complete -C $line; echo \\x1e; end", *lines).split("\x1e\n")[:-1]
        offers = [dict(one.partition("\t")[::2] for one in part.splitlines()) for part in said]
        return dict(zip(lines, offers, strict=True))

    def run(self, code: str, *arguments: str) -> str:
        """Output of fish code; the arguments are `$argv[2..]`."""
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source $argv[1]; {code}", str(self.script), *arguments],
            env=self.env, cwd=self.cwd, capture_output=True, text=True, timeout=_DEADLINE_S, check=False,
            **_as(self.user),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout


# --- fake Slurm programs ----------------------------------------------------------------------------------------------

# sinfo, scontrol, squeue and sacctmgr in one: records its call, and prints the file named after the program and its
# first two words. A file `hang` simulates a controller that does not answer.
STAND_IN = """#!/bin/sh
home=${0%/*} name=${0##*/}
echo "$name $*" >>"$home/asked"
[ ! -e "$home/hang" ] || [ "$1" = --version ] || exec sleep 60
[ -e "$home/$name $1 $2" ] || { echo "slurm_load: Unable to contact slurm controller" >&2; exit 1; }
exec cat "$home/$name $1 $2"
"""
# The command of a completed line; it records its arguments.
RECORDER = """#!/bin/sh
printf '%s\\0' "$@" >"${0%/*}/got"
"""


class Desk:
    """A directory with fake programs for PATH, and a working directory with some files."""

    def __init__(self, home: Path) -> None:
        self.home, self.work = home / "bin", home / "work"
        self.home.mkdir()
        self.work.mkdir()
        for name in ("sinfo", "scontrol", "squeue", "sacctmgr"):
            self.program(name, STAND_IN)
        for name in ("gsub", "sbatch"):
            self.program(name, RECORDER)
        for name in ("train.sbatch", "my data.txt"):
            (self.work / name).touch()
        (self.work / "sub").mkdir()
        self.env = {"PATH": f"{self.home}:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "USER": "somebody"}

    def program(self, name: str, text: str) -> None:
        """Put a fake program on PATH."""
        (self.home / name).write_text(text, encoding="utf-8")
        (self.home / name).chmod(0o755)

    def answers(self, table: dict[str, str], release: str | None = "slurm-wlm 22.05.8") -> None:
        for words, text in {**table, **({"sinfo --version ": release} if release else {})}.items():
            (self.home / words).write_text(text + "\n", encoding="utf-8")

    def asked(self) -> list[str]:
        log = self.home / "asked"
        return log.read_text().splitlines() if log.exists() else []

    def got(self) -> list[str]:
        return (self.home / "got").read_text(encoding="utf-8").split("\0")[:-1]


def completion_script(shell: str, where: Path, sbatch: bool = False, patience_s: float = allow(20)) -> Path:
    """Write the completion script of that shell to a file; skip if the shell is not installed.

    The script waits `patience_s` for Slurm instead of two seconds, and keeps answers for the whole test."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    text = _rendered(shell, sbatch)
    for said, changed in (("--foreground 2 ", f"--foreground {patience_s} "), ("now + 10", "now + 10000")):
        assert said in text
        text = text.replace(said, changed)
    path = where / f"completion.{shell}"
    path.write_text(text, encoding="utf-8")
    return path


@cache
def _rendered(shell: str, sbatch: bool) -> str:
    return render_script(Shell(shell), typer.main.get_command(app), sbatch=sbatch)
