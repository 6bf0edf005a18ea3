"""The check of a node with stand-ins for Slurm's commands: what is asked of Slurm, in which order, whatever fails."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from slurmwrap.errors import SlurmError
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.model.cluster import Node, Reservation
from slurmwrap.policy.node_history import NodeCheck
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.run_node_check import CheckProgram, check_node, make_kept_reason, make_srun_argv, parse_record

DRAINED = Node(
    name="n1", state="IDLE", flags=frozenset({"DRAIN"}),
    reason="slurmwrap: xid_79, seen by job 7 [root@2026-01-02T03:04:05]", gpus=8, partitions=("gpu",),
)  # fmt: skip
PROGRAM = CheckProgram(python="/usr/bin/python3", directory=Path("/hooks"), mounts=("/home",), seconds=100)
RECORD = {"version": 1, "node": "n1", "checks": [{"name": "gpus", "state": "ok", "text": ""}], "reboot": False}


class Commands:
    """Stand-ins for scontrol, srun and scancel, which write their arguments to a file."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "slurm.conf").write_text("ClusterName=lab\n")
        self.environ = {"PATH": f"{place}:/usr/bin:/bin", "SLURM_CONF": str(place / "slurm.conf"), "SLURM_JOB_ID": "5"}
        self.add("scontrol", f"case \"$*\" in 'show node'*) cat {place}/nodes ;; esac")
        self.add("scancel", "")
        self.report(RECORD)
        self.show(DRAINED.reason)

    def add(self, name: str, then: str) -> None:
        log = shlex.quote(str(self.place / "asked"))
        (self.place / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n{then}\n')
        (self.place / name).chmod(0o755)

    def report(self, record: object) -> None:
        text = shlex.quote(json.dumps(record))
        self.add("srun", f'[ -z "$SLURM_JOB_ID" ] || exit 9\necho "of the Prolog"\necho {text}')

    def show(self, reason: str, state: str = "IDLE+DRAIN") -> None:
        (self.place / "nodes").write_text(
            f"NodeName=n1 CPUTot=8 RealMemory=1000 State={state} Weight=1 Partitions=gpu Reason={reason}\n"
        )

    def check(self, node: Node = DRAINED, *reservations: Reservation, resume: bool = True) -> NodeCheck:
        slurm = SlurmCommands(self.environ)
        return check_node(
            node, PROGRAM, slurm, SystemClock(), reservations=reservations, resume=resume, environ=self.environ
        )  # fmt: skip

    def changes(self) -> list[str]:
        """The first words of each command that changes something."""
        lines = (self.place / "asked").read_text().splitlines() if (self.place / "asked").exists() else []
        return [" ".join(line.split()[:4]) for line in lines if " show " not in line and line != "scontrol -o"]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


LIFT, DRAIN = "scontrol update NodeName=n1 State=RESUME", "scontrol update NodeName=n1 State=DRAIN"
RESERVE = "scontrol create reservation=slurmwrap_check_n1 Users=root"
FREE = "scontrol delete reservation=slurmwrap_check_n1"
RUN = "srun --quiet --immediate=60 --reservation=slurmwrap_check_n1"


def test_a_node_that_passes_keeps_its_lifted_drain_with_resume(commands: Commands) -> None:
    assert commands.check().passed
    assert commands.changes() == [RESERVE, LIFT, RUN, FREE]


def test_a_node_that_passes_is_drained_again_without_resume(commands: Commands) -> None:
    assert commands.check(resume=False).passed
    assert commands.changes() == [RESERVE, LIFT, RUN, DRAIN, FREE]
    asked = (commands.place / "asked").read_text()
    assert "Reason=slurmwrap: xid_79, seen by job 7\n" in asked


def test_a_failed_part_leaves_the_node_drained_and_names_itself_in_the_reason(commands: Commands) -> None:
    commands.report({**RECORD, "checks": [{"name": "gpus", "state": "fail", "text": "7 of 8"}], "reboot": True})
    found = commands.check()
    assert (found.passed, found.note, found.reboot) == (False, "gpus: 7 of 8", True)
    assert commands.changes() == [RESERVE, LIFT, RUN, DRAIN, FREE]
    assert "seen by job 7; check failed: gpus\n" in (commands.place / "asked").read_text()


def test_a_job_that_reports_nothing_is_a_failed_check_and_is_cancelled(commands: Commands) -> None:
    commands.add("srun", "echo 'srun: error: Requested nodes are busy' >&2; exit 1")
    assert commands.check().note == "job: srun: error: Requested nodes are busy"
    assert commands.changes() == [RESERVE, LIFT, RUN, "scancel --name=slurmwrap-check --nodelist=n1", DRAIN, FREE]


def test_the_reservation_stays_when_the_node_cannot_be_drained_again(commands: Commands) -> None:
    commands.report({**RECORD, "checks": [{"name": "gpus", "state": "fail", "text": ""}]})
    show = f"'show node'*) cat {commands.place}/nodes ;;"
    refuse = "*State=DRAIN*) echo 'slurm_update error' >&2; exit 1 ;;"
    lift = f"*RESUME*) sed -i 's/+DRAIN//; s/Reason=.*//' {commands.place}/nodes ;;"
    commands.add("scontrol", f'case "$*" in {show} {refuse} {lift} esac')
    with pytest.raises(SlurmError, match="could not be drained again"):
        commands.check()
    assert FREE not in commands.changes()


def test_after_an_interrupted_check_the_node_is_checked_as_if_drained(commands: Commands) -> None:
    commands.show("", "IDLE+RESERVED")
    resumed = Node(name="n1", state="IDLE", flags=frozenset({"MAINTENANCE", "RESERVED"}), gpus=8, partitions=("gpu",))
    left = Reservation(name="slurmwrap_check_n1", start=1000, end=1 << 31, nodes=("n1",))
    commands.report({**RECORD, "checks": [{"name": "gpus", "state": "fail", "text": ""}]})
    assert not commands.check(resumed, left).passed
    assert commands.changes() == [RUN, DRAIN, FREE]
    assert "Reason=slurmwrap: a check was interrupted; check failed: gpus" in (commands.place / "asked").read_text()


@pytest.mark.parametrize(
    ("node", "reservations", "why"),
    [
        (Node(name="n1", state="IDLE", flags=frozenset({"DRAIN"}), reason="fan"), (), "not drained by slurmwrap"),
        (Node(name="n1", state="IDLE", partitions=("gpu",)), (), "not drained by slurmwrap"),
        (Node(name="n1", state="MIXED", cpus_alloc=1, partitions=("gpu",)), (), "jobs still run"),
        (Node(name="n1", state="DOWN", partitions=("gpu",)), (), "starts no job"),
        (DRAINED, (Reservation(name="slurmwrap_check_n1", start=1 << 40, end=1 << 41),), "is being checked"),
    ],
)  # fmt: skip
def test_a_node_that_is_not_ready_is_left_alone(
    commands: Commands, node: Node, reservations: tuple[Reservation, ...], why: str
) -> None:
    with pytest.raises(SlurmError, match=why):
        commands.check(node, *reservations)
    assert commands.changes() == []


def test_the_job_has_the_whole_node_and_no_environment() -> None:
    argv = make_srun_argv(DRAINED, PROGRAM, "r")
    assert {"--exclusive", "--mem=0", "--gres=gpu:8", "--nodelist=n1", "--partition=gpu", "--export=NONE"} <= set(argv)
    assert argv[argv.index("/usr/bin/python3") + 1 :][:4] == ["-I", "-S", "/hooks/node_hooks.pyz", "check"]
    assert json.loads(argv[-1]) == {"gpus": 8, "mounts": ["/home"], "skip": [], "seconds": 100}


@pytest.mark.parametrize(
    "output", [b"", b"no JSON", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "node": "n2", "checks": []}']
)
def test_other_output_is_no_record(output: bytes) -> None:
    assert parse_record(output, "n1") is None


def test_the_reason_is_kept_without_what_was_appended() -> None:
    assert make_kept_reason("slurmwrap: a; check failed: gpus [root@2026-01-02T03:04:05]") == "slurmwrap: a"
    assert make_kept_reason("slurmwrap: a [b]") == "slurmwrap: a [b]"
