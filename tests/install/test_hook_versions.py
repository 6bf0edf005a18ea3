"""The versions of the hooks on each node, as reported by their Epilogs."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from slurmwrap import __version__
from slurmwrap.install.hook_versions import (
    OTHER,
    SAME,
    SILENT,
    UNSAID,
    NodeHooks,
    explain_other_release,
    list_node_hooks,
    read_checksum,
    select_newest,
)
from slurmwrap.model.observation import Context, Observation
from slurmwrap.node_hooks import checksum
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


def make_zipapp(**changed: bytes) -> bytes:
    packed = io.BytesIO()
    sources = {path.name: path.read_bytes() for path in Path(checksum.__file__).parent.glob("*.py")}
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in {**sources, **{f"{name}.py": text for name, text in changed.items()}}.items():
            archive.writestr(f"node_hooks/{name}", content)
    return packed.getvalue()


def test_hooks_of_another_release_are_named_with_it() -> None:
    settings = b'{"release": "%s"}'
    other = make_zipapp(epilog=b"pass")
    texts = {release: explain_other_release(other, settings % release) for release in (b"0.0.9", b"99.1", b"")}
    assert explain_other_release(make_zipapp(), settings % b"0.0.9") == ""
    assert texts == {
        b"0.0.9": f"hooks of an older release, 0.0.9; this is {__version__}",
        b"99.1": f"hooks of a newer release, 99.1; this is {__version__}",
        b"": f"hooks of an unknown release; this is {__version__}",
    }
    assert explain_other_release(b"no zip", b"{}") == "the hooks cannot be read"
