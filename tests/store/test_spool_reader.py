"""Which files the reconciler accepts from a spool that every user may write to."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_until

from slurmwrap.errors import StoreError
from slurmwrap.host import munge
from slurmwrap.model.observation import Context, Observation, RejectedEntry, SpoolEntry
from slurmwrap.store import spool_reader as spool_module
from slurmwrap.store.database import Database
from slurmwrap.store.spool_reader import PlainSpool, SealedSpool
from slurmwrap.store.spool_writer import make_nonce, serialize, write_plain, write_sealed

USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to seal as two users")
NODE = Observation(
    nonce="0" * 32,
    cluster="lab",
    job_id=41,
    context=Context.EPILOG,
    at=1.7e9,
    node="n0",
    facts={"exit": "3:0", "é": "\0"},
)
SUBMIT = replace(NODE, context=Context.SUBMIT, node="", nonce="1" * 32)


@pytest.fixture
def directory(open_dir: Path) -> Path:
    path = open_dir / "spool"
    path.mkdir()
    path.chmod(0o1733)
    return path


@pytest.fixture
def spool(directory: Path, munge_socket: str) -> SealedSpool:
    return SealedSpool(directory, munge_socket, lambda: {"n0": "127.0.0.1", "n1": "10.0.0.1"}, {0}, "lab")


def run_as_user(program: list[str], stdin: bytes = b"") -> bytes:
    """Run a program as an ordinary user and return its output."""
    return subprocess.run(program, input=stdin, capture_output=True, check=True, user=USER, group=USER).stdout


def write_as_user(directory: Path, name: str, data: bytes) -> None:
    run_as_user(["/usr/bin/tee", "--", f"{directory}/{name}"], data)


def make_file_name(nonce: str = "a" * 32) -> str:
    return f"1700000000000000-n0-{nonce}.obs"


def collect_items(spool: SealedSpool | PlainSpool) -> list[Observation | RejectedEntry]:
    return [one.item for one in spool.collect()]


def test_an_observation_sealed_by_root_is_read_and_removed_once_discarded(
    directory: Path, spool: SealedSpool, munge_socket: str
) -> None:
    path = Path(write_sealed(directory, NODE, socket=munge_socket))
    assert path.read_bytes().startswith(b"MUNGE:")
    found = list(spool.collect())
    assert found == [SpoolEntry(name=path.name, item=replace(NODE, uid=0))]
    spool.discard(found)
    assert list(directory.iterdir()) == []


def test_collect_removes_nothing_and_can_be_repeated(directory: Path, spool: SealedSpool, munge_socket: str) -> None:
    write_sealed(directory, NODE, socket=munge_socket)
    assert collect_items(spool) == collect_items(spool) == [replace(NODE, uid=0)]


def test_an_expired_credential_still_decodes(directory: Path, spool: SealedSpool, munge_socket: str) -> None:
    sealed = subprocess.run(
        ["munge", "--socket", munge_socket, "--ttl=1"], input=serialize(NODE), capture_output=True, check=True
    ).stdout
    (directory / make_file_name()).write_bytes(sealed)
    wait_until(lambda: munge.decode(sealed, socket=munge_socket).status == munge.EXPIRED, "the credential expires")
    assert collect_items(spool) == [replace(NODE, uid=0)]


@needs_root
def test_a_users_observation_is_accepted_with_the_uid_in_its_nonce(
    directory: Path, spool: SealedSpool, munge_socket: str
) -> None:
    sealed = run_as_user(["munge", "--socket", munge_socket], serialize(replace(SUBMIT, nonce=NODE.nonce)))
    write_as_user(directory, make_file_name(), sealed)
    assert collect_items(spool) == [replace(SUBMIT, nonce=f"{USER}-{NODE.nonce}", uid=USER)]


def make_payload(**changed: object) -> bytes:
    return json.dumps({**json.loads(serialize(NODE)), **changed}).encode()


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (serialize(replace(NODE, node="n1")), "it was sealed on 127.0.0.1, and node n1 is 10.0.0.1"),
        (serialize(replace(NODE, node="n9")), "it is about a node that Slurm does not know"),
        (serialize(replace(NODE, cluster="other\n")), r"it is about cluster other\n"),
        (serialize(replace(NODE, context=Context.SLURM)), "context slurm does not arrive here"),
        (serialize(replace(NODE, context=Context.EPILOG_SLURMCTLD)), "context epilog_slurmctld does not arrive here"),
        (b"", "it is not an observation"),
        (b"[]", "it is not an observation: no JSON object"),
        (b"{}", "it is not an observation"),
        (b"\xff\xfe", "it is not an observation"),
        (b"[" * 100000, "it nests too deeply"),
        (b'%b{"x": %b}}' % (make_payload()[:-1] + b', "facts": ', b"[" * 64 + b"]" * 64), "it nests too deeply"),
        (make_payload(version=2), "it is not an observation: unknown version"),
        (make_payload(nonce="../x"), "it is not an observation: no nonce"),
        (make_payload(nonce=7), "it is not an observation"),
        (make_payload(job_id=True), "it is not an observation: no job id"),
        (make_payload(job_id=1 << 40), "it is not an observation: no job id"),
        (make_payload(at="now"), "it is not an observation: no time"),
        (make_payload(at=float("nan")), "it is not an observation: NaN is no number"),
        (make_payload(facts=[]), "it is not an observation: facts"),
        (make_payload(facts={"a": "\ud800"}), "it is not an observation"),
        (make_payload(context="root"), "it is not an observation"),
    ],
)
def test_a_valid_credential_with_invalid_content_is_rejected(
    directory: Path, spool: SealedSpool, munge_socket: str, payload: bytes, reason: str
) -> None:
    (directory / make_file_name()).write_bytes(munge.encode(payload, socket=munge_socket))
    (found,) = collect_items(spool)
    assert isinstance(found, RejectedEntry)
    assert found.reason.startswith(reason)


@needs_root
@pytest.mark.parametrize("context", [Context.PROLOG, Context.EPILOG, Context.SAMPLES])
def test_an_observation_about_a_node_sealed_by_a_user_is_rejected(
    directory: Path, spool: SealedSpool, munge_socket: str, context: Context
) -> None:
    sealed = run_as_user(["munge", "--socket", munge_socket], serialize(replace(NODE, context=context)))
    write_as_user(directory, make_file_name(), sealed)
    assert collect_items(spool) == [
        RejectedEntry(name=make_file_name(), reason=f"uid {USER} cannot speak for a node", uid=USER)
    ]


def test_a_node_address_given_by_name_is_resolved(directory: Path, munge_socket: str) -> None:
    spool = SealedSpool(directory, munge_socket, lambda: {"n0": "localhost"}, {0}, "lab")
    write_sealed(directory, NODE, socket=munge_socket)
    assert collect_items(spool) == [replace(NODE, uid=0)]


def plant_symlink(directory: Path) -> None:
    (directory / make_file_name()).symlink_to("/etc/shadow")


def plant_fifo(directory: Path) -> None:
    os.mkfifo(directory / make_file_name())


def plant_folder(directory: Path) -> None:
    (directory / make_file_name()).mkdir()
    (directory / make_file_name() / "inside").write_text("")


def plant_huge_file(directory: Path) -> None:
    (directory / make_file_name()).write_bytes(b"MUNGE:")
    os.truncate(directory / make_file_name(), 10 << 30)


def plant_empty_file(directory: Path) -> None:
    (directory / make_file_name()).write_bytes(b"")


def plant_junk(directory: Path) -> None:
    (directory / make_file_name()).write_bytes(b"MUNGE:AwQF:\n")


def plant_unsealed_json(directory: Path) -> None:
    (directory / make_file_name()).write_bytes(serialize(NODE))


def plant_odd_name(directory: Path) -> None:
    (directory / "a\nb\x1b[31m'\udcff").write_text("x")


def plant_unfinished_file(directory: Path) -> None:
    path = directory / ("." + make_file_name())
    path.write_text("")
    os.utime(path, (1, 1))


@pytest.mark.parametrize(
    ("plant", "name", "reason"),
    [
        (plant_symlink, make_file_name(), "it cannot be opened: Too many levels of symbolic links"),
        (plant_fifo, make_file_name(), "it is not a regular file"),
        (plant_folder, make_file_name(), "it is not a regular file"),
        (plant_huge_file, make_file_name(), "it is larger than 1048576 bytes"),
        (plant_empty_file, make_file_name(), "it is not a MUNGE credential"),
        (plant_junk, make_file_name(), "unmunge: Error: "),
        (plant_unsealed_json, make_file_name(), "it is not a MUNGE credential"),
        (plant_odd_name, r"a\nb\x1b[31m'\xff", "its name is not one of slurmwrap's"),
        (plant_unfinished_file, "." + make_file_name(), "its writer never finished it"),
    ],
)
def test_a_planted_file_is_rejected_once_and_others_are_still_read(
    directory: Path, spool: SealedSpool, munge_socket: str, plant: Callable[[Path], None], name: str, reason: str
) -> None:
    plant(directory)
    write_sealed(directory, NODE, socket=munge_socket)
    found = list(spool.collect())
    (refused,) = [one.item for one in found if isinstance(one.item, RejectedEntry)]
    assert refused.name == name and refused.reason.startswith(reason)
    assert [one.item for one in found if isinstance(one.item, Observation)] == [replace(NODE, uid=0)]
    spool.discard(found)
    assert collect_items(spool) == []


def test_an_unfinished_recent_file_is_not_touched(directory: Path, spool: SealedSpool) -> None:
    (directory / ("." + make_file_name())).write_text("")
    assert collect_items(spool) == []


def test_many_files_of_one_user_do_not_delay_others(directory: Path, spool: SealedSpool, munge_socket: str) -> None:
    for count in range(300):
        path = directory / f"flood{count}"
        path.write_text("")
        os.utime(path, (1, 1))
        os.chown(path, USER, USER)
    write_sealed(directory, NODE, socket=munge_socket)
    assert [type(one.item) for one in spool.collect(limit=2)].count(Observation) == 1


def test_a_limited_number_of_files_per_user_is_read_at_once(
    directory: Path, spool: SealedSpool, munge_socket: str
) -> None:
    for count in range(spool_module.USER_SHARE + 50):
        path = directory / f"flood{count}"
        path.write_text("")
        os.chown(path, USER, USER)
    for count in range(20):
        write_sealed(directory, replace(NODE, nonce=f"{count:032x}"), socket=munge_socket)
    found = [one.item for one in spool.collect(limit=100_000)]
    assert [isinstance(item, Observation) for item in found].count(True) == 20
    assert len(found) == spool_module.USER_SHARE + 20


@needs_root
def test_the_size_limit_of_a_users_file_is_lower_than_that_of_root(
    directory: Path, spool: SealedSpool, munge_socket: str
) -> None:
    large = replace(NODE, facts={"text": "x" * spool_module.USER_BYTES})
    paths = {
        uid: Path(write_sealed(directory, replace(large, nonce=f"{uid:032x}"), socket=munge_socket))
        for uid in (0, USER)
    }
    os.chown(paths[USER], USER, USER)
    assert {one.name: type(one.item) for one in spool.collect()} == {
        paths[0].name: Observation,
        paths[USER].name: RejectedEntry,
    }


def test_a_limited_number_of_rejected_files_is_kept(
    directory: Path, spool: SealedSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "MAX_REJECTED", 3)
    for count in range(5):
        (directory / f"x{count}").write_text("")
    spool.discard(list(spool.collect()))
    assert [path.name for path in directory.iterdir()] == ["rejected"]
    assert len(list((directory / "rejected").iterdir())) == 3


@needs_root
def test_a_rejected_folder_planted_as_a_symlink_is_not_used(
    directory: Path, spool: SealedSpool, open_dir: Path
) -> None:
    target = open_dir / "target"
    target.mkdir()
    (directory / "rejected").symlink_to(target)
    (directory / "x").write_text("")
    spool.discard(list(spool.collect()))
    assert list(target.iterdir()) == [] and not (directory / "x").exists()


def test_without_munged_collect_raises_an_error_and_rejects_nothing(directory: Path, munge_socket: str) -> None:
    write_sealed(directory, NODE, socket=munge_socket)
    spool = SealedSpool(directory, "/nonexistent/socket", lambda: {"n0": "127.0.0.1"}, {0}, "lab")
    with pytest.raises(StoreError, match="unmunge"):
        list(spool.collect())


def test_a_missing_spool_raises_an_error_that_names_it(open_dir: Path, munge_socket: str) -> None:
    spool = SealedSpool(open_dir / "none", munge_socket, dict, {0}, "lab")
    with pytest.raises(StoreError, match=r"spool /tmp/.*/none: No such file"):
        list(spool.collect())
    with pytest.raises(StoreError, match=r"none: No such file"):
        write_sealed(open_dir / "none", NODE, socket=munge_socket)


def test_unsealed_observations_are_read_from_a_private_directory(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "spool"
    path = Path(write_plain(directory, NODE))
    later = Path(write_plain(directory, SUBMIT))
    os.utime(path, (1, 1))
    assert (path.stat().st_mode & 0o777, directory.stat().st_mode & 0o777) == (0o600, 0o700)
    spool = PlainSpool(directory)
    found = list(spool.collect())
    assert found == [SpoolEntry(name=path.name, item=NODE), SpoolEntry(name=later.name, item=SUBMIT)]
    spool.discard(found)
    assert collect_items(spool) == []


def test_a_user_who_never_submitted_has_an_empty_spool(tmp_path: Path) -> None:
    assert collect_items(PlainSpool(tmp_path / "none")) == []


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_a_private_spool_writable_by_others_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(StoreError, match="can be written by others") as caught:
        collect_items(PlainSpool(tmp_path))
    assert caught.value.hint == f"Run: chmod 700 {tmp_path}"


@needs_root
def test_a_private_spool_of_another_user_is_read_only_if_that_uid_is_trusted(tmp_path: Path) -> None:
    write_plain(tmp_path, NODE)
    tmp_path.chmod(0o700)
    os.chown(tmp_path, USER, USER)
    with pytest.raises(StoreError, match=f"uid {USER}"):
        collect_items(PlainSpool(tmp_path))
    assert collect_items(PlainSpool(tmp_path, trusted_uids={USER})) == [NODE]


def test_an_incomplete_record_of_the_epilogslurmctld_hook_is_rejected_once_old(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "41-x.env"
    path.write_bytes(b"slurmwrap-environment-1\0SLURM_JOB_ID=41\0")
    assert collect_items(PlainSpool(tmp_path)) == []
    os.utime(path, (1, 1))
    assert collect_items(PlainSpool(tmp_path)) == [
        RejectedEntry(name="41-x.env", reason="the record is not whole", uid=os.geteuid())
    ]


def test_nonces_are_unique_and_have_128_bits() -> None:
    assert len({make_nonce() for _ in range(100)}) == 100
    assert all(len(bytes.fromhex(make_nonce())) == 16 for _ in range(10))


# --- replays, and credentials that are larger than they look ----------------------------------------------------------


def test_a_replayed_credential_of_root_counts_once(
    directory: Path, spool: SealedSpool, munge_socket: str, tmp_path: Path
) -> None:
    """A user who got hold of a node's credential puts copies of it into the spool."""
    sealed = Path(write_sealed(directory, NODE, socket=munge_socket)).read_bytes()
    for number in range(3):
        copy = directory / make_file_name(f"{number:032x}")
        copy.write_bytes(sealed)
        os.chown(copy, USER, USER)
    found = [item for item in collect_items(spool) if isinstance(item, Observation)]
    with closing(Database.open(tmp_path / "site.db")) as database:
        assert [database.ingest(item) for item in found] == [True, False, False, False]


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_truncated_credential_is_rejected(directory: Path, spool: SealedSpool, munge_socket: str, cut: int) -> None:
    path = Path(write_sealed(directory, NODE, socket=munge_socket))
    path.write_bytes(path.read_bytes().strip()[:-cut])
    (found,) = collect_items(spool)
    assert isinstance(found, RejectedEntry) and found.reason.startswith("unmunge: Error: ")


@needs_root
def test_a_small_credential_of_a_user_that_unpacks_to_a_large_record_is_rejected(
    directory: Path, spool: SealedSpool, munge_socket: str
) -> None:
    payload = serialize(replace(SUBMIT, facts={"text": "x" * 900_000}))
    sealed = run_as_user(["munge", "--socket", munge_socket, "--zip=zlib"], payload)
    assert len(sealed) < 4096
    write_as_user(directory, make_file_name(), sealed)
    (found,) = collect_items(spool)
    assert isinstance(found, RejectedEntry)
    assert found.reason == f"it unpacks to more than {spool_module.USER_BYTES} bytes"


@needs_root
def test_a_directory_with_more_files_than_one_collect_lists_hides_no_record_for_ever(
    directory: Path, spool: SealedSpool, munge_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "MAX_ENTRIES", 10)
    write_sealed(directory, NODE, socket=munge_socket)
    for count in range(35):
        path = directory / f"flood{count}"
        path.write_text("")
        os.chown(path, USER, USER)
    found = [isinstance(item, Observation) for _ in range(4) for item in collect_items(spool)]
    assert (len(found), found.count(True)) == (36, 1)
    assert len(collect_items(spool)) == 10, "it begins again"
