"""The job that writes, checks or removes the hooks on a node."""

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


def make_payload(node: Path, text: bytes = b"# slurmwrap\n") -> NodePayload:
    return NodePayload(
        files=((node / "prolog", 0o755, text), (node / "hooks.json", 0o644, b"slurmwrap")), python=PYTHON
    )


def run_node_script(sent: NodePayload, action: str, tmp_path: Path, conf: str = "") -> tuple[int, str]:
    """Runs the batch script as slurmd would start it. `conf`: the value of SLURM_CONF."""
    path = tmp_path / "job"
    path.write_bytes(make_node_script(sent, action))
    path.chmod(0o755)
    done = subprocess.run([path], capture_output=True, text=True, env={"SLURM_CONF": conf}, timeout=30)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_files_are_written_with_their_modes_and_removed_again(node: Path, tmp_path: Path) -> None:
    assert run_node_script(make_payload(node), "lay", tmp_path) == (0, "")
    assert {path.name: path.stat().st_mode & 0o777 for path in node.iterdir()} == {"prolog": 0o755, "hooks.json": 0o644}
    assert run_node_script(make_payload(node, b"# slurmwrap 2\n"), "lay", tmp_path) == (0, "")
    assert (node / "prolog").read_bytes() == b"# slurmwrap 2\n"
    assert run_node_script(make_payload(node), "take", tmp_path) == (0, "")
    assert not node.parent.exists() and node.parent.parent.exists()
    assert run_node_script(make_payload(node), "take", tmp_path) == (0, "")


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
def test_a_node_reports_whether_its_slurm_conf_names_the_hooks(
    folder: str, text: str, code: int, tmp_path: Path
) -> None:
    conf = tmp_path / folder / "slurm.conf"
    conf.parent.mkdir()
    conf.write_text(text)
    (conf.parent / "more.conf").write_text("EPILOG=/h/epilog\n")
    payload = NodePayload(files=(), python=PYTHON, named=("Prolog=/h/prolog", "Epilog=/h/epilog"))
    assert run_node_script(payload, "look", tmp_path, str(conf))[0] == code


def test_hooks_that_the_nodes_slurm_conf_still_names_are_not_removed(node: Path, tmp_path: Path) -> None:
    run_node_script(make_payload(node), "lay", tmp_path)
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"Prolog={node}/prolog\n")
    still_named = (unpack_hooks.STILL_NAMED, f"{conf} names {node}/prolog\n")
    assert [run_node_script(make_payload(node), action, tmp_path, str(conf)) for action in ("free", "take")] == [
        still_named,
        still_named,
    ]
    assert sorted(path.name for path in node.iterdir()) == ["hooks.json", "prolog"]
    conf.write_text(f"#Prolog={node}/prolog\n")
    assert run_node_script(make_payload(node), "free", tmp_path, str(conf)) == (0, "")
    assert (node / "prolog").exists()


def test_no_job_is_sent_to_a_node_that_is_powered_down(node: Path) -> None:
    known = [Node(name="c0", state="IDLE", flags=frozenset({"CLOUD", "POWERED_DOWN"}), cpus=4, partitions=("p",))]
    slurm = FakeSlurm()
    (sent,) = send(("c0",), known, make_payload(node), slurm, FakeClock())
    assert (sent.reason.partition(":")[0], slurm.submitted) == ("it is powered down", [])


def test_a_file_that_slurmwrap_did_not_write_is_kept(node: Path, tmp_path: Path) -> None:
    node.mkdir(parents=True)
    (node / "prolog").write_text("the site's")
    assert run_node_script(make_payload(node), "lay", tmp_path) == (
        unpack_hooks.NOT_OURS,
        f"{node}/prolog is not slurmwrap's\n",
    )
    assert run_node_script(make_payload(node), "take", tmp_path)[0] == unpack_hooks.NOT_OURS
    assert (node / "prolog").read_text() == "the site's"


def test_nothing_is_written_to_a_directory_writable_by_others(node: Path, tmp_path: Path) -> None:
    node.mkdir(parents=True)
    node.chmod(0o777)
    assert run_node_script(make_payload(node), "lay", tmp_path) == (
        unpack_hooks.OPEN_TO_OTHERS, f"others can write hooks of {node}/prolog\n",
    )  # fmt: skip
    assert list(node.iterdir()) == []


def test_a_symbolic_link_is_not_followed(node: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lib").symlink_to(tmp_path / "elsewhere")
    assert run_node_script(make_payload(node), "lay", tmp_path)[0] == unpack_hooks.NOT_WRITTEN
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_bundle_is_reproducible_and_unpacks_to_full_paths(node: Path) -> None:
    packed = make_bundle(make_payload(node))
    assert packed == make_bundle(make_payload(node))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        found = {(one.name, one.mode, one.uid, one.mtime) for one in archive}
    assert found == {(f"{node}/prolog".lstrip("/"), 0o755, 0, 0), (f"{node}/hooks.json".lstrip("/"), 0o644, 0, 0)}


def test_nodes_with_the_same_reason_are_grouped() -> None:
    sent = (
        NodeResult(node="n0", reason="it is down"),
        NodeResult(node="n1"),
        NodeResult(node="n2", reason="it is down"),
    )
    assert group_by_reason(sent) == (("it is down", ("n0", "n2")),)


def test_nodes_with_free_cpus_are_served_before_full_nodes(node: Path) -> None:
    known = [
        Node(name=name, state=state, cpus=4, cpus_alloc=busy, partitions=("p",))
        for name, state, busy in (("n0", "ALLOCATED", 4), ("n1", "MIXED", 3), ("n2", "IDLE", 0))
    ]
    slurm = FakeSlurm()
    sent = send(("n0", "n1", "n2", "n9"), known, make_payload(node), slurm, FakeClock())
    node_lists = [option for call in slurm.submitted for option in call.options if option.startswith("--nodelist=")]
    assert node_lists == ["--nodelist=n1", "--nodelist=n2", "--nodelist=n0"]
    assert [one.node for one in sent] == ["n0", "n1", "n2", "n9"]
    assert sent[-1].reason == "Slurm knows no such node"
