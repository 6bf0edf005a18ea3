"""slurmwrap doctor on a real Slurm: all is well, and then it is not."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab, started

from slurmwrap.slurm.pyslurm.gate import installed

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]
ALICE, _ = USERS


@pytest.fixture(scope="module")
def own_lab(lab_scratch: Path) -> Iterator[Lab]:
    """One whose daemons may be stopped."""
    with started(lab_scratch / "doctor", "--nodes", "1", "--switches", "1", "--no-hooks") as running:
        yield running


def doctor(lab: Lab, user: str | None = ALICE, **environ: str) -> tuple[int, dict[str, dict[str, str]]]:
    words = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "doctor", "--json"]
    done = lab.run(words, user, env={"SLURMWRAP_SLURM_TIMEOUT_S": "3", **environ})
    assert done.stderr == ""
    return done.returncode, {one["name"]: one for one in json.loads(done.stdout)["checks"]}


def test_a_lab_is_well(lab: Lab) -> None:
    code, found = doctor(lab)
    assert {name: one["state"] for name, one in found.items() if one["state"] not in ("ok", "skip")} == {}
    assert code == 0
    release = lab.run(["scontrol", "--version"]).stdout.split()[-1]
    assert found["commands"]["text"] == f"Slurm {release}"
    assert found["controller"]["text"].startswith(f"slurmctld {release} of cluster '")
    assert found["slurm.conf"]["text"] == f"{lab.env['SLURM_CONF']} (SLURM_CONF)"
    assert found["accounting"]["text"] == "no slurmdbd"
    if not installed():
        assert found["adapter"]["text"] == "commands: PySlurm is not installed"


def test_what_was_asked_for_and_cannot_be_had_is_a_warning(lab: Lab) -> None:
    if installed():
        pytest.skip("PySlurm is installed here")
    code, found = doctor(lab, SLURMWRAP_SLURM_ADAPTER="pyslurm")
    assert (code, found["adapter"]["state"]) == (1, "warn")
    assert found["adapter"]["text"] == "commands, not PySlurm: PySlurm is not installed"


def test_gsub_in_sbatchs_place_is_seen(lab: Lab) -> None:
    folder = Path(f"/var/tmp/{ALICE}/bin")
    folder.mkdir()
    (folder / "sbatch").symlink_to(Path(sys.executable).parent / "gsub")
    _, found = doctor(lab, PATH=f"{folder}:{os.environ['PATH']}")
    assert found["sbatch"]["state"] == "ok"
    assert found["sbatch"]["text"].endswith(f"; `sbatch` itself is {folder}/sbatch: gsub in its place")


def test_a_controller_that_is_stopped_and_a_munged_that_is_gone_are_failures(own_lab: Lab) -> None:
    def pid(name: str) -> int:
        return int(next(own_lab.dir.rglob(f"{name}.pid")).read_text())

    stopped = [pid("slurmctld"), pid("munged")]
    for one in stopped:
        os.kill(one, signal.SIGSTOP)
    try:
        code, found = doctor(own_lab)
    finally:
        for one in stopped:
            os.kill(one, signal.SIGCONT)
    assert (code, found["controller"]["state"], found["munge"]["state"]) == (2, "fail", "fail")
    assert found["adapter"]["state"] == found["accounting"]["state"] == "skip"
    assert doctor(own_lab)[0] == 0
