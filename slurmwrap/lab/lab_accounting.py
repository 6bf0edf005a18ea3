"""Set up the lab's accounting (`lab up --accounting`, adapter): a private MariaDB, slurmdbd, and the users in sacctmgr.

The database is in D/accounting, can be reached only by a socket there, and belongs to SlurmUser, who needs no password
(unix_socket). No service of the machine is started or stopped, and none of its databases is changed.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterable, Sequence

from slurmwrap.errors import LabError
from slurmwrap.lab import daemons, machine
from slurmwrap.lab.lab_directories import LabDirectories, exports
from slurmwrap.lab.lab_spec import ACCOUNT, LabSpec
from slurmwrap.lab.render_slurm_conf import DATABASE

# Uids of ordinary users: UID_MIN to UID_MAX of login.defs(5), as Debian ships them.
_USER_UIDS = range(1000, 60_000)


def make_database(layout: LabDirectories, user: str) -> None:
    """Create an empty MariaDB whose only account is `user`. Raise LabError with the program's own message.

    slurmdbd normally creates its database itself, but with libmariadb3 11.8.9 it cannot: after a connection that failed
    because the database is missing, that library refuses every result ("maximum allowed number of columns (=0)").
    """
    place = layout.accounting
    sql = (
        f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
        f"CREATE USER IF NOT EXISTS '{user}'@'localhost' IDENTIFIED VIA unix_socket;\n"
        f"GRANT ALL ON {DATABASE}.* TO '{user}'@'localhost';\n"
    )
    (place / "init.sql").write_text(sql, encoding="utf-8")
    argv = [machine.program("mariadb-install-db"), "--no-defaults", f"--datadir={place / 'data'}", f"--user={user}",
            "--auth-root-authentication-method=socket", "--skip-test-db"]  # fmt: skip
    _run_checked(argv)


def mariadbd_argv(layout: LabDirectories, user: str) -> list[str]:
    """Return the arguments of mariadbd: small, reachable only by its socket, without configuration files."""
    place = layout.accounting
    return [
        machine.program("mariadbd"), "--no-defaults", f"--user={user}", f"--datadir={place / 'data'}",
        f"--socket={layout.database_socket}", f"--pid-file={place / 'mariadbd.pid'}", "--skip-networking",
        f"--init-file={place / 'init.sql'}", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M",
        "--innodb-lock-wait-timeout=900", "--performance-schema=OFF", "--skip-log-bin",
        # On by default since MariaDB 11.6; then slurmdbd may end with an error when two writers conflict.
        "--loose-innodb-snapshot-isolation=OFF",
    ]  # fmt: skip


def slurmdbd_environ(layout: LabDirectories) -> dict[str, str]:
    """Return the environment of slurmdbd.

    It finds slurmdbd.conf next to slurm.conf. The path of the database's socket can be given only to the client
    library.
    """
    return {**exports(layout), "MYSQL_UNIX_PORT": str(layout.database_socket)}


def admit(spec: LabSpec, layout: LabDirectories) -> None:
    """Allow SlurmUser and all ordinary users of this machine to run jobs, in the Slurm account "lab"."""
    add = [machine.program("sacctmgr"), "-i", "add"]
    environ = exports(layout)
    _run_checked([*add, "account", ACCOUNT, "Description=lab", "Organization=lab"], environ)
    _run_checked([*add, "user", ",".join(people(pwd.getpwall(), spec.slurm_user)), f"Account={ACCOUNT}"], environ)


def people(accounts: Iterable[pwd.struct_passwd], slurm_user: str) -> tuple[str, ...]:
    """Return the names of SlurmUser and all users that can log in. Pure.

    Names that sacctmgr would read as several names are omitted.
    """
    named = (a.pw_name for a in accounts if a.pw_uid in _USER_UIDS and not a.pw_shell.endswith(("/nologin", "/false")))
    plain = (name for name in named if name.replace("-", "").replace("_", "").replace(".", "").isalnum())
    return tuple(dict.fromkeys((slurm_user, *sorted(plain))))


def _run_checked(argv: Sequence[str], environ: dict[str, str] | None = None) -> None:
    environ = {"PATH": daemons.PATH, "LC_ALL": "C", **(environ or {})}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=60, env=environ, check=False
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"{os.path.basename(argv[0])} did not answer within 60 s") from None  # noqa: PTH119
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise LabError(f"{os.path.basename(argv[0])} failed: {lines[0].strip()}")  # noqa: PTH119
