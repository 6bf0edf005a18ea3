"""Start labs and users for a replay, run commands as an ordinary user, and remove all of it afterwards. As root."""

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
CHECKOUT = Path(__file__).resolve().parents[2]  # its slurmwrap is measured, even if another is installed
USER = f"swreplay{os.getpid()}"  # an ordinary account; gsub's files for a lab are in that lab's directory


class ReplayError(RuntimeError):
    """Raised when the replay cannot continue; contains the output of the failed command."""


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

    def user(self, argv: Sequence[str], *, stdin: str = "", check: bool = True, name: str = USER) -> str:
        """Run a command as the user, or as another one of this name, and return its stdout."""
        account = pwd.getpwnam(name)
        environ, work = dict(self.environ), self.work
        if name != USER:
            work = self.work / name
            work.mkdir(exist_ok=True)
            os.chown(work, account.pw_uid, account.pw_gid)
            environ |= {"HOME": str(work), "USER": name, "LOGNAME": name}
        done = subprocess.run(
            argv, env=environ, cwd=work, input=stdin, capture_output=True, text=True, check=False,
            timeout=120, user=account.pw_uid, group=account.pw_gid, extra_groups=[],
        )  # fmt: skip
        return _said(argv, done, check)

    def root(self, argv: Sequence[str], *, stdin: str = "", check: bool = True) -> str:
        """Run a command as the administrator and return its stdout."""
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
        """The number of the leaf switch of node n0, n1, ..., as in slurmwrap.lab.lab_spec."""
        index = int(node.removeprefix("n"))
        return next(i for i in range(self.leaves) if index < (i + 1) * self.nodes // self.leaves)


def _said(argv: Sequence[str], done: subprocess.CompletedProcess[str], check: bool) -> str:
    if check and done.returncode != 0:
        raise ReplayError(f"{shlex.join(argv)[:300]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def account() -> Iterator[None]:
    """Create the ordinary user if it is missing, and remove it afterwards."""
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
    """Make a directory for labs that every user can enter, and remove it afterwards."""
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
    options: Sequence[str] = ()  # further ones of `lab up`
    poll_s: float = 1.0
    compressed: float = 1.0  # seconds of the trace in one second, for the constants of bench/replay/compressed


@contextlib.contextmanager
def lab(wanted: Wanted, prepare: Callable[[Lab], None] = lambda made: None) -> Iterator[Lab]:
    """Start the lab, call `prepare`, start its reconciler. Both logs are below its directory until it is removed."""
    argv = [
        *("up", "--dir", str(wanted.directory), "--base-port", str(wanted.base_port), "--no-reconcile"),
        *("--nodes", str(wanted.nodes), "--gpus", str(wanted.gpus), "--cpus", str(wanted.cpus)),
        *("--mem-mib", str(wanted.mem_mib), "--switches", str(wanted.leaves)),
        *wanted.options,
    ]
    slurmwrap_lab(argv)
    try:
        running = _opened(wanted)
        prepare(running)
        with _reconciler(running, wanted.poll_s):
            yield running
    finally:
        slurmwrap_lab(["down", "--dir", str(wanted.directory)])
        shutil.rmtree(wanted.directory.parent / f"{wanted.directory.name}-work", ignore_errors=True)


def slurmwrap_lab(arguments: Sequence[str]) -> str:
    """Run `slurmwrap lab ARGUMENTS...` and return its stdout."""
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
    if wanted.compressed != 1:
        environ["PYTHONPATH"] = f"{CHECKOUT / 'bench' / 'replay' / 'compressed'}:{CHECKOUT}"
        environ["REPLAY_SCALE"] = f"{wanted.compressed:g}"
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
    """Run the service as on a controller, but with a pass every `poll_s` seconds, because time is compressed."""
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
    """Wait until `seen()` is true; raise ReplayError after `patience_s` seconds."""
    deadline = time.monotonic() + patience_s
    while not seen():
        if time.monotonic() > deadline:
            raise ReplayError(f"{what}: not after {patience_s:g} s")
        time.sleep(pause_s)
