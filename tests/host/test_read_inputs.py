"""Input files are read with the rights of the job's user, and only if they are regular files."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurmwrap.host.read_user_file import read_inputs_as
from slurmwrap.model.decision import InputRead
from slurmwrap.prerun.static.job_inputs import digest

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


def test_own_files_are_read_with_digest_and_fault(open_dir: Path) -> None:
    broken = open_dir / "x.npz"
    broken.write_bytes(b"no zip at all")
    found = read_inputs_as(os.geteuid(), (str(broken), str(open_dir / "missing")))
    assert found[0].digest == digest(str(broken)) and found[0].fault
    assert found[1] == InputRead(path=str(open_dir / "missing"), fault="does not exist")


@ROOT
def test_root_reads_inputs_with_the_users_rights_only(open_dir: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    secret, users_file = open_dir / "secret", open_dir / "his"
    secret.write_text("root's")
    secret.chmod(0o600)
    users_file.write_text("his")
    users_file.chmod(0o600)
    os.chown(users_file, nobody, -1)
    assert read_inputs_as(nobody, (str(secret), str(users_file))) == (
        InputRead(path=str(secret)),
        InputRead(path=str(users_file), digest=digest(str(users_file))),
    )


@ROOT
def test_an_input_is_another_users_only_if_neither_content_nor_name_is_the_users(open_dir: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    data, home = open_dir / "data", open_dir / "home"
    data.mkdir(mode=0o755)
    home.mkdir(mode=0o755)
    sound, empty, copy, link = data / "x.csv", data / "empty.npy", home / "x.npy", home / "y.npy"
    for path, content in ((sound, b"1,2\n"), (empty, b""), (copy, b"1,2\n")):
        path.write_bytes(content)
        path.chmod(0o644)
    link.symlink_to(sound)
    for path in (home, copy):
        os.chown(path, nobody, -1)
    found = read_inputs_as(nobody, tuple(map(str, (sound, empty, copy, link))))
    assert [(read.fault != "", read.theirs) for read in found] == [
        (False, True),
        (True, False),  # all empty files have the same digest
        (True, False),
        (True, False),  # the other user's content under a name that belongs to the job's user
    ]
    assert len({read.digest for read in (found[0], *found[2:])}) == 1


def test_a_fifo_a_directory_and_a_hostile_path_are_skipped_without_blocking(open_dir: Path) -> None:
    os.mkfifo(open_dir / "fifo")
    paths = (str(open_dir / "fifo"), str(open_dir), "/x\ny' $(reboot)")
    assert [(read.digest, read.path) for read in read_inputs_as(os.geteuid(), paths)] == [("", path) for path in paths]


def test_no_input_is_read_for_an_unknown_user() -> None:
    assert read_inputs_as(3_999_999_999, ("/etc/passwd",)) == ()


AS_SLURM_USER = """
import json, os, sys, time
from slurmwrap.host.read_user_file import read_inputs_as
from slurmwrap.node_hooks import deadline_child, user_files

def after(send):
    user_files.become("nobody", int(sys.argv[1]), int(sys.argv[2]), send.descriptor)
    caps = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm", "CapAmb"))]
    try:
        os.setuid(0)
    except PermissionError:
        caps.append("no way back")
    send(json.dumps([os.getresuid(), caps]).encode())

found = [one.digest for one in read_inputs_as(int(sys.argv[1]), tuple(sys.argv[3:]))]
seen = deadline_child.call(after, time.monotonic() + 1000, 4096).data
print(json.dumps([os.geteuid(), found, json.loads(seen or b"null")]))
"""


@ROOT
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="util-linux' setpriv is not installed")
@pytest.mark.parametrize("given", [True, False])
def test_slurm_user_needs_capabilities_to_read_as_the_user_and_drops_them(open_dir: Path, given: bool) -> None:
    """Runs as systemd starts the reconciler of a SlurmUser other than root, with and without --become-users."""
    nobody, daemon = pwd.getpwnam("nobody"), pwd.getpwnam("daemon")
    secret, users_file = open_dir / "secret", open_dir / "his"
    for path, owner in ((secret, daemon.pw_uid), (users_file, nobody.pw_uid)):
        path.write_text(path.name)
        path.chmod(0o600)
        os.chown(path, owner, -1)
    caps = "+setuid,+setgid" if given else "-all"
    argv = ["setpriv", f"--reuid={daemon.pw_uid}", f"--regid={daemon.pw_gid}", "--clear-groups", f"--inh-caps={caps}",
            f"--ambient-caps={caps}", "--no-new-privs", sys.executable, "-c", AS_SLURM_USER]  # fmt: skip
    who = [str(nobody.pw_uid), str(nobody.pw_gid), str(secret), str(users_file)]
    done = subprocess.run([*argv, *who], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    none = "0" * 16
    uid = nobody.pw_uid
    wanted = (
        [["", digest(str(users_file))], [[uid, uid, uid], [none, none, none, "no way back"]]] if given else [[], None]
    )
    assert json.loads(done.stdout) == [daemon.pw_uid, *wanted]
