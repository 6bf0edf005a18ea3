"""What a node's job does with the files that come with it."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from fakes import FakeClock, FakeSlurm

from slurmwrap.install.copy_to_nodes import (
    NodePayload,
    NodeResult,
    group_by_reason,
    make_bundle,
    make_node_script,
    send,
)
from slurmwrap.model.cluster import Node
from slurmwrap.node_hooks import unpack_hooks

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a node's job is root's")
PYTHON = "/usr/bin/python3"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path / "lib" / "slurmwrap" / "hooks"


def shipment(node: Path, text: bytes = b"# slurmwrap\n") -> NodePayload:
    return NodePayload(
        files=((node / "prolog", 0o755, text), (node / "hooks.json", 0o644, b"slurmwrap")), python=PYTHON
    )


def run(sent: NodePayload, action: str, tmp_path: Path, conf: str = "") -> tuple[int, str]:
    """The batch script as slurmd would start it; `conf`: what it calls its slurm.conf."""
    path = tmp_path / "job"
    path.write_bytes(make_node_script(sent, action))
    path.chmod(0o755)
    done = subprocess.run([path], capture_output=True, text=True, env={"SLURM_CONF": conf}, timeout=30)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_the_files_lie_there_with_their_modes_and_go_again(node: Path, tmp_path: Path) -> None:
    assert run(shipment(node), "lay", tmp_path) == (0, "")
    assert {path.name: path.stat().st_mode & 0o777 for path in node.iterdir()} == {"prolog": 0o755, "hooks.json": 0o644}
    assert run(shipment(node, b"# slurmwrap 2\n"), "lay", tmp_path) == (0, "")
    assert (node / "prolog").read_bytes() == b"# slurmwrap 2\n"
    assert run(shipment(node), "take", tmp_path) == (0, "")
    assert not node.parent.exists() and node.parent.parent.exists()
    assert run(shipment(node), "take", tmp_path) == (0, "")


@pytest.mark.parametrize(
    ("folder", "text", "code"),
    [
        ("etc", "Prolog=/h/prolog\nEpilog=/h/epilog\n", 0),
        ("etc", ' prolog = "/h/prolog" # ours\nInclude more.conf\n', 0),
        ("etc", "#Prolog=/h/prolog\nEpilog=/h/epilog\n", unpack_hooks.NOT_NAMED),
        ("etc", "Prolog=/h/prolog2\nEpilog=/h/epilog\nPrologSlurmctld=/h/prolog\n", unpack_hooks.NOT_NAMED),
        ("conf-cache", "", unpack_hooks.STALE),
    ],
)
def test_a_node_tells_whether_its_slurmd_reads_the_lines(folder: str, text: str, code: int, tmp_path: Path) -> None:
    conf = tmp_path / folder / "slurm.conf"
    conf.parent.mkdir()
    conf.write_text(text)
    (conf.parent / "more.conf").write_text("EPILOG=/h/epilog\n")
    looked = NodePayload(files=(), python=PYTHON, named=("Prolog=/h/prolog", "Epilog=/h/epilog"))
    assert run(looked, "look", tmp_path, str(conf))[0] == code


def test_nothing_is_taken_that_the_nodes_own_slurm_conf_still_names(node: Path, tmp_path: Path) -> None:
    run(shipment(node), "lay", tmp_path)
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"Prolog={node}/prolog\n")
    told = (unpack_hooks.STILL_NAMED, f"{conf} names {node}/prolog\n")
    assert [run(shipment(node), action, tmp_path, str(conf)) for action in ("free", "take")] == [told, told]
    assert sorted(path.name for path in node.iterdir()) == ["hooks.json", "prolog"]
    conf.write_text(f"#Prolog={node}/prolog\n")
    assert run(shipment(node), "free", tmp_path, str(conf)) == (0, "")
    assert (node / "prolog").exists()


def test_a_node_that_is_powered_down_is_not_woken(node: Path) -> None:
    known = [Node(name="c0", state="IDLE", flags=frozenset({"CLOUD", "POWERED_DOWN"}), cpus=4, partitions=("p",))]
    slurm = FakeSlurm()
    (sent,) = send(("c0",), known, shipment(node), slurm, FakeClock())
    assert (sent.reason.partition(":")[0], slurm.submitted) == ("it is powered down", [])


def test_a_file_that_is_not_ours_stays(node: Path, tmp_path: Path) -> None:
    node.mkdir(parents=True)
    (node / "prolog").write_text("the site's")
    assert run(shipment(node), "lay", tmp_path) == (unpack_hooks.NOT_OURS, f"{node}/prolog is not slurmwrap's\n")
    assert run(shipment(node), "take", tmp_path)[0] == unpack_hooks.NOT_OURS
    assert (node / "prolog").read_text() == "the site's"


def test_nothing_is_written_where_others_may_write(node: Path, tmp_path: Path) -> None:
    node.mkdir(parents=True)
    node.chmod(0o777)
    assert run(shipment(node), "lay", tmp_path) == (
        unpack_hooks.OPEN_TO_OTHERS, f"others can write hooks of {node}/prolog\n",
    )  # fmt: skip
    assert list(node.iterdir()) == []


def test_a_link_is_not_followed(node: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lib").symlink_to(tmp_path / "elsewhere")
    assert run(shipment(node), "lay", tmp_path)[0] == unpack_hooks.NOT_WRITTEN
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_bundle_is_the_same_bytes_each_time_and_unpacks_by_full_path(node: Path) -> None:
    packed = make_bundle(shipment(node))
    assert packed == make_bundle(shipment(node))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        found = {(one.name, one.mode, one.uid, one.mtime) for one in archive}
    assert found == {(f"{node}/prolog".lstrip("/"), 0o755, 0, 0), (f"{node}/hooks.json".lstrip("/"), 0o644, 0, 0)}


def test_the_same_reason_is_told_once() -> None:
    sent = (
        NodeResult(node="n0", reason="it is down"),
        NodeResult(node="n1"),
        NodeResult(node="n2", reason="it is down"),
    )
    assert group_by_reason(sent) == (("it is down", ("n0", "n2")),)


def test_nodes_with_room_come_before_full_ones_whose_jobs_would_only_wait(node: Path) -> None:
    known = [
        Node(name=name, state=state, cpus=4, cpus_alloc=busy, partitions=("p",))
        for name, state, busy in (("n0", "ALLOCATED", 4), ("n1", "MIXED", 3), ("n2", "IDLE", 0))
    ]
    slurm = FakeSlurm()
    sent = send(("n0", "n1", "n2", "n9"), known, shipment(node), slurm, FakeClock())
    asked = [option for call in slurm.submitted for option in call.options if option.startswith("--nodelist=")]
    assert asked == ["--nodelist=n1", "--nodelist=n2", "--nodelist=n0"]
    assert [one.node for one in sent] == ["n0", "n1", "n2", "n9"]
    assert sent[-1].reason == "Slurm knows no such node"
