"""The lab's checks of the machine it runs on."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slurmwrap.errors import LabError, UsageError
from slurmwrap.lab import lab_cgroups, machine
from slurmwrap.lab.daemons import MARK, kill_all, owned
from slurmwrap.lab.lab_directories import LabDirectories

MOUNTS = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/devices,freezer cgroup rw,relatime,devices,freezer 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
memory /home/memory ext4 rw,memory 0 0
"""


def test_cgroup_controllers_are_found_in_single_and_joint_mounts() -> None:
    assert lab_cgroups.mountpoints(MOUNTS) == {
        "memory": Path("/sys/fs/cgroup/memory"),
        "devices": Path("/sys/fs/cgroup/devices,freezer"),
        "freezer": Path("/sys/fs/cgroup/devices,freezer"),
    }


def test_with_only_cgroup_v2_no_v1_controllers_are_found() -> None:
    assert lab_cgroups.mountpoints("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,memory_recursiveprot 0 0\n") == {}


def test_a_port_in_use_is_named_with_a_hint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LabError, match=f"port {port} is in use") as caught:
            machine.check_ports((port,))
        assert "--base-port" in caught.value.hint
    machine.check_ports((port,))


def test_a_missing_program_is_reported_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LabError, match="'no-such-slurmd' is not installed") as caught:
        machine.program("no-such-slurmd")
    assert "apt-get install" in caught.value.hint


def test_unknown_slurm_user_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="there is no user 'no-such-account'"):
        machine.check_user("no-such-account")


def test_gpus_are_character_devices_made_by_mknod_or_by_link(tmp_path: Path) -> None:
    layout = LabDirectories(tmp_path)
    layout.devices.mkdir()
    refused = machine.make_devices(layout, 2)
    files = [(layout.devices / f"nvidia{index}").stat() for index in range(2)]
    null = Path("/dev/null").stat().st_rdev
    assert [stat.S_ISCHR(file.st_mode) for file in files] == [True, True]
    assert [file.st_rdev for file in files] == ([null, null] if refused else [os.makedev(195, 0), os.makedev(195, 1)])


def test_a_directory_closed_to_other_users_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    tmp_path.chmod(0o755)
    # pytest's own parents are closed as well; the outermost one is named.
    assert machine.unreachable_for_others(closed / ".") != ""
    assert machine.unreachable_for_others(Path("/usr")) == ""


def test_only_processes_of_the_given_lab_are_found_and_killed(tmp_path: Path) -> None:
    def child(mark: Path, *more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "input()", *more], stdin=subprocess.PIPE, env={MARK: str(mark)})

    layout = LabDirectories(tmp_path / "a")
    with (
        child(layout.root) as ours,
        child(tmp_path / "ab") as others,
        child(tmp_path, str(layout.slurm_conf)) as editor,
    ):
        try:
            assert owned(layout) == {ours.pid}
            assert kill_all(layout) == 1
            assert (ours.wait(5), others.poll(), editor.poll()) == (-9, None, None)
        finally:
            for process in (ours, others, editor):
                process.kill()


def test_a_shell_with_the_labs_variables_is_not_a_process_of_the_lab(tmp_path: Path) -> None:
    layout = LabDirectories(tmp_path)
    shell = {"SLURM_CONF": str(layout.slurm_conf)}
    task = {**shell, "SLURMD_NODENAME": "n0"}
    argv = [sys.executable, "-c", "input()"]
    with (
        subprocess.Popen(argv, stdin=subprocess.PIPE, env=shell) as user,
        subprocess.Popen(argv, stdin=subprocess.PIPE, env=task) as job,
    ):
        try:
            assert owned(layout) == {job.pid}
        finally:
            user.kill()
            job.kill()


def test_missing_programs_for_accounting_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sacctmgr", "slurmdbd"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError) as caught:
        machine.check_accounting(search=str(tmp_path))
    assert str(caught.value) == "--accounting: not installed: mariadbd, mariadb-install-db, my_print_defaults"
    assert "mariadb-server-core mariadb-client-core (" in (caught.value.hint or "")
