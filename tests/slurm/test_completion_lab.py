"""Shell completion on the lab: partitions, nodes, GPUs, features, reservations and jobs of a real Slurm."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from shells import Fish, TypedShell, completion_script
from waiting import allow

from slurmwrap.cli.completion import NOT_OFFERED, OWN_WORDS

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

ALICE = USERS[0]
NODES = [f"n{number}" for number in range(8)]
TYPES = ["after:", "afterany:", "afterburstbuffer:", "aftercorr:", "afternotok:", "afterok:", "singleton"]


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[tuple[Lab, str]]:
    """The lab with node features, a reservation and one pending job of alice, her only job."""
    lab.clear(ALICE)
    for argv in (
        ["scontrol", "update", "NodeName=n[0-3]", "AvailableFeatures=fast,ib"],
        ["scontrol", "create", "reservation", "ReservationName=course", "StartTime=now+2hours", "Duration=5",
         "Users=root", "Nodes=n7", "Flags=IGNORE_JOBS"],
    ):  # fmt: skip
        done = lab.run(argv)
        assert done.returncode == 0, done.stderr
    job = lab.submit("--hold", "--job-name=long name", "--wrap", "true", user=ALICE)
    other = lab.submit("--hold", "--wrap", "true", user=USERS[1])
    yield lab, job
    for argv in (
        ["scancel", job, other],
        ["scontrol", "delete", "ReservationName=course"],
        ["scontrol", "update", "NodeName=n[0-3]", "AvailableFeatures="],
    ):
        lab.run(argv)


def _list_expected_offers(job: str) -> dict[str, list[str]]:
    """Command line -> expected offers, without what the shell puts before them."""
    return {
        "gsub --partition=": ["gpu", "prerun"],
        "gsub -p g": ["gpu"],
        "gsub --nodelist=n": [*NODES, "n[0-7]"],
        "gsub -w n0,n1,n": [*NODES[2:], "n[0-7]"],
        "gsub --exclude n[0-3],n7": ["n7"],
        "gsub --gres=g": ["gpu:", "gpu:a100:"],
        "gsub -G ": ["a100:"],
        "gsub -C ": ["fast", "ib"],
        "gsub --constraint=fast\\&i": ["ib"],
        "gsub --reservation=": ["course"],
        "gsub --dependency=": TYPES,
        "gsub -d afterok:": [job],
        "gsub -d afterok:7,afterno": ["afternotok:"],
        "slurmwrap why ": [job],
        "slurmwrap nodes show n7": ["n7"],
        "gsub --qos=": [],  # without slurmdbd: no offers and no message
        "gsub -A ": [],
    }


@pytest.fixture
def home(tmp_path: Path, lab: Lab) -> dict[str, str]:
    path = "/usr/local/bin:/usr/bin:/bin"
    return {**lab.env, "PATH": path, "LANG": "C.UTF-8", "HOME": str(tmp_path), "USER": ALICE}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_values_from_slurm(
    shell: str, site: tuple[Lab, str], home: dict[str, str], open_dir: Path
) -> None:
    path, (_, job) = completion_script(shell, open_dir), site
    account = pwd.getpwnam(ALICE)
    os.chown(open_dir, account.pw_uid, account.pw_gid)
    wanted = _list_expected_offers(job)
    if shell == "fish":
        fish = Fish(path, home, open_dir, ALICE)
        found = {line: sorted(fish.complete(line)) for line in wanted}
    else:
        terminal = TypedShell(shell, path, home, open_dir, open_dir, user=ALICE)
        try:
            found = {line: sorted(terminal.complete(line).offers) for line in wanted}
        finally:
            terminal.close()
    plain = {line: [_strip_finished_part(one) for one in offers] for line, offers in found.items()}
    assert plain == {line: sorted(offers) for line, offers in wanted.items()}


def _strip_finished_part(offer: str) -> str:
    """An offer without the finished part of the value and without the quotes of the shell."""
    bare = offer.replace("\\", "")
    for mark in ("=", "afterok:7,", "7,", "n0,n1,", "n[0-3],", "fast&", "afterok:"):
        bare = bare.partition(mark)[2] if mark in bare and bare != mark else bare
    return "gpu:a100:" if bare == "a100:" and offer.startswith("gpu") else bare


def test_fish_shows_the_state_and_name_of_a_job(site: tuple[Lab, str], home: dict[str, str], open_dir: Path) -> None:
    path, (_, job) = completion_script("fish", open_dir), site
    assert Fish(path, home, open_dir, ALICE).complete("slurmwrap why ") == {job: "PENDING  long name"}


def test_bash_offers_the_options_of_the_installed_sbatch(
    site: tuple[Lab, str], home: dict[str, str], open_dir: Path
) -> None:
    """bash offers the options of this sbatch without NOT_OFFERED, and OWN_WORDS."""
    terminal = TypedShell("bash", completion_script("bash", open_dir), home, open_dir, open_dir)
    try:
        offers = {one.rstrip("=") for one in terminal.complete("gsub --").offers}
    finally:
        terminal.close()
    stderr = subprocess.run(["sbatch", "--=x"], env=home, capture_output=True, text=True, timeout=allow(30)).stderr
    theirs = {word.strip("'") for word in stderr.split() if word.startswith("'--") and word != "'--=x'"}
    assert offers == (theirs - {f"--{name}" for name in NOT_OFFERED}) | {f"--{name}" for name in OWN_WORDS}
