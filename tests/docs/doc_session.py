"""Runs the commands of a page as its reader would: a shell of an ordinary user, a root shell, and a separate lab.

Differences from the reader's machine: the lab is in another directory (passed to `slurmwrap lab`), `sudo COMMAND` runs
in the root shell, and root writes to temporary copies of /etc, /usr, /opt, /root and /var/lib.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from readypython import SLURMWRAP
from realslurm import command_environment, free_base_port, run_as
from waiting import allow

from slurmwrap.errors import LabError
from slurmwrap.lab.lab_directories import LabDirectories, exports
from slurmwrap.lab.lab_state import down

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 90.0
COPIED = ("etc", "usr", "opt", "root", "var/lib", "var/backups")  # root may write to copies of these
_SLURMWRAP = """\
#!/bin/bash
# The lab of this page: where it is, and on which ports. Its reconciler is started when the page waits (settle).
slurmwrap() {{ {slurmwrap} "$@"; }}
if [ "$1" = lab ] && [ $# -gt 1 ]; then
    case $2 in
    up)
        slurmwrap "$@" --dir {lab} --base-port {port} --no-reconcile || exit
        eval "$(slurmwrap lab env --dir {lab})" && slurmwrap reconcile --once >/dev/null
        exit
        ;;
    status | env | down) slurmwrap "$@" --dir {lab}; exit ;;
    kernel) slurmwrap lab kernel --dir {lab} "${{@:3}}"; exit ;;
    esac
fi
slurmwrap "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The result of a command; `code` is None if it did not end in time."""

    code: int | None
    output: str


class Shell:
    """A bash that keeps its directory, variables and functions from one command to the next."""

    def __init__(self, argv: list[str], scratch: Path, env: dict[str, str], user: str | None, cwd: Path) -> None:
        self.scratch, self.count = scratch, 0
        identity = {"user": user, "group": user, "extra_groups": []} if user else {}
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, cwd=cwd,
            text=True, start_new_session=True, **identity,
        )  # fmt: skip

    def run(self, command: str) -> Ended:
        """Run one command; return its exit code, stdout and stderr."""
        self.count += 1
        text, output, code = (self.scratch / f"{self.count}.{part}" for part in ("sh", "out", "code"))
        text.write_text(command + "\n", encoding="utf-8")
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            print(f"{{ . {text}; }} >{output} 2>&1 </dev/null; echo $? >{code}.part; mv {code}.part {code}",
                  file=self.process.stdin, flush=True)  # fmt: skip
        until = time.monotonic() + allow(DEADLINE_S)
        while not code.exists() and self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        said = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        return Ended(code=int(code.read_text()) if code.exists() else None, output=said)

    def end(self) -> None:
        """Kill the shell and the processes in its session; daemons in other sessions stay."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


@dataclass
class Session:
    """The shells, the lab and the home directory of one page."""

    directory: Path  # other users may enter it; removed at the end
    user: str
    shells: dict[str, Shell] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home, self.bin = self.directory / "home", self.directory / "bin"
        self.lab = self.directory / "labs" / "lab"
        self.port = free_base_port()
        for folder in (self.bin, self.lab.parent):
            folder.mkdir(parents=True)
        self.directory.chmod(0o755)
        self.lab.parent.chmod(0o1777)
        _program(
            self.bin / "slurmwrap",
            _SLURMWRAP.format(slurmwrap=SLURMWRAP, lab=self.lab, port=self.port),
        )
        _program(self.bin / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (self.bin / "gsub").symlink_to(Path(sys.executable).parent / "gsub")
        self._furnish()

    def start_lab(self, *options: str) -> None:
        """Start a lab with `slurmwrap lab up`; both shells use it."""
        up = ("lab", "up", "--dir", str(self.lab), "--base-port", str(self.port), "--no-reconcile", *options)
        if code := self._run_quietly(up, command_environment(None)):
            raise LabError(f"slurmwrap {' '.join(up)} ended with {code}")
        self._reconcile()

    def run(self, command: str, *, as_root: bool) -> Ended:
        """Run a command in the user's shell; with `sudo` in the root shell, after expansion by the user's shell."""
        if sudo := re.match(r"sudo (?!-)", command):
            words = self._shell("user").run(f"printf '%q ' {command[sudo.end() :]}")
            command, as_root = words.output, True
        return self._shell("root" if as_root else "user").run(command)

    def with_files(self, command: str) -> str:
        """Replace `@PATH`, a file of the repository, by the path of a copy that the user may read."""

        def given(found: re.Match[str]) -> str:
            copy = self.directory / "given" / found[1]
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / found[1], copy)
            return str(copy)

        return re.sub(r"@([\w./-]+)", given, command)

    def settle(self) -> None:
        """Wait until no job runs or waits and the reconciler has handled all of them."""
        until = time.monotonic() + allow(DEADLINE_S)
        before = None
        while time.monotonic() < until:
            busy = self._root("squeue", "-h", "-o", "%i %T").split("\n")
            if busy != before:  # a job changed: the reconciler may have to act
                self._reconcile()
            elif busy == [""]:
                return
            before = busy
            time.sleep(0.3)
        raise TimeoutError(f"jobs are still there: {busy}")

    def end(self) -> None:
        """End the shells and the lab, and remove the directory."""
        for shell in self.shells.values():
            shell.end()
        if self.lab.exists():
            with contextlib.suppress(LabError):
                down(LabDirectories(self.lab))
        shutil.rmtree(self.directory, ignore_errors=True)

    def _reconcile(self) -> None:
        self._run_quietly(("reconcile", "--once"), {**command_environment(None), **exports(LabDirectories(self.lab))})

    def _run_quietly(self, words: Sequence[str], environ: dict[str, str]) -> int:
        """Run a preparing command as root and ignore its output."""
        return run_as(None, [SLURMWRAP, *words], environ, "/").returncode

    def _root(self, *argv: str) -> str:
        return run_as(None, list(argv), {**exports(LabDirectories(self.lab)), "PATH": self._path(None)}).stdout

    def _shell(self, who: str) -> Shell:
        if who not in self.shells:
            user = self.user if who == "user" else None
            scratch = self.directory / who
            scratch.mkdir(mode=0o755)
            if user:
                shutil.chown(scratch, user, user)
            self.shells[who] = Shell(self._bash(who, scratch), scratch, self._environment(user), user, self.home)
        return self.shells[who]

    def _bash(self, who: str, scratch: Path) -> list[str]:
        bash = ["bash", "--noprofile", "--norc", "-O", "expand_aliases"]
        if who == "user":
            return bash
        copies = "; ".join(
            f"mkdir -p {scratch}/fs/{name}/u {scratch}/fs/{name}/w; mount -t overlay overlay -o "
            f"lowerdir=/{name},upperdir={scratch}/fs/{name}/u,workdir={scratch}/fs/{name}/w /{name}"
            for name in COPIED
            if Path("/", name).is_dir()
        )
        setup = f"set -e; mkdir {scratch}/fs; mount -t tmpfs none {scratch}/fs; {copies}; exec {' '.join(bash)}"
        return ["unshare", "--mount", "--propagation", "private", "bash", "-c", setup]

    def _environment(self, user: str | None) -> dict[str, str]:
        running = exports(LabDirectories(self.lab)) if (self.lab / "lab.json").exists() else {}
        home = {"HOME": str(self.home)} if user else {}
        return {**command_environment(user), **home, **running, "PATH": self._path(user), "COLUMNS": "80"}

    def _path(self, user: str | None) -> str:
        return f"{self.bin}:{command_environment(user)['PATH']}"

    def _furnish(self) -> None:
        """Fill the home directory like a reader's: the examples and a training script."""
        shutil.copytree(ROOT / "examples", self.home / "examples")
        for name in ("train.sbatch", "train.py"):
            shutil.copy(ROOT / "examples" / "ddp" / name, self.home / name)
        script = (self.home / "train.sbatch").read_text(encoding="utf-8")
        (self.home / "train.sbatch").write_text(script.replace("examples/ddp/train.py", "train.py"), encoding="utf-8")
        (self.home / ".venv").mkdir()
        (self.home / ".venv" / "bin").symlink_to(self.bin)
        account = pwd.getpwnam(self.user)
        for path in (self.home, *self.home.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def _program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
