"""`slurmwrap ...` against a lab in a child of the tests: as the user who asks, without starting another Python.

What a start costs is most of what a command costs. Each file keeps its first submission, or its hooks, as programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os
import pwd
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path

from realslurm import Lab, command_environment
from typer.testing import CliRunner

from slurmwrap.cli.slurmwrap import app, main
from slurmwrap.diagnosis.signatures import default_signatures
from slurmwrap.slurm import snapshot

_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 4, 8, 38, 47, 2
_CAPABILITY_VERSION_3 = 0x20080522
_SETGID_SETUID = (6, 7)


@functools.cache
def _load() -> None:
    """What each child would load again."""
    assert snapshot
    default_signatures()
    assert CliRunner().invoke(app, ["why", "--help"]).exit_code == 0


def slurmwrap(
    lab: Lab,
    *words: str | Path,
    user: str | None = None,
    cwd: str | Path | None = None,
    env: Mapping[str, str] = {},
    becomes_users: bool = False,
) -> subprocess.CompletedProcess[str]:
    """As Lab.slurmwrap; `user` None is root. `becomes_users`: as root starts the reconciler (lab/processes.py)."""
    _load()
    argv = ["slurmwrap", *map(str, words)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _be(lab, argv, user, cwd, env, (out.fileno(), err.fileno()), becomes_users)
        _, status = os.waitpid(child, 0)
        texts = [_read(stream) for stream in (out, err)]
    return subprocess.CompletedProcess(argv, os.waitstatus_to_exitcode(status), *texts)


def reconcile_once(lab: Lab) -> subprocess.CompletedProcess[str]:
    """As Lab.reconcile_once: the site's reconciler, as SlurmUser who may become any user."""
    user = None if lab.slurm_user == "root" else lab.slurm_user
    done = slurmwrap(lab, "reconcile", "--once", user=user, becomes_users=user is not None)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def _read(stream: io.BufferedRandom) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")


def _be(
    lab: Lab,
    argv: list[str],
    user: str | None,
    cwd: str | Path | None,
    env: Mapping[str, str],
    streams: tuple[int, int],
    becomes_users: bool,
) -> None:
    """Does not return."""
    code = 99
    try:
        account = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
        home = account.pw_dir if Path(account.pw_dir).is_dir() else "/"
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, handle in enumerate((nothing, *streams)):
            os.dup2(handle, number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        if user:
            _become(account, becomes_users)
        os.chdir(cwd or home)
        os.environ.clear()
        os.environ.update({**command_environment(user), **lab.env, **env})
        sys.argv = argv
        code = _code_of_main()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _become(account: pwd.struct_passwd, becomes_users: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_KEEPCAPS, int(becomes_users), 0, 0, 0)
    os.setgroups([account.pw_gid] if becomes_users else [])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    if becomes_users:
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        low = sum(1 << one for one in _SETGID_SETUID)
        assert libc.capset(header, (ctypes.c_uint32 * 6)(low, low, low, 0, 0, 0)) == 0
        for one in _SETGID_SETUID:
            assert libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, one, 0, 0) == 0
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # else what is below /proc/self stays root's


def _code_of_main() -> int:
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
