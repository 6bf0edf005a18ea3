"""Write the directory of a lab (adapter): Slurm's configuration, nodes' private files, slurmwrap's hooks."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from pathlib import Path

from slurmwrap.host import hook_archive
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_spec import LabSpec, gpu_bus_id, gpu_information, hosts_text
from slurmwrap.lab.machine import output, program
from slurmwrap.lab.render_slurm_conf import HookPaths, Means, render


def make_skeleton(layout: LabDirectories) -> None:
    """Create the directories that `machine.probe` needs."""
    for path in (layout.etc, layout.munge_key.parent, layout.munge_socket.parent, layout.logs, layout.devices):
        _make_directory(path, 0o755)


def fill(
    spec: LabSpec, layout: LabDirectories, means: Means, owner: pwd.struct_passwd, hooks: HookPaths | None
) -> None:
    """Write everything that the daemons need before they start."""
    _make_key(layout)
    _make_slurmwrap_directories(layout, owner)
    private = (layout.accounting,) if spec.accounting else ()
    for path in (layout.controller, layout.controller / "state", *private):
        _make_directory(path, 0o700, owner)
    for name in ("slurmctld", "slurmdbd") if spec.accounting else ("slurmctld",):
        layout.log(name).touch()
        _set_owner(layout.log(name), owner)
    for name in spec.node_names:
        _make_node(spec, layout, name)
    for name, text in render(spec, layout, means, hooks).items():
        path = layout.etc / name
        _make_directory(path.parent, 0o755)
        path.write_text(text, encoding="utf-8")
        # slurmdbd refuses a slurmdbd.conf that other users can read.
        if name == "slurmdbd.conf":
            path.chmod(0o600)
            _set_owner(path, owner)


def install_hooks(spec: LabSpec, layout: LabDirectories, owner: pwd.struct_passwd) -> HookPaths:
    """Install slurmwrap's hooks into D/hooks and return their paths."""
    controller_dir = layout.state / "controller"
    _make_directory(layout.hooks, 0o755)
    for path in (layout.state, controller_dir):
        _make_directory(path, 0o700, owner)
    settings = hook_archive.InstalledHookSettings(
        directory=layout.hooks,
        python=str(Path(sys.executable).resolve()),
        spool=layout.spool,
        controller_dir=controller_dir,
        node_state_dir=layout.node("%n") / "state",
        cluster=spec.cluster,
        munge=program("munge"),
        munge_socket=str(layout.munge_socket),
        kernel_log=f"file:{layout.kernel_log('%n')}",
        nvidia_proc=str(layout.node("%n") / "nvidia"),
        sysfs=str(layout.node("%n") / "sysfs"),
    )
    files = hook_archive.install(settings)
    return HookPaths(prolog=str(files.prolog), epilog=str(files.epilog), epilog_slurmctld=str(files.epilog_slurmctld))


def _make_key(layout: LabDirectories) -> None:
    output([program("mungekey"), "--create", f"--keyfile={layout.munge_key}"])
    layout.munge_key.chmod(0o400)


def _make_slurmwrap_directories(layout: LabDirectories, owner: pwd.struct_passwd) -> None:
    _make_directory(layout.spool, 0o1733, owner)
    _make_directory(layout.published, 0o755, owner)
    _make_directory(layout.state, 0o700, owner)


def _make_node(spec: LabSpec, layout: LabDirectories, name: str) -> None:
    node = layout.node(name)
    for path in (node, node / "spool"):
        _make_directory(path, 0o755)
    _make_directory(node / "state", 0o700)
    machine = Path("/etc/hosts").read_text(encoding="utf-8", errors="surrogateescape") if _has_hosts() else ""
    (node / "hosts").write_text(hosts_text(spec, machine), encoding="utf-8", errors="surrogateescape")
    os.close(os.open(layout.kernel_log(name), os.O_WRONLY | os.O_CREAT, 0o600))
    for index in range(spec.gpus):
        folder = node / "nvidia" / "gpus" / gpu_bus_id(index)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "information").write_text(gpu_information(spec, index), encoding="utf-8")


def _has_hosts() -> bool:
    return Path("/etc/hosts").is_file()


def _make_directory(path: Path, mode: int, owner: pwd.struct_passwd | None = None) -> None:
    """Create a directory with exactly this mode, independent of the umask, and this owner."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    if owner is not None:
        _set_owner(path, owner)


def _set_owner(path: Path, owner: pwd.struct_passwd) -> None:
    if os.geteuid() == 0:
        shutil.chown(path, owner.pw_uid, owner.pw_gid)
