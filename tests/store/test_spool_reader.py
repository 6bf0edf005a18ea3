"""What the reconciler believes of a directory that everyone may write into."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_until

from slurmwrap.errors import StoreError
from slurmwrap.host import munge
from slurmwrap.model.observation import Context, Observation, RejectedEntry, SpoolEntry
from slurmwrap.store import spool_reader as spool_module
from slurmwrap.store.spool_reader import PlainSpool, SealedSpool
from slurmwrap.store.spool_writer import make_nonce, serialize, write_plain, write_sealed

USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="seals as two users")
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


def as_user(program: list[str], stdin: bytes = b"") -> bytes:
    """The output of a program that the ordinary user runs."""
    return subprocess.run(program, input=stdin, capture_output=True, check=True, user=USER, group=USER).stdout


def as_users_file(directory: Path, name: str, data: bytes) -> None:
    as_user(["/usr/bin/tee", "--", f"{directory}/{name}"], data)


def named(nonce: str = "a" * 32) -> str:
    return f"1700000000000000-n0-{nonce}.obs"


def items(spool: SealedSpool | PlainSpool) -> list[Observation | RejectedEntry]:
    return [one.item for one in spool.collect()]


def test_what_root_seals_on_a_node_arrives_whole_and_is_gone_once_discarded(
    directory: Path, spool: SealedSpool, munge_socket: str
) -> None:
    path = Path(write_sealed(directory, NODE, socket=munge_socket))
    assert path.read_bytes().startswith(b"MUNGE:")
    found = list(spool.collect())
    assert found == [SpoolEntry(name=path.name, item=replace(NODE, uid=0))]
    spool.discard(found)
    assert list(directory.iterdir()) == []


def test_collect_removes_nothing_and_a_second_reading_still_counts(
    directory: Path, spool: SealedSpool, munge_socket: str
) -> None:
    write_sealed(directory, NODE, socket=munge_socket)
    assert items(spool) == items(spool) == [replace(NODE, uid=0)]


def test_an_expired_credential_still_decodes(directory: Path, spool: SealedSpool, munge_socket: str) -> None:
    sealed = subprocess.run(
        ["munge", "--socket", munge_socket, "--ttl=1"], input=serialize(NODE), capture_output=True, check=True
    ).stdout
    (directory / named()).write_bytes(sealed)
    wait_until(lambda: munge.decode(sealed, socket=munge_socket).status == munge.EXPIRED, "the credential expires")
    assert items(spool) == [replace(NODE, uid=0)]


@needs_root
def test_a_user_speaks_for_himself_and_his_nonce_cannot_stand_in_for_roots(
    directory: Path, spool: SealedSpool, munge_socket: str
) -> None:
    sealed = as_user(["munge", "--socket", munge_socket], serialize(replace(SUBMIT, nonce=NODE.nonce)))
    as_users_file(directory, named(), sealed)
    assert items(spool) == [replace(SUBMIT, nonce=f"{USER}-{NODE.nonce}", uid=USER)]


def plain(**changed: object) -> bytes:
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
        (b"[]", "it is not an observation: unknown version"),
        (b"{}", "it is not an observation"),
        (b"\xff\xfe", "it is not an observation"),
        (b"[" * 100000, "it nests too deeply"),
        (b'%b{"x": %b}}' % (plain()[:-1] + b', "facts": ', b"[" * 64 + b"]" * 64), "it nests too deeply"),
        (plain(version=2), "it is not an observation: unknown version"),
        (plain(nonce="../x"), "it is not an observation: no nonce"),
        (plain(nonce=7), "it is not an observation"),
        (plain(job_id=True), "it is not an observation: no job id"),
        (plain(job_id=1 << 40), "it is not an observation: no job id"),
        (plain(at="now"), "it is not an observation: no time"),
        (plain(at=float("nan")), "it is not an observation: NaN is no number"),
        (plain(facts=[]), "it is not an observation: facts"),
        (plain(facts={"a": "\ud800"}), "it is not an observation"),
        (plain(context="root"), "it is not an observation"),
    ],
)
def test_a_genuine_credential_with_a_wrong_content_is_set_aside(
    directory: Path, spool: SealedSpool, munge_socket: str, payload: bytes, reason: str
) -> None:
    (directory / named()).write_bytes(munge.encode(payload, socket=munge_socket))
    (found,) = items(spool)
    assert isinstance(found, RejectedEntry)
    assert found.reason.startswith(reason)


@needs_root
@pytest.mark.parametrize("context", [Context.PROLOG, Context.EPILOG])
def test_a_user_cannot_speak_for_a_node(
    directory: Path, spool: SealedSpool, munge_socket: str, context: Context
) -> None:
    sealed = as_user(["munge", "--socket", munge_socket], serialize(replace(NODE, context=context)))
    as_users_file(directory, named(), sealed)
    assert items(spool) == [RejectedEntry(name=named(), reason=f"uid {USER} cannot speak for a node", uid=USER)]


def test_a_node_known_by_name_is_resolved(directory: Path, munge_socket: str) -> None:
    spool = SealedSpool(directory, munge_socket, lambda: {"n0": "localhost"}, {0}, "lab")
    write_sealed(directory, NODE, socket=munge_socket)
    assert items(spool) == [replace(NODE, uid=0)]


def link(directory: Path) -> None:
    (directory / named()).symlink_to("/etc/shadow")


def fifo(directory: Path) -> None:
    os.mkfifo(directory / named())


def folder(directory: Path) -> None:
    (directory / named()).mkdir()
    (directory / named() / "inside").write_text("")


def huge(directory: Path) -> None:
    (directory / named()).write_bytes(b"MUNGE:")
    os.truncate(directory / named(), 10 << 30)


def empty(directory: Path) -> None:
    (directory / named()).write_bytes(b"")


def junk(directory: Path) -> None:
    (directory / named()).write_bytes(b"MUNGE:AwQF:\n")


def bare_json(directory: Path) -> None:
    (directory / named()).write_bytes(serialize(NODE))


def odd_name(directory: Path) -> None:
    (directory / "a\nb\x1b[31m'\udcff").write_text("x")


def left_behind(directory: Path) -> None:
    path = directory / ("." + named())
    path.write_text("")
    os.utime(path, (1, 1))


@pytest.mark.parametrize(
    ("trick", "name", "reason"),
    [
        (link, named(), "it cannot be opened: Too many levels of symbolic links"),
        (fifo, named(), "it is not a regular file"),
        (folder, named(), "it is not a regular file"),
        (huge, named(), "it is larger than 1048576 bytes"),
        (empty, named(), "it is not a MUNGE credential"),
        (junk, named(), "unmunge: Error: "),
        (bare_json, named(), "it is not a MUNGE credential"),
        (odd_name, r"a\nb\x1b[31m'\xff", "its name is not one of slurmwrap's"),
        (left_behind, "." + named(), "its writer never finished it"),
    ],
)
def test_whatever_is_planted_is_set_aside_once_and_stops_nothing(
    directory: Path, spool: SealedSpool, munge_socket: str, trick: Callable[[Path], None], name: str, reason: str
) -> None:
    trick(directory)
    write_sealed(directory, NODE, socket=munge_socket)
    found = list(spool.collect())
    (refused,) = [one.item for one in found if isinstance(one.item, RejectedEntry)]
    assert refused.name == name and refused.reason.startswith(reason)
    assert [one.item for one in found if isinstance(one.item, Observation)] == [replace(NODE, uid=0)]
    spool.discard(found)
    assert items(spool) == []


def test_a_file_that_is_still_being_written_is_left_alone(directory: Path, spool: SealedSpool) -> None:
    (directory / ("." + named())).write_text("")
    assert items(spool) == []


def test_one_users_flood_delays_nobody_else(directory: Path, spool: SealedSpool, munge_socket: str) -> None:
    for count in range(300):
        path = directory / f"flood{count}"
        path.write_text("")
        os.utime(path, (1, 1))
        os.chown(path, USER, USER)
    write_sealed(directory, NODE, socket=munge_socket)
    assert [type(one.item) for one in spool.collect(limit=2)].count(Observation) == 1


def test_of_a_flood_only_so_much_is_read_at_once(directory: Path, spool: SealedSpool, munge_socket: str) -> None:
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
def test_a_users_file_may_not_be_as_large_as_roots(directory: Path, spool: SealedSpool, munge_socket: str) -> None:
    large = replace(NODE, facts={"text": "x" * spool_module.USER_BYTES})
    whose = {
        uid: Path(write_sealed(directory, replace(large, nonce=f"{uid:032x}"), socket=munge_socket))
        for uid in (0, USER)
    }
    os.chown(whose[USER], USER, USER)
    assert {one.name: type(one.item) for one in spool.collect()} == {
        whose[0].name: Observation,
        whose[USER].name: RejectedEntry,
    }


def test_only_so_much_of_what_was_set_aside_is_kept(
    directory: Path, spool: SealedSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "MAX_REJECTED", 3)
    for count in range(5):
        (directory / f"x{count}").write_text("")
    spool.discard(list(spool.collect()))
    assert [path.name for path in directory.iterdir()] == ["rejected"]
    assert len(list((directory / "rejected").iterdir())) == 3


@needs_root
def test_a_rejected_folder_of_a_user_is_not_used(directory: Path, spool: SealedSpool, open_dir: Path) -> None:
    target = open_dir / "target"
    target.mkdir()
    (directory / "rejected").symlink_to(target)
    (directory / "x").write_text("")
    spool.discard(list(spool.collect()))
    assert list(target.iterdir()) == [] and not (directory / "x").exists()


def test_without_munged_nothing_is_set_aside_but_an_error_is_raised(directory: Path, munge_socket: str) -> None:
    write_sealed(directory, NODE, socket=munge_socket)
    spool = SealedSpool(directory, "/nonexistent/socket", lambda: {"n0": "127.0.0.1"}, {0}, "lab")
    with pytest.raises(StoreError, match="unmunge"):
        list(spool.collect())


def test_a_missing_spool_is_an_error_that_names_it(open_dir: Path, munge_socket: str) -> None:
    spool = SealedSpool(open_dir / "none", munge_socket, dict, {0}, "lab")
    with pytest.raises(StoreError, match=r"spool /tmp/.*/none: No such file"):
        list(spool.collect())
    with pytest.raises(StoreError, match=r"none: No such file"):
        write_sealed(open_dir / "none", NODE, socket=munge_socket)


def test_a_plain_observation_arrives_from_a_private_directory(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "spool"
    path = Path(write_plain(directory, NODE))
    later = Path(write_plain(directory, SUBMIT))
    os.utime(path, (1, 1))
    assert (path.stat().st_mode & 0o777, directory.stat().st_mode & 0o777) == (0o600, 0o700)
    spool = PlainSpool(directory)
    found = list(spool.collect())
    assert found == [SpoolEntry(name=path.name, item=NODE), SpoolEntry(name=later.name, item=SUBMIT)]
    spool.discard(found)
    assert items(spool) == []


def test_a_user_who_never_submitted_has_an_empty_spool(tmp_path: Path) -> None:
    assert items(PlainSpool(tmp_path / "none")) == []


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_a_private_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(StoreError, match="can be written by others") as caught:
        items(PlainSpool(tmp_path))
    assert caught.value.hint == f"Run: chmod 700 {tmp_path}"


@needs_root
def test_a_private_directory_of_someone_else_is_believed_only_if_he_is_trusted(tmp_path: Path) -> None:
    write_plain(tmp_path, NODE)
    tmp_path.chmod(0o700)
    os.chown(tmp_path, USER, USER)
    with pytest.raises(StoreError, match=f"uid {USER}"):
        items(PlainSpool(tmp_path))
    assert items(PlainSpool(tmp_path, trusted_uids={USER})) == [NODE]


def test_half_a_record_of_the_controllers_hook_waits_and_is_then_set_aside(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "41-x.env"
    path.write_bytes(b"slurmwrap-environment-1\0SLURM_JOB_ID=41\0")
    assert items(PlainSpool(tmp_path)) == []
    os.utime(path, (1, 1))
    assert items(PlainSpool(tmp_path)) == [
        RejectedEntry(name="41-x.env", reason="the record is not whole", uid=os.geteuid())
    ]


def test_nonces_are_128_random_bits() -> None:
    assert len({make_nonce() for _ in range(100)}) == 100
    assert all(len(bytes.fromhex(make_nonce())) == 16 for _ in range(10))
