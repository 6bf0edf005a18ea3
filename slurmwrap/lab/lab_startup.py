"""Start a lab: from a LabSpec to running daemons with every node IDLE. A failure leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from slurmwrap.errors import LabError
from slurmwrap.lab import daemons, lab_accounting, lab_cgroups, lab_files, machine
from slurmwrap.lab.lab_directories import LabDirectories, exports
from slurmwrap.lab.lab_spec import LabSpec, checked
from slurmwrap.lab.lab_state import LabState, locked, read_state, sweep, with_daemon, write_state
from slurmwrap.lab.render_slurm_conf import Means

# Lines in a daemon's log that may report why a lab did not start.
_ERROR_LINE = re.compile(r"\bfatal\b|\berror:|\bError:|Traceback|refused|denied", re.IGNORECASE)


def cause(layout: LabDirectories, names: Iterable[str]) -> str:
    """Return the suffix of an error message, ": NAME said 'LINE'"; "" when the daemons logged nothing."""
    chosen = telling([(name, line) for name in names for line in _log_lines(layout, name)])
    return "" if chosen is None else f": {described(chosen[0])} said '{chosen[1]}'"


def telling(lines: list[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the (daemon, line) that best explains a failure; None when there are no lines. Pure.

    It is the first line with "fatal", else the last line with another error, else the last line.
    """
    error_lines = [pair for pair in lines if _ERROR_LINE.search(pair[1])]
    # Slurm logs errors that are harmless (missing PMIx, no accounting), but "fatal" only for the cause of its end.
    fatal = [pair for pair in error_lines if "fatal" in pair[1].lower()]
    return next(iter(fatal[:1] or error_lines[-1:] or lines[-1:]), None)


def described(name: str) -> str:
    """Return a daemon's name for messages: a node's name becomes "slurmd of NODE"."""
    return name if name in ("munged", "mariadbd", "slurmdbd", "slurmctld", "reconcile") else f"slurmd of {name}"


def _log_lines(layout: LabDirectories, name: str) -> list[str]:
    lines: list[str] = []
    for path in dict.fromkeys((layout.errors(name), layout.log(name))):
        with contextlib.suppress(OSError):
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


Say = Callable[[str], None]
_CONTROLLER_PATIENCE_S, _NODES_PATIENCE_S, _MUNGE_PATIENCE_S, _DATABASE_PATIENCE_S = 30.0, 60.0, 10.0, 60.0


@dataclass(slots=True)
class _Bringup:
    """One attempt to start a lab: its state so far and the processes that are still watched."""

    layout: LabDirectories
    state: LabState
    say: Say
    children: dict[str, subprocess.Popen[bytes]]

    def start(self, name: str, argv: list[str], user: str | None = None, environ: dict[str, str] | None = None) -> None:
        daemon, process = daemons.start(name, argv, self.layout, user=user, environ=environ)
        self.children[name] = process
        self.state = with_daemon(self.layout, self.state, daemon)

    def wait(self, what: str, patience_s: float, done: Callable[[], bool], watched: tuple[str, ...]) -> None:
        """Wait until done() is true.

        Raise LabError, with a log line as the cause, when a watched daemon ends or after `patience_s` seconds.
        """
        deadline = time.monotonic() + patience_s
        while not done():
            for name in watched:
                if self.children[name].poll() is not None:
                    raise LabError(f"{described(name)} ended while starting{cause(self.layout, (name,))}")
            if time.monotonic() > deadline:
                raise LabError(f"{what} not ready after {patience_s:.0f} s{cause(self.layout, watched)}")
            time.sleep(0.05)


def up(spec: LabSpec, say: Say, *, hooks: bool = True, reconcile: bool = True) -> LabState:
    """Start the lab and return its state when all nodes are idle.

    Raise LabError when it is already running, when ports are in use, when the directory contains other files, or when
    Slurm does not start (then the cause is Slurm's own log line).
    """
    checked(spec)
    layout = LabDirectories(spec.directory)
    owner = machine.check_user(spec.slurm_user)
    for name in ("munged", "mungekey", "slurmctld", "slurmd", "sinfo"):
        machine.program(name)
    if spec.accounting:
        machine.check_accounting()
    _refuse_running(layout)
    with _root_directory(layout), locked(layout), _readable_umask(), _disk_errors():
        if _refuse_running(layout) is not None or daemons.owned(layout):
            say(f"Clearing what a crash left in {layout.root}")
            sweep(layout, keep_root=True)
        machine.check_place(layout.root)
        machine.check_ports(spec.ports)
        with _sweep_on_failure(layout):
            return _start_with_or_without_cgroups(spec, layout, owner, say, hooks=hooks, reconcile=reconcile)


def _start_with_or_without_cgroups(
    spec: LabSpec, layout: LabDirectories, owner: pwd.struct_passwd, say: Say, *, hooks: bool, reconcile: bool
) -> LabState:
    """Start the lab with cgroups if the machine permits them. If Slurm's plugin then refuses them, start without."""
    means = _prepare_directory(spec, layout)
    try:
        return _start_daemons(spec, layout, means, owner, say, hooks=hooks, reconcile=reconcile)
    except LabError as error:
        if means.no_cgroups or "cgroup" not in str(error):
            raise
        say("Slurm refused cgroups; trying without")
        sweep(layout, keep_root=True)
        means = replace(_prepare_directory(spec, layout), no_cgroups=f"Slurm's plugin refused: {error}")
        return _start_daemons(spec, layout, means, owner, say, hooks=hooks, reconcile=reconcile)


def _prepare_directory(spec: LabSpec, layout: LabDirectories) -> Means:
    """Mark the empty directory as a lab and find out what this machine supports."""
    write_state(layout, LabState(spec=spec, means=Means(release=(0, 0), root=os.geteuid() == 0)))
    lab_files.make_skeleton(layout)
    return machine.probe(layout, spec.gpus)


def _start_daemons(
    spec: LabSpec,
    layout: LabDirectories,
    means: Means,
    owner: pwd.struct_passwd,
    say: Say,
    *,
    hooks: bool,
    reconcile: bool,
) -> LabState:
    paths = lab_files.install_hooks(spec, layout, owner) if hooks else None
    lab_files.fill(spec, layout, means, owner, paths)
    state = LabState(spec=spec, means=means, notes=_notes(means, hooks=hooks))
    run = _Bringup(layout, state, say, {})
    _start_munged(run)
    if spec.accounting:
        _start_accounting(run)
    _start_controller(run)
    if spec.accounting:
        lab_accounting.admit(spec, layout)
    _start_nodes(run)
    if reconcile:
        _start_reconciler(run)
    run.state = replace(run.state, ready=True)
    write_state(layout, run.state)
    for process in run.children.values():
        # The daemons outlive this process. With a return code set, Popen does not warn about that.
        process.returncode = process.returncode or 0
    return run.state


def _start_munged(run: _Bringup) -> None:
    layout, key = run.layout, run.layout.munge_key
    run.say("Starting munged")
    # Credentials name the origin as their encoding host. It must equal the nodes' NodeAddr.
    argv = [machine.program("munged"), "--foreground", f"--key-file={key}", f"--socket={layout.munge_socket}",
            f"--pid-file={layout.munge_socket.parent}/munged.pid", f"--log-file={layout.log('munged')}",
            f"--seed-file={key.parent}/munged.seed", "--origin=127.0.0.1"]  # fmt: skip
    if not run.state.means.root:
        # munged requires a socket that all users can reach. With --force a private home directory is accepted too.
        argv.append("--force")
    run.start("munged", argv)
    run.wait("MUNGE", _MUNGE_PATIENCE_S, layout.munge_socket.is_socket, ("munged",))


def _start_accounting(run: _Bringup) -> None:
    """Start MariaDB and slurmdbd. slurmctld must start later, because its first start fails without a database."""
    layout, user = run.layout, run.state.spec.slurm_user
    run.say("Starting MariaDB and slurmdbd")
    lab_accounting.make_database(layout, user)
    # Started as root, mariadbd raises its limits and then changes to the user itself.
    run.start("mariadbd", lab_accounting.mariadbd_argv(layout, user))
    run.wait("MariaDB", _DATABASE_PATIENCE_S, layout.database_socket.is_socket, ("mariadbd",))
    own = user if run.state.means.root and user != "root" else None
    run.start("slurmdbd", [machine.program("slurmdbd"), "-D"], own, lab_accounting.slurmdbd_environ(layout))
    ask = [machine.program("sacctmgr"), "-n", "-P", "list", "account", "root", "format=Account"]
    run.wait(
        "slurmdbd",
        _DATABASE_PATIENCE_S,
        lambda: "root" in machine.output(ask, environ=exports(layout)),
        ("mariadbd", "slurmdbd"),
    )


def _start_controller(run: _Bringup) -> None:
    layout, spec = run.layout, run.state.spec
    run.say(f"Starting slurmctld as {spec.slurm_user}")
    user = spec.slurm_user if run.state.means.root and spec.slurm_user != "root" else None
    run.start("slurmctld", [machine.program("slurmctld"), "-D", "-f", str(layout.slurm_conf)], user)
    run.wait(
        "slurmctld", _CONTROLLER_PATIENCE_S, lambda: "is UP" in _ask_slurm(layout, "scontrol", "ping"), ("slurmctld",)
    )


def _start_nodes(run: _Bringup) -> None:
    layout, spec, means = run.layout, run.state.spec, run.state.means
    run.say(f"Starting {spec.nodes} nodes")
    groups = {} if means.no_cgroups else lab_cgroups.lab_groups(layout.cgroup_name)
    if groups:
        lab_cgroups.create(layout.cgroup_name)
    for name in spec.node_names:
        node = [] if means.no_namespaces else machine.launcher(name, layout.node(name) / "hosts", groups)
        run.start(name, [*node, machine.program("slurmd"), "-D", "-N", name, "-f", str(layout.slurm_conf)])
    run.wait("the nodes are", _NODES_PATIENCE_S, lambda: _all_idle(layout, spec), ("slurmctld", *spec.node_names))


def _start_reconciler(run: _Bringup) -> None:
    """Start the reconciler. A failure is not fatal: it becomes a note that `lab status` shows."""
    spec, package_root = run.state.spec, Path(__file__).resolve().parents[2]
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--watch"]
    user = spec.slurm_user if run.state.means.root and spec.slurm_user != "root" else None
    if user and (service := daemons.as_service_of(user)):
        argv, user = [*service, *argv], None
    commands = str(Path(machine.program("scontrol")).parent)
    environ = {
        **exports(run.layout),
        "PATH": f"{commands}:{daemons.PATH}",
        "PYTHONPATH": str(package_root),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    run.start("reconcile", argv, user, environ)
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = run.children["reconcile"].wait(timeout=0.5)
        reason = cause(run.layout, ("reconcile",)) or f": it ended with exit code {code}"
        run.state = replace(run.state, notes=(*run.state.notes, f"the reconciler does not run{reason}"))


def _refuse_running(layout: LabDirectories) -> LabState | None:
    state = read_state(layout)
    if state is not None and state.running:
        raise LabError(
            f"a lab is already running in {layout.root}",
            hint=f"`slurmwrap lab status --dir {layout.root}` shows it, `lab down` ends it; "
            "another --dir and --base-port start a second one",
        )
    return state


@contextlib.contextmanager
def _root_directory(layout: LabDirectories) -> Iterator[None]:
    """Create the lab's directory; remove it after an exception if it is empty."""
    try:
        layout.root.mkdir(parents=True, exist_ok=True)
        layout.root.chmod(0o755)
    except OSError as error:
        raise LabError(f"{layout.root}: {error.strerror}", hint="choose another --dir") from error
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            layout.root.rmdir()
        raise


@contextlib.contextmanager
def _sweep_on_failure(layout: LabDirectories) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sweep(layout)
        raise


@contextlib.contextmanager
def _readable_umask() -> Iterator[None]:
    """Set the umask so that ordinary users can read everything that is not restricted explicitly."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LabError(f"cannot write {error.filename or 'the lab'}: {error.strerror}") from error


def _notes(means: Means, *, hooks: bool) -> tuple[str, ...]:
    notes = [] if hooks else ["no hooks"]
    if not means.root:
        notes.append("single user: only you can run jobs here (all users can use a lab of root)")
    if means.no_namespaces:
        notes.append(f"nodes share this machine's host name and /etc/hosts: {means.no_namespaces}")
    if means.no_devices:
        notes.append(f"GPUs: {means.no_devices}")
    return tuple(notes)


def _all_idle(layout: LabDirectories, spec: LabSpec) -> bool:
    words = _ask_slurm(layout, "sinfo", "-h", "-N", "-p", "gpu", "-o", "%T").split()
    return len(words) == spec.nodes and set(words) == {"idle"}


def _ask_slurm(layout: LabDirectories, command: str, *arguments: str) -> str:
    return machine.output([machine.program(command), *arguments], environ=exports(layout))
