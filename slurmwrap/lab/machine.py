"""Find out what this machine supports (adapter): programs, ports, namespaces, cgroups, device files."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from slurmwrap.errors import LabError, UsageError
from slurmwrap.lab import lab_cgroups, node_launcher
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_spec import ROOTS_PLACE
from slurmwrap.lab.render_slurm_conf import Means, parse_release

NVIDIA_MAJOR = 195  # Documentation/admin-guide/devices.txt: NVIDIA's character devices
_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/sbin:/opt/slurm/bin"
_PACKAGES = {
    "munged": "munge",
    "mungekey": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sinfo": "slurm-client",
}
_ACCOUNTING_PACKAGES = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
    "sacctmgr": "slurm-client",
}


def program(name: str) -> str:
    """Return the absolute path of a daemon or command, from PATH or the usual directories.

    Raise LabError with the name of the Debian package when it is not installed.
    """
    path = shutil.which(name) or shutil.which(name, path=_SEARCH)
    if path is None:
        package = (_PACKAGES | _ACCOUNTING_PACKAGES).get(name, name)
        raise LabError(f"'{name}' is not installed", hint=f"apt-get install {package} (Debian's name)")
    return path


def missing_programs() -> tuple[str, ...]:
    """Return the programs that a lab needs and that are not installed."""
    return _missing(_PACKAGES, _SEARCH)


def check_accounting(search: str = _SEARCH) -> None:
    """Raise LabError, with Debian's packages, when programs for `--accounting` are neither on PATH nor in `search`."""
    if missing := _missing(_ACCOUNTING_PACKAGES, search):
        packages = dict.fromkeys(_ACCOUNTING_PACKAGES[name] for name in missing)
        raise LabError(
            f"--accounting: not installed: {', '.join(missing)}",
            hint=f"apt-get install --no-install-recommends {' '.join(packages)} (Debian's names)",
        )


def _missing(names: Iterable[str], search: str) -> tuple[str, ...]:
    return tuple(name for name in names if not (shutil.which(name) or shutil.which(name, path=search)))


def output(argv: list[str], *, environ: dict[str, str] | None = None, timeout_s: float = 10.0) -> str:
    """Return the stdout of a command; "" when it fails or takes longer than `timeout_s`."""
    env = {**os.environ, "LC_ALL": "C", **(environ or {})}
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=timeout_s, env=env, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def default_directory() -> Path:
    """Return the default directory: /var/lib/slurmwrap-lab for root, else ~/.local/share/slurmwrap-lab.

    Root's directory is also used when only that one exists, so that after `sudo slurmwrap lab up` every user's
    `slurmwrap lab env` refers to the same lab.
    """
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    own = Path(home) / "slurmwrap-lab"
    return ROOTS_PLACE if os.geteuid() == 0 or (ROOTS_PLACE.exists() and not own.exists()) else own


def probe(layout: LabDirectories, gpus: int) -> Means:
    """Return what a lab in this (existing) directory can use."""
    root = os.geteuid() == 0
    no_namespaces = _why_no_namespaces(layout)
    no_cgroups = no_namespaces or lab_cgroups.why_not(layout.cgroup_name)
    return Means(
        release=parse_release(output([program("slurmctld"), "-V"])),
        root=root,
        no_namespaces=no_namespaces,
        no_cgroups=no_cgroups,
        no_devices=make_devices(layout, gpus),
    )


def make_devices(layout: LabDirectories, gpus: int) -> str:
    """Create D/dev/nvidiaN as character devices, or as links to /dev/null when mknod is refused.

    Return why mknod was refused, or "". Slurm numbers GPUs by the digits in the file's name, but only if stat() reports
    a character device: with a regular file it does not set CUDA_VISIBLE_DEVICES (Slurm 22.05).
    """
    refused = ""
    for index in range(gpus):
        path = layout.devices / f"nvidia{index}"
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(NVIDIA_MAJOR, index))
            path.chmod(0o666)
        except PermissionError as error:
            refused = f"mknod is not permitted ({error.strerror}); their files are links to /dev/null"
            path.symlink_to("/dev/null")
    return refused


def check_user(user: str) -> pwd.struct_passwd:
    """Return SlurmUser's account.

    Raise UsageError when it does not exist, or when this process runs neither as root nor as that user.
    """
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise UsageError(f"--slurm-user: there is no user '{user}'") from None
    if os.geteuid() not in (0, entry.pw_uid):
        raise UsageError(f"--slurm-user {user}: only root may start a lab for someone else")
    return entry


def check_ports(ports: Iterable[int]) -> None:
    """Raise LabError with the first port that is in use, the process that uses it if known, and a hint."""
    for port in ports:
        with socket.socket() as probe_socket:
            probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                # Slurm's daemons listen on all addresses.
                probe_socket.bind(("0.0.0.0", port))
            except OSError as error:
                raise LabError(
                    f"port {port} is in use{_port_user(port)}", hint="choose free ports with --base-port"
                ) from error


def check_place(directory: Path) -> None:
    """Raise LabError when nodes could not execute files below `directory`, or users could not reach root's lab."""
    if os.statvfs(directory).f_flag & os.ST_NOEXEC:
        raise LabError(f"{directory} is on a file system mounted noexec", hint="choose another --dir")
    blocked = unreachable_for_others(directory) if os.geteuid() == 0 else ""
    if blocked:
        raise LabError(
            f"users cannot reach {directory}: {blocked} does not let them through", hint="choose another --dir"
        )


def unreachable_for_others(directory: Path) -> str:
    """Return the first directory of the path that other users cannot enter, with its mode; "" without one."""
    for parent in reversed((directory, *directory.parents)):
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            return f"{parent} ({stat.S_IMODE(mode):04o})"
    return ""


def launcher(name: str, hosts: Path, groups: dict[Path, Path]) -> list[str]:
    """Return the arguments that turn a process into the node `name`; append the program to run."""
    pairs = [f"{mount}={group}" for mount, group in groups.items()]
    return [sys.executable, "-I", "-S", str(Path(node_launcher.__file__)), name, str(hosts), *pairs, "--"]


def _why_no_namespaces(layout: LabDirectories) -> str:
    if os.geteuid() != 0:
        return "only root can give nodes namespaces of their own"
    with tempfile.NamedTemporaryFile(dir=layout.root, prefix=".hosts-") as hosts:
        argv = [*launcher("probe", Path(hosts.name), {}), program("true")]
        done = subprocess.run(argv, capture_output=True, timeout=30, check=False)
    last = done.stderr.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1].rpartition("] ")[2]
    return "" if done.returncode == 0 else f"namespaces are not permitted here: {last}"


def _port_user(port: int) -> str:
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""
