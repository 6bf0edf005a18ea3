"""slurmwrap doctor on a real Slurm: a lab without problems, then one problem after another."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab, started
from waiting import wait_for

from slurmwrap.install.service_watchdog import HEARTBEAT
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.slurm.pyslurm.compatibility import find_installed_version

pytestmark = pytest.mark.lab
ALICE, _ = USERS


@pytest.fixture(scope="module")
def own_lab(lab_scratch: Path) -> Iterator[Lab]:
    """A lab whose daemons may be stopped."""
    with started(lab_scratch / "doctor", "--nodes", "4") as running:
        words = ("-w", "n[0-1]", "--mem=50", "--output=/dev/null", "--wrap", "srun true")
        for job in [running.submit(*words, user=ALICE) for _ in range(2)]:
            running.wait_job(job)
        state = LabDirectories(running.dir).state / "site.db"

        def epilogs() -> int:
            running.reconcile_once()
            with closing(sqlite3.connect(state)) as kept:
                return int(kept.execute("SELECT count(*) FROM observations WHERE context = 'epilog'").fetchone()[0])

        assert wait_for(epilogs, lambda count: count == 4, 60) == 4
        yield running


@pytest.fixture
def records(own_lab: Lab) -> Iterator[sqlite3.Connection]:
    """The site's database. Its content is restored after the test."""
    path = LabDirectories(own_lab.dir).state / "site.db"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(":memory:")) as kept:
        source.backup(kept)
        yield source
        source.rollback()
        kept.backup(source)


def run_checks_as_root(lab: Lab, *only: str, **environ: str) -> dict[str, dict[str, Any]]:
    """The results of these checks as root gets them."""
    return run_doctor(lab, None, *only, **environ)[1]


def get_state_text_and_details(found: dict[str, Any]) -> tuple[str, str, list[str]]:
    return found["state"], found["text"], found["details"]


def run_doctor(lab: Lab, user: str | None = ALICE, *only: str, **environ: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = lab.slurmwrap("doctor", "--json", *(f"--only={name}" for name in only), user=user, env=environ)
    assert done.stderr == ""
    return done.returncode, {one["name"]: one for one in json.loads(done.stdout)["checks"]}


def test_no_check_fails_on_a_fresh_lab(own_lab: Lab) -> None:
    release = own_lab.run(["scontrol", "--version"]).stdout.split()[-1]
    done = own_lab.slurmwrap("doctor", "--json", user=ALICE)
    found = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    assert {name: one["state"] for name, one in found.items() if one["state"] not in ("ok", "skip")} == {}
    assert (done.returncode, done.stderr) == (0, "")
    assert found["commands"]["text"] == f"Slurm {release}"
    assert found["controller"]["text"].startswith(f"slurmctld {release} of cluster '")
    assert found["slurm.conf"]["text"] == f"{own_lab.env['SLURM_CONF']} (SLURM_CONF)"
    assert found["accounting"]["text"] == "no slurmdbd"
    if not find_installed_version():
        assert found["adapter"]["text"] == "commands: PySlurm is not installed"
    skipped = ("skip", "only root and SlurmUser can look: sudo slurmwrap doctor")
    names = ("hooks on nodes", "clocks of nodes", "GPUs of nodes", "rejected", "site database")
    assert {name: (found[name]["state"], found[name]["text"]) for name in names} == dict.fromkeys(names, skipped)
    assert (found["spool"]["state"], found["reconciler"]["state"]) == ("ok", "ok")


def test_a_configured_adapter_that_is_not_installed_is_a_warning(own_lab: Lab) -> None:
    if find_installed_version():
        pytest.skip("PySlurm is installed here")
    code, found = run_doctor(own_lab, ALICE, "adapter", SLURMWRAP_SLURM_ADAPTER="pyslurm")
    assert (code, found["adapter"]["state"]) == (1, "warn")
    assert found["adapter"]["text"] == "commands, not PySlurm: PySlurm is not installed"


def test_gsub_installed_as_sbatch_is_reported(own_lab: Lab) -> None:
    folder = own_lab.dir / "front"
    folder.mkdir()
    (folder / "sbatch").symlink_to(Path(sys.executable).parent / "gsub")
    _, found = run_doctor(own_lab, ALICE, "sbatch", PATH=f"{folder}:{os.environ['PATH']}")
    assert found["sbatch"]["state"] == "ok"
    assert found["sbatch"]["text"].endswith(f"; `sbatch` itself is {folder}/sbatch: gsub in its place")


def test_a_slurmctld_and_a_munged_that_do_not_answer_are_failures(own_lab: Lab) -> None:
    def pid(name: str) -> int:
        return int(next(own_lab.dir.rglob(f"{name}.pid")).read_text())

    stopped = [pid("slurmctld"), pid("munged")]
    for one in stopped:
        os.kill(one, signal.SIGSTOP)
    try:
        code, found = run_doctor(own_lab, SLURMWRAP_SLURM_TIMEOUT_S="1")
    finally:
        for one in stopped:
            os.kill(one, signal.SIGCONT)
    assert (code, found["controller"]["state"], found["munge"]["state"]) == (2, "fail", "fail")
    assert found["adapter"]["state"] == found["accounting"]["state"] == "skip"
    assert run_doctor(own_lab, ALICE, "controller", "munge")[0] == 0


def test_root_gets_the_checks_of_the_whole_site(own_lab: Lab) -> None:
    code, found = run_doctor(own_lab, None)
    assert {name: one for name, one in found.items() if one["state"] not in ("ok", "skip")} == {}
    skipped = {name for name, one in found.items() if one["state"] == "skip"}
    assert skipped - {"PySlurm", "NVML", "units", "completion"} == {"controllers", "mail", "metrics", "notify"}
    assert code == 0
    assert found["hooks"]["text"] == f"Prolog, Epilog, EpilogSlurmctld: {own_lab.dir}/hooks"
    assert found["hooks on nodes"]["text"].startswith("2 of the 4 nodes that are up sent records in 7 days; ")
    assert found["clocks of nodes"]["text"] == "2 nodes have records, no clock differs from slurmctld's"
    assert found["prerun partition"]["text"] == "prerun: up, 32 GPUs"


def test_a_hook_removed_from_slurm_conf_is_a_failure(own_lab: Lab) -> None:
    conf = LabDirectories(own_lab.dir).slurm_conf
    original = conf.read_text()
    try:
        conf.write_text(re.sub(r"(?m)^Epilog=.*$", "Epilog=/bin/true", original))
        assert own_lab.run(["scontrol", "reconfigure"]).returncode == 0
        wait_for(lambda: own_lab.run(["scontrol", "show", "config"]).stdout, lambda output: "/bin/true" in output, 60)
        state, text, _ = get_state_text_and_details(run_checks_as_root(own_lab, "hooks")["hooks"])
    finally:
        conf.write_text(original)
        own_lab.run(["scontrol", "reconfigure"])
    assert (state, text) == ("fail", "slurm.conf does not name these hooks: Epilog")


def test_missing_hook_files_are_a_failure(own_lab: Lab) -> None:
    zipapp = own_lab.dir / "hooks" / "node_hooks.pyz"
    aside = zipapp.rename(zipapp.with_suffix(".aside"))
    try:
        state, text, _ = get_state_text_and_details(run_checks_as_root(own_lab, "hooks")["hooks"])
    finally:
        aside.rename(zipapp)
    assert (state, text) == ("fail", f"{own_lab.dir}/hooks: files are missing or cannot be read")


def test_nodes_are_checked_by_the_records_that_they_sent(own_lab: Lab, records: sqlite3.Connection) -> None:
    """The records of n0 are copied as records of n2 and n3, with a slow clock, other hooks and a hanging driver. The
    Epilog records of n1 are deleted."""
    columns = "nonce, cluster, job_id, context, at, node, uid, facts"
    for node in ("n2", "n3"):
        records.execute(
            f"INSERT INTO observations ({columns}) SELECT nonce || ?1, cluster, job_id, context,"
            " at - iif(context = 'prolog', 120, 0), ?1, uid,"
            " json_set(facts, '$.hooks', json('{\"checksum\": \"0\"}'), '$.gpu_error', 'driver hung: process 4')"
            " FROM observations WHERE node = 'n0' AND context IN ('prolog', 'epilog')",
            (node,),
        )
    records.execute("DELETE FROM observations WHERE node = 'n1' AND context = 'epilog'")
    records.execute("""UPDATE attempts SET nodes = '["n0","n1","n2","n3"]', end_time = end_time - 60""")
    records.execute(
        "INSERT INTO rejected_entries VALUES (0, 'it was sealed on 127.0.1.1', 17, ?1, ?1, 'x')", (time.time(),)
    )
    records.commit()
    found = run_checks_as_root(own_lab, "hooks on nodes", "clocks of nodes", "GPUs of nodes", "rejected")
    assert {name: get_state_text_and_details(one) for name, one in found.items()} == {
        "hooks on nodes": (
            "fail",
            "3 of the 4 nodes that are up sent records in 7 days; 4 ran jobs",
            [
                "n1: ran jobs in the last 7 days, and no Epilog sent a record",
                "n[2-3]: other hooks than the controller's: `slurmwrap hooks install --nodes` updates them",
            ],
        ),
        "clocks of nodes": (
            "warn",
            "2 of 4 nodes differ from slurmctld's clock",
            [found["clocks of nodes"]["details"][0]],
        ),
        "GPUs of nodes": (
            "warn",
            "NVML did not report the state of GPUs on 2 of 2 nodes",
            ["n[2-3]: driver hung: process 4"],
        ),
        "rejected": ("warn", "17 records were rejected", ["17 of uid 0: it was sealed on 127.0.1.1"]),
    }
    assert re.fullmatch(r"n\[2-3\]: at least 1(1\d|20) s behind", found["clocks of nodes"]["details"][0])


WRONG_MODES = (
    ("spool", 0o777, "mode 0777, not 1733: without the sticky bit every user could remove the records of others"),
    ("spool", 0o1755, "mode 1755, not 1733: nodes and users cannot write"),
    ("published", 0o777, "can be written by others (root, mode 0777): gsub does not trust it"),
    ("published", 0o750, "mode 0750, users cannot read it"),
)


def test_directories_with_a_wrong_mode_are_failures(own_lab: Lab) -> None:
    results = []
    for name, mode, _ in WRONG_MODES:
        path = own_lab.dir / name
        before = path.stat().st_mode & 0o7777
        path.chmod(mode)
        try:
            found = run_checks_as_root(own_lab, name)[name]
        finally:
            path.chmod(before)
        text = found["text"].removeprefix(f"{path}: ").removeprefix(f"{path} ")
        results.append((found["state"], text, found["hint"].startswith("Run: chown root ")))
    assert results == [("fail", wanted, True) for _, _, wanted in WRONG_MODES]


def test_a_damaged_database_page_is_a_failure(own_lab: Lab, lab_scratch: Path) -> None:
    damaged = lab_scratch / "damaged"
    damaged.mkdir()
    path = damaged / "site.db"
    with (
        closing(sqlite3.connect(LabDirectories(own_lab.dir).state / "site.db")) as source,
        closing(sqlite3.connect(path)) as to,
    ):
        source.backup(to)
        to.execute("PRAGMA journal_mode = DELETE")
        (page,) = to.execute("SELECT rootpage FROM sqlite_master WHERE name = 'attempts'").fetchone()
        (size,) = to.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    found = run_checks_as_root(own_lab, "site database", SLURMWRAP_SITE_STATE_DIR=str(damaged))["site database"]
    assert (found["state"], found["text"]) == ("fail", f"database {path} is damaged")
    assert f"mv {path} {path}.damaged" in found["hint"]


def test_a_pre_run_partition_that_cannot_run_pre_runs_is_reported(own_lab: Lab) -> None:
    update = ["scontrol", "update", "PartitionName=prerun"]
    try:
        assert own_lab.run([*update, "State=DOWN", "MaxTime=5", "AllowAccounts=physics"]).returncode == 0
        found = run_checks_as_root(own_lab, "prerun partition")["prerun partition"]
        missing = run_checks_as_root(own_lab, "prerun partition", SLURMWRAP_PRERUN_PARTITION="trial")[
            "prerun partition"
        ]
    finally:
        own_lab.run([*update, "State=UP", "MaxTime=20", "AllowAccounts=ALL"])
    assert get_state_text_and_details(found) == (
        "warn",
        "pre-runs cannot all run in 'prerun'",
        [
            "it is DOWN",
            "MaxTime is 300 s, and a pre-run asks for 900 s (prerun.time_limit_s)",
            "AllowAccounts=physics: pre-runs of all others are refused there",
        ],
    )
    assert (missing["state"], missing["text"]) == ("fail", "Slurm has no partition 'trial'")


def test_a_reconciler_that_no_longer_runs_is_a_failure(own_lab: Lab) -> None:
    heartbeat, hours_ago = LabDirectories(own_lab.dir).state / HEARTBEAT, time.time() - 3 * 3600
    os.utime(own_lab.dir / "published" / "published.json", (hours_ago, hours_ago))
    heartbeat.touch()
    os.utime(heartbeat, (hours_ago, hours_ago))
    try:
        found = run_checks_as_root(own_lab, "reconciler")["reconciler"]
        _, users = run_doctor(own_lab, ALICE, "reconciler")
    finally:
        heartbeat.unlink()
        own_lab.reconcile_once()
    assert (found["state"], found["text"]) == ("fail", "it last passed 3 hours ago")
    assert (users["reconciler"]["state"], users["reconciler"]["text"]) == ("fail", "it last published 3 hours ago")
    assert run_checks_as_root(own_lab, "reconciler")["reconciler"]["state"] == "ok"


def test_slurm_user_without_a_home_gets_the_checks_of_the_whole_site(lab_as_slurm: Lab) -> None:
    lab_as_slurm.reconcile_once()
    code, found = run_doctor(lab_as_slurm, "slurm", HOME="/nonexistent")
    assert {name: one for name, one in found.items() if one["state"] not in ("ok", "skip")} == {}
    assert (code, found["state"]["state"], found["site database"]["state"]) == (0, "skip", "ok")
    config = Path(lab_as_slurm.env["SLURMWRAP_CONFIG"])
    config.chmod(0o666)
    try:
        code, refused = run_doctor(lab_as_slurm, "slurm", HOME="/nonexistent")
        users_code, warned = run_doctor(lab_as_slurm, ALICE, "configuration")
    finally:
        config.chmod(0o644)
    others = f"{config}: others may write it (mode 0666)"
    assert (code, list(refused)) == (2, ["configuration"])
    assert refused["configuration"]["text"] == f"{others}, but root and SlurmUser act on its contents"
    assert (users_code, warned["configuration"]["details"]) == (1, [others])
