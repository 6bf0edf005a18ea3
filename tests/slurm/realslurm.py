"""A running lab as tests hold it, and what they do with it. Fixtures are in conftest.py."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import readypython
from waiting import allow, wait_for

from slurmwrap.errors import LabError
from slurmwrap.lab import machine
from slurmwrap.lab.daemons import as_service_of
from slurmwrap.lab.lab_directories import LabDirectories, exports
from slurmwrap.lab.lab_spec import cluster_of
from slurmwrap.lab.lab_state import append_kernel_line, down
from slurmwrap.slurm.response_cache import find_cache_folder

# Two ordinary accounts, made by the fixture lab_users; of one pytest process each, since what gsub knows is in a home.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
USERS = (f"swtest-alice{WORKER}", f"swtest-bob{WORKER}")
MORE_USERS = (f"swtest-carol{WORKER}", f"swtest-dave{WORKER}")  # make_user makes them; they go with the others
SCRATCH = Path("/var/tmp")  # not /tmp: pytest's own directories there are closed to other users
_SETPRIV = shutil.which("setpriv") or "/usr/bin/setpriv"
_PATH = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A running lab. `env` holds SLURM_CONF and SLURMWRAP_CONFIG."""

    dir: Path
    env: dict[str, str]
    slurm_user: str
    base_port: int

    @property
    def cluster(self) -> str:
        """ClusterName: another one for each lab, whose users' own records lie side by side."""
        return cluster_of(self.dir)

    def run(
        self,
        argv: Sequence[str | Path],
        user: str | None = None,
        cwd: str | Path | None = None,
        timeout: float = 120.0,
        env: dict[str, str] | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command against this lab as `user` (None: root), by default in the user's home. Nothing is checked."""
        return run_as(user, argv, {**self.env, **(env or {})}, cwd, timeout, stdin)

    def slurmwrap(
        self, *arguments: str, user: str | None = None, timeout: float = 120.0, env: dict[str, str] | None = None,
        stdin: str = "", cwd: str | Path | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """`slurmwrap ARGUMENTS...` out of this checkout."""
        words = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", *arguments]
        return self.run(words, user, cwd, timeout, env, stdin)

    def reconcile_once(self, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """The site's reconciler, once, as SlurmUser. An exit code other than 0 fails the test."""
        account, becomes = _account(self.slurm_user), bool(as_service_of(self.slurm_user))
        whose = readypython.Account(uid=account.pw_uid, gid=account.pw_gid, becomes=becomes)
        command = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--once"]
        environ = {**command_environment(self.slurm_user), **self.env}
        done = readypython.run(command, environ, "/", whose, "", allow(timeout))
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def submit(self, *arguments: str | Path, user: str, script: str = "", cwd: str | Path | None = None) -> str:
        """Plain sbatch; `script` goes to its stdin. Returns the job id."""
        done = self.run(["sbatch", "--parsable", *arguments], user, cwd, stdin=script)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def states(self, job_id: str | int) -> list[str]:
        """Slurm's word for each task of a job: ["RUNNING"]; none when Slurm does not know it."""
        return self.run(["squeue", "-h", "-t", "all", "-o", "%T", "-j", str(job_id)]).stdout.split()

    def wait_job(self, job_id: str | int, states: Collection[str] = ("COMPLETED",), timeout: float = 90.0) -> str:
        """Until all tasks of a job are in one of `states`; returns the first one's. Fails after `timeout` s."""
        wanted = {states} if isinstance(states, str) else set(states)
        seen = wait_for(lambda: self.states(job_id), lambda now: bool(now) and set(now) <= wanted, timeout, pause=0.2)
        if not seen or not set(seen) <= wanted:
            record = self.run(["scontrol", "show", "job", str(job_id)]).stdout
            output = Path((re.findall(r"StdOut=(\S+)", record) or ["/dev/null"])[0])
            record += output.read_text(errors="replace")[-2000:] if output.is_file() else ""
            pytest.fail(f"job {job_id} is {seen}, not {sorted(wanted)}, after {allow(timeout):.0f} s\n{record}")
        return seen[0]

    def clear(self, *users: str) -> None:
        """Ends all jobs of `users` (none: of everybody) and waits until none is left: one that is cancelled is shown
        until its Epilogs are through."""
        asked = ["squeue", "-h", "-o", "%A %T", *([f"--user={','.join(users)}"] if users else [])]

        def look() -> list[str]:
            jobs = [line.split() for line in self.run(asked).stdout.splitlines()]
            if alive := {number for number, state in jobs if state != "COMPLETING"}:
                self.run(["scancel", *sorted(alive)])
            return [" ".join(job) for job in jobs]

        left = wait_for(look, lambda shown: not shown, 120)
        assert not left, left

    def reset(self) -> None:
        """No job, no reservation, both partitions up, every node idle: as the lab was when it had started."""
        self.clear()
        for name in re.findall(r"ReservationName=(\S+)", self.run(["scontrol", "show", "reservation", "-o"]).stdout):
            self.run(["scontrol", "delete", f"ReservationName={name}"])
        for partition in self._not("up", "%R %a"):
            self.run(["scontrol", "update", f"PartitionName={partition}", "State=UP"])
        for node in self._not("idle", "%n %T"):
            self.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        left = wait_for(lambda: self._not("idle", "%n %T"), lambda nodes: not nodes, 120)
        assert not left, self.run(["sinfo", "-N", "-l"]).stdout

    def _not(self, state: str, columns: str) -> list[str]:
        """What sinfo shows in another state."""
        rows = [line.split() for line in self.run(["sinfo", "-h", "-o", columns]).stdout.splitlines()]
        return sorted({name for name, now in rows if now != state})

    @contextlib.contextmanager
    def without_hooks(self) -> Iterator[None]:
        """Within, the hooks that slurm.conf names end at once. slurmd reads them anew for each job."""
        hooks = [LabDirectories(self.dir).hooks / name for name in ("prolog", "epilog", "epilog_slurmctld")]
        for path in hooks:  # there is one at any moment: without its Prolog a node is drained
            Path(f"{path}.kept").hardlink_to(path)
            Path(f"{path}.idle").symlink_to("/bin/true")
            Path(f"{path}.idle").replace(path)
        try:
            yield
        finally:
            for path in hooks:
                Path(f"{path}.kept").replace(path)

    def kernel(self, node: str, line: str) -> None:
        """What the node's kernel says next."""
        append_kernel_line(LabDirectories(self.dir), node, line)

    def log(self, name: str) -> str:
        """The log of `slurmctld`, `munged`, `reconcile` or a node's slurmd."""
        return LabDirectories(self.dir).log(name).read_text(encoding="utf-8", errors="replace")


def run_as(
    user: str | None,
    argv: Sequence[str | Path],
    env: dict[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float = 60.0,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Runs a command with a fresh environment as `user` (None: ourselves)."""
    account = _account(user)
    home = account.pw_dir if Path(account.pw_dir).is_dir() else "/"
    words, environ = [str(word) for word in argv], {**command_environment(user), **(env or {})}
    if readypython.can_fork(words, environ):
        whose = readypython.Account(uid=account.pw_uid, gid=account.pw_gid) if user else None
        return readypython.run(words, environ, str(cwd or home), whose, stdin, allow(timeout))
    if user:  # not subprocess's user=: with it Python 3.11 forks all of pytest's memory instead of using vfork
        words = [_SETPRIV, f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--", *words]
    return subprocess.run(
        words, input=stdin, capture_output=True, text=True, errors="replace", timeout=allow(timeout),
        cwd=cwd or home, env=environ, check=False,
    )  # fmt: skip


def command_environment(user: str | None) -> dict[str, str]:
    """What `run_as` starts a command with."""
    account = _account(user)
    return {
        "PATH": _PATH, "HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name,
        "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def _account(user: str | None) -> pwd.struct_passwd:
    return pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())


def exists(user: str) -> bool:
    """Whether there is such an account."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def make_user(user: str) -> None:
    """An ordinary account with a home that others may pass; none is made where there is one."""
    if not exists(user):
        argv = ["useradd", "--create-home", "--home-dir", str(SCRATCH / user), "--shell", "/bin/bash", user]
        subprocess.run(argv, check=True, capture_output=True, timeout=30)
        (SCRATCH / user).chmod(0o711)


def remove_user(user: str) -> None:
    """The account, its home, and what its gsub kept of Slurm's answers."""
    if exists(user):
        shutil.rmtree(find_cache_folder({}, pwd.getpwnam(user).pw_uid), ignore_errors=True)
        # -f: also while a process of the account is dying; -r: with its home.
        subprocess.run(["userdel", "-f", "-r", user], check=False, capture_output=True, timeout=30)
    shutil.rmtree(SCRATCH / user, ignore_errors=True)


def need_accounting() -> None:
    """Skips, with the reason, where a lab cannot have a slurmdbd."""
    try:
        machine.check_accounting()
    except LabError as error:
        pytest.skip(f"{error}: {error.hint}")


def living(text: str, user: str | None = None) -> list[str]:
    """Command lines that contain `text`, of `user` or anyone; without zombies, which only wait for init."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline()) or process.name()
            wanted = text in line and user in (None, process.username()) and process.status() != psutil.STATUS_ZOMBIE
            found += [line] if wanted and process.pid != os.getpid() else []
    return found


_claims = contextlib.ExitStack()  # left open: the kernel gives up what this process claimed when it ends


def free_base_port(count: int = 40) -> int:
    """A port with `count` free ones from there on, away from the default and from the ephemeral range.

    No other session is given one of them while this process lives: its lab may start much later.
    """
    return _claims.enter_context(claimed_base_port(count))


@contextlib.contextmanager
def claimed_base_port(count: int = 40) -> Iterator[int]:
    """The same until the end of the block: until its daemons listen a lab's ports look free.

    The claim is an abstract socket: sessions in chroots share neither /run nor /tmp, but the network.
    """
    with contextlib.ExitStack() as stack:
        claim = stack.enter_context(socket.socket(socket.AF_UNIX))
        for _ in range(100):
            base = random.randrange(20_000, 26_000, 50)
            with contextlib.suppress(LabError, OSError):
                machine.check_ports(range(base, base + count))
                claim.bind(f"\0slurmwrap-test-ports-{base}")
                break
        else:
            pytest.skip("no free ports between 20000 and 26000")
        yield base


def lab_command(
    *arguments: str | Path, user: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`slurmwrap lab ARGUMENTS...` as its own process, so that its daemons are nobody's children here."""
    return run_as(user, [sys.executable, "-m", "slurmwrap.cli.lab", *arguments], env, timeout=120)


def start_lab(directory: Path, *options: str, slurm_user: str = "root", env: dict[str, str] | None = None) -> Lab:
    """`lab up` with these options on free ports. A failure fails the test with what it said."""
    with claimed_base_port() as base:
        done = lab_command("up", "--dir", directory, "--base-port", str(base), "--no-reconcile", *options, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return Lab(dir=directory, env=exports(LabDirectories(directory)), slurm_user=slurm_user, base_port=base)


@contextlib.contextmanager
def started(
    directory: Path, *options: str, slurm_user: str = "root", env: dict[str, str] | None = None
) -> Iterator[Lab]:
    """A lab of a test's own, taken down afterwards."""
    running = start_lab(directory, *options, slurm_user=slurm_user, env=env)
    try:
        yield running
    finally:
        if directory.exists():
            down(LabDirectories(directory))
