"""The versions of the hooks on each node, as reported by their Epilogs."""

from __future__ import annotations

from pathlib import Path

from slurmwrap.install.hook_versions import (
    OTHER,
    SAME,
    SILENT,
    UNSAID,
    NodeHooks,
    list_node_hooks,
    read_checksum,
    select_newest,
)
from slurmwrap.model.observation import Context, Observation
from slurmwrap.node_hooks.checksum import FILES
from slurmwrap.store.database import Database


def epilog(node: str, at: float, **facts: object) -> Observation:
    return Observation(
        nonce=f"{node}{at}", cluster="c", job_id=int(at), context=Context.EPILOG, at=at, node=node, uid=0, facts=facts
    )


OBSERVATIONS = (
    epilog("n0", 2.0, hooks={"checksum": "aa", "release": "2"}),
    epilog("n0", 1.0, hooks={"checksum": "bb", "release": "1"}),
    epilog("n1", 3.0, hooks={"checksum": "bb", "release": "1"}),
    epilog("n2", 4.0),
)
WANTED = (
    NodeHooks(node="n0", state=SAME, at=2.0, checksum="aa", release="2"),
    NodeHooks(node="n1", state=OTHER, at=3.0, checksum="bb", release="1"),
    NodeHooks(node="n2", state=UNSAID, at=4.0),
    NodeHooks(node="n3", state=SILENT),
)


def test_the_newest_epilog_of_each_node_decides() -> None:
    assert list_node_hooks(("n0", "n1", "n2", "n3"), select_newest(OBSERVATIONS), "aa") == WANTED


def test_the_database_gives_the_same_result(tmp_path: Path) -> None:
    with Database.open(tmp_path / "site.db") as store:
        for one in OBSERVATIONS:
            store.ingest(one)
        seen = store.hooks_seen("c", since=0.0)
    assert list_node_hooks(("n0", "n1", "n2", "n3"), seen, "aa") == WANTED


def test_the_checksum_covers_all_files_and_is_empty_if_one_is_missing(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_text(name)
    whole = read_checksum(tmp_path)
    (tmp_path / "epilog").write_text("epilog ")
    assert len(whole) == 8 and read_checksum(tmp_path) not in ("", whole)
    (tmp_path / "prolog").unlink()
    assert read_checksum(tmp_path) == ""
