"""The users that may run jobs in a lab with accounting."""

from __future__ import annotations

import pwd

from slurmwrap.lab.lab_accounting import people


def account(name: str, uid: int, shell: str = "/bin/bash") -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, uid, "", f"/home/{name}", shell))


def test_all_accounts_with_a_login_shell_and_slurm_user_may_run_jobs() -> None:
    accounts = [
        account("root", 0),
        account("daemon", 1, "/usr/sbin/nologin"),
        account("bob", 1001),
        account("Ann-M.2_x", 1002),
        account("backup", 1003, "/bin/false"),
        account("nobody", 65534, "/usr/sbin/nologin"),
        account("slurm", 64030),
    ]
    assert people(accounts, "slurm") == ("slurm", "Ann-M.2_x", "bob")
    assert people(accounts, "bob") == ("bob", "Ann-M.2_x")


def test_a_user_name_that_sacctmgr_would_split_is_left_out() -> None:
    assert people([account("a,b", 1001), account("c=d", 1002), account("e f", 1003)], "root") == ("root",)
