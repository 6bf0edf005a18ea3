"""A running lab and helper functions for tests. The fixtures are in conftest.py."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import readypython
from waiting import allow, wait_for, wait_until

from slurmwrap.errors import LabError
from slurmwrap.lab import daemons, machine
from slurmwrap.lab.daemons import as_service_of
from slurmwrap.lab.lab_directories import LabDirectories, exports
from slurmwrap.lab.lab_spec import cluster_of
from slurmwrap.lab.lab_state import append_kernel_line, down, read_state, write_state
from slurmwrap.slurm.response_cache import find_cache_folder

# Two ordinary accounts, made by the fixture lab_users. Each pytest process has its own: the state of gsub is in a home.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
USERS = (f"swtest-alice{WORKER}", f"swtest-bob{WORKER}")
MORE_USERS = (f"swtest-carol{WORKER}", f"swtest-dave{WORKER}")  # make_user makes them; they are removed with the others
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
        """ClusterName. It differs for each lab, because the records of several labs are in the same home."""
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
        """Runs a command on this lab as `user` (None: root), by default in the user's home. Checks no exit code."""
        return run_as(user, argv, {**self.env, **(env or {})}, cwd, timeout, stdin)

    def slurmwrap(
        self, *arguments: str, user: str | None = None, timeout: float = 120.0, env: dict[str, str] | None = None,
        stdin: str = "", cwd: str | Path | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Runs `slurmwrap ARGUMENTS...` of this checkout."""
        words = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", *arguments]
        return self.run(words, user, cwd, timeout, env, stdin)

    def reconcile_once(self, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Runs the site's reconciler once as SlurmUser. An exit code other than 0 fails the test."""
        account, becomes = _account(self.slurm_user), bool(as_service_of(self.slurm_user))
        whose = readypython.Account(uid=account.pw_uid, gid=account.pw_gid, becomes=becomes)
        command = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--once"]
        environ = {**command_environment(self.slurm_user), **self.env}
        done = readypython.run(command, environ, "/", whose, "", allow(timeout))
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def submit(self, *arguments: str | Path, user: str, script: str = "", cwd: str | Path | None = None) -> str:
        """Runs plain sbatch with `script` as its stdin. Returns the job id."""
        done = self.run(["sbatch", "--parsable", *arguments], user, cwd, stdin=script)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def states(self, job_id: str | int) -> list[str]:
        """The state of each task of a job, such as ["RUNNING"]; empty if Slurm does not know the job."""
        return self.run(["squeue", "-h", "-t", "all", "-o", "%T", "-j", str(job_id)]).stdout.split()

    def wait_job(self, job_id: str | int, states: Collection[str] = ("COMPLETED",), timeout: float = 90.0) -> str:
        """Waits until all tasks of a job are in `states`. Returns the state of the first. Fails after `timeout` s."""
        wanted = {states} if isinstance(states, str) else set(states)
        seen = wait_for(lambda: self.states(job_id), lambda now: bool(now) and set(now) <= wanted, timeout, pause=0.2)
        if not seen or not set(seen) <= wanted:
            record = self.run(["scontrol", "show", "job", str(job_id)]).stdout
            output = Path((re.findall(r"StdOut=(\S+)", record) or ["/dev/null"])[0])
            record += output.read_text(errors="replace")[-2000:] if output.is_file() else ""
            pytest.fail(f"job {job_id} is {seen}, not {sorted(wanted)}, after {allow(timeout):.0f} s\n{record}")
        return seen[0]

    def occupy(self, *options: str, user: str) -> str:
        """Starts a job that keeps its resources until it is cancelled. Returns its id when its script runs."""
        handle, output = tempfile.mkstemp(prefix="occupied-", dir=self.dir)
        os.fchmod(handle, 0o666)
        os.close(handle)
        script = "#!/bin/sh\necho started\nexec sleep 86400\n"
        job = self.submit(*options, f"--output={output}", user=user, script=script)
        self.wait_job(job, ("RUNNING",))
        wait_until(Path(output).read_text, f"the script of job {job} runs", timeout=90)
        return job

    def check_occupied(self, job: str) -> None:
        """Fails, with Slurm's record, if a job of `occupy` does not run any more."""
        assert self.states(job) == ["RUNNING"], self.run(["scontrol", "show", "job", job]).stdout

    def clear(self, *users: str) -> None:
        """Cancels all jobs of `users` (default: of all users) and waits until Slurm shows none: Slurm shows a cancelled
        job until its Epilogs have ended."""
        asked = ["squeue", "-h", "-o", "%A %T", *([f"--user={','.join(users)}"] if users else [])]

        def look() -> list[str]:
            jobs = [line.split() for line in self.run(asked).stdout.splitlines()]
            if alive := {number for number, state in jobs if state != "COMPLETING"}:
                self.run(["scancel", *sorted(alive)])
            return [" ".join(job) for job in jobs]

        left = wait_for(look, lambda shown: not shown, 120)
        assert not left, left

    def reset(self) -> None:
        """Restores the state after the start: no job, no reservation, both partitions up, every node idle."""
        self.clear()
        remove_outputs()
        for name in re.findall(r"ReservationName=(\S+)", self.run(["scontrol", "show", "reservation", "-o"]).stdout):
            self.run(["scontrol", "delete", f"ReservationName={name}"])
        for partition in self._list_not_in_state("up", "%R %a"):
            self.run(["scontrol", "update", f"PartitionName={partition}", "State=UP"])
        for node in self._list_not_in_state("idle", "%n %T"):
            self.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        left = wait_for(lambda: self._list_not_in_state("idle", "%n %T"), lambda nodes: not nodes, 120)
        assert not left, self.run(["sinfo", "-N", "-l"]).stdout

    def _list_not_in_state(self, state: str, columns: str) -> list[str]:
        """The names that sinfo shows in another state than `state`."""
        rows = [line.split() for line in self.run(["sinfo", "-h", "-o", columns]).stdout.splitlines()]
        return sorted({name for name, now in rows if now != state})

    @contextlib.contextmanager
    def without_hooks(self) -> Iterator[None]:
        """In this context the hooks that slurm.conf names end at once. slurmd reads them again for each job."""
        hooks = [LabDirectories(self.dir).hooks / name for name in ("prolog", "epilog", "epilog_slurmctld")]
        for path in hooks:  # a hook exists at any moment: a node without its Prolog is drained
            Path(f"{path}.kept").hardlink_to(path)
            Path(f"{path}.idle").symlink_to("/bin/true")
            Path(f"{path}.idle").replace(path)
        try:
            yield
        finally:
            for path in hooks:
                Path(f"{path}.kept").replace(path)

    @contextlib.contextmanager
    def with_waiting_epilog(self) -> Iterator[None]:
        """In this context no Epilog of a node ends, so that jobs stay COMPLETING."""
        path, flag = LabDirectories(self.dir).hooks / "epilog", self.dir / "epilog-waits"
        flag.touch()
        waiting = Path(f"{path}.waiting")
        waiting.write_text(f"#!/bin/sh\nwhile [ -e {flag} ]; do sleep 0.1; done\n")
        waiting.chmod(0o755)
        os.link(path, f"{path}.before", follow_symlinks=False)
        waiting.replace(path)
        try:
            yield
        finally:
            Path(f"{path}.before").replace(path)
            flag.unlink()

    def kernel(self, node: str, line: str) -> None:
        """Adds a line to the kernel log of the node."""
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
    """Runs a command with a new environment as `user` (None: the current user)."""
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
    """The environment in which `run_as` starts a command."""
    account = _account(user)
    return {
        "PATH": _PATH, "HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name,
        "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def _account(user: str | None) -> pwd.struct_passwd:
    return pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())


def exists(user: str) -> bool:
    """Whether this account exists."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def make_user(user: str) -> None:
    """Makes an ordinary account, unless it exists. Other users may traverse its home."""
    if not exists(user):
        argv = ["useradd", "--create-home", "--home-dir", str(SCRATCH / user), "--shell", "/bin/bash", user]
        subprocess.run(argv, check=True, capture_output=True, timeout=30)
        (SCRATCH / user).chmod(0o711)


def remove_user(user: str) -> None:
    """Removes the account, its home and its cached answers of Slurm."""
    if exists(user):
        shutil.rmtree(find_cache_folder({}, pwd.getpwnam(user).pw_uid), ignore_errors=True)
        # -f: also while a process of the account is dying; -r: with its home.
        subprocess.run(["userdel", "-f", "-r", user], check=False, capture_output=True, timeout=30)
    shutil.rmtree(SCRATCH / user, ignore_errors=True)


def remove_outputs() -> None:
    """Removes the outputs in the users' homes: the labs of a session have the same job ids, and jobs may append."""
    for user in filter(exists, (*USERS, *MORE_USERS)):
        for path in Path(pwd.getpwnam(user).pw_dir).glob("*.out"):
            if not path.is_dir():
                path.unlink(missing_ok=True)


def need_accounting() -> None:
    """Skips the test, with the reason, if a lab on this machine cannot have a slurmdbd."""
    try:
        machine.check_accounting()
    except LabError as error:
        pytest.skip(f"{error}: {error.hint}")


def living(text: str, user: str | None = None) -> list[str]:
    """Command lines that contain `text`, of `user` or of all users; without zombies, which only wait for init."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline()) or process.name()
            wanted = text in line and user in (None, process.username()) and process.status() != psutil.STATUS_ZOMBIE
            found += [line] if wanted and process.pid != os.getpid() else []
    return found


_claims = contextlib.ExitStack()  # never closed: the kernel releases the claims when this process ends


def free_base_port(count: int = 40) -> int:
    """The first of `count` free ports, outside the default and the ephemeral range.

    No other session gets one of them while this process runs: its lab may start much later.
    """
    return _claims.enter_context(claimed_base_port(count))


@contextlib.contextmanager
def claimed_base_port(count: int = 40) -> Iterator[int]:
    """Like free_base_port, until the end of the block: the ports of a lab look free until its daemons listen.

    The claim is an abstract socket: sessions in chroots share the network, but neither /run nor /tmp.
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
    """Runs `slurmwrap lab ARGUMENTS...` as its own process, so that its daemons are not children of pytest."""
    return run_as(user, [sys.executable, "-m", "slurmwrap.cli.lab", *arguments], env, timeout=120)


def start_lab(directory: Path, *options: str, slurm_user: str = "root", env: dict[str, str] | None = None) -> Lab:
    """Runs `lab up` with these options on free ports. If it fails, the test fails with its output."""
    remove_outputs()
    with claimed_base_port() as base:
        done = lab_command("up", "--dir", directory, "--base-port", str(base), "--no-reconcile", *options, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return Lab(dir=directory, env=exports(LabDirectories(directory)), slurm_user=slurm_user, base_port=base)


@contextlib.contextmanager
def started(
    directory: Path, *options: str, slurm_user: str = "root", env: dict[str, str] | None = None
) -> Iterator[Lab]:
    """A lab for one test or module. It is taken down afterwards."""
    running = start_lab(directory, *options, slurm_user=slurm_user, env=env)
    try:
        yield running
    finally:
        if directory.exists():
            down(LabDirectories(directory))


def restart_controller(lab: Lab, number: signal.Signals = signal.SIGTERM) -> None:
    """As `systemctl restart` does: SIGTERM, then a new slurmctld with the saved state. `number`: or another signal.

    After SIGKILL, slurmctld 22.05.8 does not know the jobs of its last seconds and uses their ids again.
    """
    argv = [machine.program("slurmctld"), "-D", "-f", str(LabDirectories(lab.dir).slurm_conf)]
    user = None if lab.slurm_user == "root" else lab.slurm_user
    _restart_daemon(lab, "slurmctld", lab.dir / "slurmctld" / "slurmctld.pid", argv, number, user)


def restart_munged(lab: Lab) -> None:
    """Restarts munged, which then has the key that is in its file now."""
    socket_path = LabDirectories(lab.dir).munge_socket
    pid_file = socket_path.parent / "munged.pid"
    argv = Path(f"/proc/{pid_file.read_text().strip()}/cmdline").read_text().split("\0")[:-1]
    _restart_daemon(lab, "munged", pid_file, argv)
    wait_until(socket_path.is_socket, "munged listens")


def _restart_daemon(
    lab: Lab, name: str, pid_file: Path, argv: Sequence[str], number: int = signal.SIGTERM, user: str | None = None
) -> None:
    layout, pid = LabDirectories(lab.dir), int(pid_file.read_text())
    os.kill(pid, number)
    wait_until(lambda: daemons.started_at(pid) == 0, f"{name} ends")
    daemon, process = daemons.start(name, argv, layout, user=user)
    process.returncode = 0  # it keeps running and ends with its lab
    state = read_state(layout)
    assert state is not None
    others = tuple(one for one in state.daemons if one.name != name)
    write_state(layout, replace(state, daemons=(*others, daemon)))


def cut_power(lab: Lab, node: str) -> None:
    """Kills slurmd and its steps at once, as a loss of power does. root sets the node DOWN, as SlurmdTimeout does."""
    daemon = int(Path(LabDirectories(lab.dir).node(node), "slurmd.pid").read_text())
    spool = str(LabDirectories(lab.dir).node(node))
    processes = [psutil.Process(daemon)]
    processes += [p for p in psutil.process_iter() if _is_stepd_of(p, spool)]
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    done = lab.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=Not responding"])
    assert done.returncode == 0, done.stderr


def _is_stepd_of(process: psutil.Process, spool: str) -> bool:
    with contextlib.suppress(psutil.Error):
        if "slurmstepd" in process.name():
            opened = any(file.path.startswith(spool) for file in process.open_files())
            return opened or spool in " ".join(process.cmdline())
    return False
