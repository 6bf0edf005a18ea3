"""Labs and users for a replay: brought up, used as an ordinary user, taken down whatever happens. As root."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(sys.executable).parent
CHECKOUT = Path(__file__).resolve().parents[2]  # whose slurmwrap is measured, whatever else is installed
USER = f"swreplay{os.getpid()}"  # one ordinary account; what gsub keeps of a lab lies in that lab's own directory


class ReplayError(RuntimeError):
    """The replay cannot go on; what a command said is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A running lab. `environ`: of its user; `site`: the same for root and the reconciler."""

    directory: Path
    nodes: int
    gpus: int  # per node
    cpus: int
    mem_mib: int
    leaves: int
    environ: Mapping[str, str]
    site: Mapping[str, str]

    def user(self, argv: Sequence[str], *, stdin: str = "", check: bool = True) -> str:
        """A command of the user's; returns its stdout."""
        account = pwd.getpwnam(USER)
        done = subprocess.run(
            argv, env=self.environ, cwd=self.work, input=stdin, capture_output=True, text=True, check=False,
            timeout=120, user=account.pw_uid, group=account.pw_gid, extra_groups=[],
        )  # fmt: skip
        return _said(argv, done, check)

    def root(self, argv: Sequence[str], *, stdin: str = "", check: bool = True) -> str:
        """A command of the administrator's; returns its stdout."""
        done = subprocess.run(
            argv, env=self.site, input=stdin, capture_output=True, text=True, check=False, timeout=120
        )  # fmt: skip
        return _said(argv, done, check)

    @property
    def work(self) -> Path:
        """The user's directory."""
        return self.directory.parent / f"{self.directory.name}-work"

    @property
    def log(self) -> Path:
        """slurmctld's."""
        return self.directory / "log" / "slurmctld.log"

    def leaf_of(self, node: str) -> int:
        """Number of the leaf switch of node n0, n1, ...: as slurmwrap.lab.lab_spec deals them out."""
        index = int(node.removeprefix("n"))
        return next(i for i in range(self.leaves) if index < (i + 1) * self.nodes // self.leaves)


def _said(argv: Sequence[str], done: subprocess.CompletedProcess[str], check: bool) -> str:
    if check and done.returncode != 0:
        raise ReplayError(f"{shlex.join(argv)[:300]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def account() -> Iterator[None]:
    """The ordinary user, made where it is missing and removed again."""
    try:
        pwd.getpwnam(USER)
        made = False
    except KeyError:
        argv = ["useradd", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/bin/bash", USER]
        subprocess.run(argv, check=True, capture_output=True, timeout=30)
        made = True
    try:
        yield
    finally:
        if made:
            subprocess.run(["userdel", "-f", USER], check=False, capture_output=True, timeout=30)


@contextlib.contextmanager
def parent() -> Iterator[Path]:
    """A directory that every user can pass, below which labs live; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="swr-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A lab to bring up. `settings`: of the configuration, "section.key", for the user and the reconciler alike."""

    directory: Path
    base_port: int
    nodes: int
    gpus: int
    cpus: int
    mem_mib: int
    leaves: int = 1
    settings: Mapping[str, object] = field(default_factory=dict)
    poll_s: float = 1.0


@contextlib.contextmanager
def lab(wanted: Wanted) -> Iterator[Lab]:
    """The lab with its reconciler. Its log and the reconciler's lie below it until it is taken down."""
    argv = [
        *("up", "--dir", str(wanted.directory), "--base-port", str(wanted.base_port), "--no-reconcile"),
        *("--nodes", str(wanted.nodes), "--gpus", str(wanted.gpus), "--cpus", str(wanted.cpus)),
        *("--mem-mib", str(wanted.mem_mib), "--switches", str(wanted.leaves)),
    ]
    slurmwrap_lab(argv)
    try:
        running = _opened(wanted)
        with _reconciler(running, wanted.poll_s):
            yield running
    finally:
        slurmwrap_lab(["down", "--dir", str(wanted.directory)])
        shutil.rmtree(wanted.directory.parent / f"{wanted.directory.name}-work", ignore_errors=True)


def slurmwrap_lab(arguments: Sequence[str]) -> str:
    """`slurmwrap lab ARGUMENTS...`; its stdout."""
    argv = [str(BIN / "slurmwrap"), "lab", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=180)
    return _said(argv, done, True)


def _opened(wanted: Wanted) -> Lab:
    shown = slurmwrap_lab(["env", "--dir", str(wanted.directory)])
    path = f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    environ = {"PATH": path, "LANG": "C.UTF-8", "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"}
    for name, value in re.findall(r"^export (SLURM_CONF|SLURMWRAP_CONFIG)=(.*)$", shown, re.MULTILINE):
        environ[name] = shlex.split(value)[0]
    work = wanted.directory.parent / f"{wanted.directory.name}-work"
    work.mkdir(mode=0o755)
    os.chown(work, pwd.getpwnam(USER).pw_uid, pwd.getpwnam(USER).pw_gid)
    environ |= {f"SLURMWRAP_{key.replace('.', '_')}".upper(): str(value) for key, value in wanted.settings.items()}
    return Lab(
        directory=wanted.directory,
        nodes=wanted.nodes,
        gpus=wanted.gpus,
        cpus=wanted.cpus,
        mem_mib=wanted.mem_mib,
        leaves=wanted.leaves,
        environ={**environ, "HOME": str(work), "USER": USER, "LOGNAME": USER},
        site={**environ, "HOME": "/root", "USER": "root"},
    )


@contextlib.contextmanager
def _reconciler(running: Lab, poll_s: float) -> Iterator[None]:
    """The service as the controller runs it, but looking every `poll_s` seconds: the trace's time is compressed."""
    argv = [str(BIN / "slurmwrap"), "reconcile", "--watch", "--poll", f"{poll_s:g}"]
    with (running.directory / "log" / "reconcile.log").open("wb") as log:
        process = subprocess.Popen(argv, env=running.site, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(seen: Callable[[], bool], patience_s: float, what: str, pause_s: float = 0.2) -> None:
    """Until `seen()` is true; ReplayError after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not seen():
        if time.monotonic() > deadline:
            raise ReplayError(f"{what}: not after {patience_s:g} s")
        time.sleep(pause_s)
