"""Files that the site publishes are read back unchanged; files that another user could have written are ignored."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.errors import StoreError
from slurmwrap.model.cluster import NodeHealth
from slurmwrap.model.decision import BlockedInput
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import ActionRecord, JobRun
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.running_job import GpuUse
from slurmwrap.protocols import Published, Publisher
from slurmwrap.store.published_files import (
    KEEP_S,
    FilePublisher,
    parse_published,
    parse_published_gpu_use,
    read_published,
    read_why,
)

PUBLISHED = Published(
    at=5.0,
    health=(NodeHealth(node="n3", status="drained", since=4.0, reason="Xid 79"),),
    blocked=(BlockedInput(digest="d", path="/data/\udcff", uid=-1, reason="two users", at=3.0),),
    profiles=(ResourceProfile(key="train", cpus_per_gpu=2.0),),
)
ME = os.geteuid()


def make_run(job_id: int, submit_time: int, uid: int = 1001) -> JobRun:
    diagnosis = Diagnosis(category="gpu_oom", domain="U", decision="stop", confidence=0.9, signature="s")
    attempt = RunKey(cluster="lab", job_id=job_id, submit_time=submit_time)
    return JobRun(attempt=attempt, uid=uid, name="näme\n", diagnosis=diagnosis, decision="stop")


ACTION = ActionRecord(
    action_id=1,
    attempt=RunKey(cluster="lab", job_id=81, submit_time=10),
    rule="retry",
    mode="act",
    verb="requeue",
    target="81",
    key="",
    value="",
    reason="",
    intended_at=1.0,
)


def fake_seal(payload: bytes, *, socket: str = "", uid_restriction: int | None = None) -> bytes:
    return f"{socket} {uid_restriction} ".encode() + payload


def make_unseal(uid: int, sealed_by: int = 0) -> Callable[[bytes], tuple[bytes, int] | None]:
    def unseal(credential: bytes) -> tuple[bytes, int] | None:
        _, restriction, payload = credential.split(b" ", 2)
        return (payload, sealed_by) if int(restriction) == uid else None

    return unseal


@pytest.fixture
def publisher(tmp_path: Path) -> FilePublisher:
    return FilePublisher(tmp_path / "published", "/run/munge.sock", fake_seal)


def test_published_data_is_read_back_unchanged(publisher: FilePublisher) -> None:
    protocol: Publisher = publisher
    protocol.publish(Published())
    protocol.publish(PUBLISHED)
    path = publisher.directory / "published.json"
    assert read_published(path, {ME}) == read_published(publisher.directory, {ME}) == PUBLISHED
    assert path.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in publisher.directory.iterdir()] == ["published.json"]


def test_without_a_published_file_the_result_is_none(tmp_path: Path) -> None:
    assert read_published(tmp_path / "no" / "published.json", {ME}) is None
    assert read_published(tmp_path / "published.json", {ME}) is None


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_writable_by_others_is_ignored(publisher: FilePublisher, mode: int) -> None:
    publisher.publish(PUBLISHED)
    path = publisher.directory / "published.json"
    path.chmod(mode)
    assert read_published(path, {ME}) is None


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_file_in_a_directory_writable_by_others_is_ignored(publisher: FilePublisher, mode: int) -> None:
    publisher.publish(PUBLISHED)
    publisher.directory.chmod(mode)
    assert read_published(publisher.directory / "published.json", {ME}) is None


@pytest.mark.skipif(ME != 0, reason="needs root to give files away")
@pytest.mark.parametrize("whose", ["published.json", "."])
def test_only_files_owned_by_a_trusted_user_are_read(publisher: FilePublisher, whose: str) -> None:
    publisher.publish(PUBLISHED)
    os.chown(publisher.directory / whose, 1234, 1234)
    path = publisher.directory / "published.json"
    assert read_published(path, set()) is None
    assert read_published(path, {1234}) == PUBLISHED


def test_a_symbolic_link_is_not_followed(publisher: FilePublisher, tmp_path: Path) -> None:
    publisher.publish(PUBLISHED)
    (publisher.directory / "published.json").rename(publisher.directory / "real.json")
    (publisher.directory / "published.json").symlink_to("real.json")
    assert read_published(publisher.directory / "published.json", {ME}) is None


def test_a_fifo_is_ignored_without_blocking(publisher: FilePublisher) -> None:
    publisher.publish(PUBLISHED)
    (publisher.directory / "published.json").unlink()
    os.mkfifo(publisher.directory / "published.json", 0o644)
    assert read_published(publisher.directory / "published.json", {ME}) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"health": 3}', b"\xff", b"[" * 100_000])
def test_malformed_content_is_ignored(publisher: FilePublisher, content: bytes) -> None:
    publisher.publish(PUBLISHED)
    (publisher.directory / "published.json").write_bytes(content)
    assert read_published(publisher.directory / "published.json", {ME}) is None


def test_a_path_that_cannot_be_written_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    publisher = FilePublisher(tmp_path / "file", "", fake_seal)
    with pytest.raises(StoreError, match=f"cannot publish {tmp_path}/file/published.json"):
        publisher.publish(PUBLISHED)


def test_only_the_owner_can_read_diagnoses_oldest_first(publisher: FilePublisher) -> None:
    first, retried, other = make_run(81, 10), make_run(81, 900), make_run(82, 20, uid=1002)
    publisher.tell_owner(retried, ())
    publisher.tell_owner(first, (ACTION,))
    publisher.tell_owner(other, ())
    publisher.tell_owner(make_run(83, 30, uid=-1), ())
    names = sorted(p.name for p in (publisher.directory / "why" / "0").iterdir())
    assert names == ["81-10.munge", "81-900.munge", "82-20.munge"]
    assert (publisher.directory / "why" / "0" / "81-10.munge").read_bytes().startswith(b"/run/munge.sock 1001 {")
    mine = read_why(publisher.directory, 81, make_unseal(1001), {ME})
    assert [parse_published(one) for one in mine] == [(first, (ACTION,)), (retried, ())]
    assert [parse_published(one)[0] for one in read_why(publisher.directory, None, make_unseal(1002), {ME})] == [other]
    assert read_why(publisher.directory, 82, make_unseal(1001), {ME}) == []


def test_jobs_share_a_folder_per_thousand_and_old_folders_are_deleted(publisher: FilePublisher) -> None:
    why = publisher.directory / "why"
    for job in (81, 1081, 2081):
        publisher.tell_owner(make_run(job, 10), ())
    old = time.time() - KEEP_S - 60
    os.utime(why / "0", (old, old))
    publisher.tell_owner(make_run(1082, 10), ())
    assert sorted(p.name for p in why.iterdir()) == ["0", "1", "2"]
    publisher.tell_owner(make_run(3000, 10), ())
    assert sorted(p.name for p in why.iterdir()) == ["1", "2", "3"]
    assert len(read_why(publisher.directory, None, make_unseal(1001), {ME})) == 4


def test_a_diagnosis_sealed_by_another_user_is_ignored(publisher: FilePublisher) -> None:
    publisher.tell_owner(make_run(81, 10), ())
    assert read_why(publisher.directory, 81, make_unseal(1001, sealed_by=1002), {ME}) == []


def test_only_the_newest_files_are_opened(publisher: FilePublisher) -> None:
    for number in range(5):
        publisher.tell_owner(make_run(90 - number, number), ())
    found = read_why(publisher.directory, None, make_unseal(1001), {ME}, limit=2)
    assert [parse_published(one)[0].attempt.submit_time for one in found] == [3, 4]


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b"\xff", json.dumps({"attempt": {}}).encode()])
def test_a_credential_with_other_content_is_ignored(publisher: FilePublisher, payload: bytes) -> None:
    publisher.tell_owner(make_run(81, 10), ())
    assert read_why(publisher.directory, 81, lambda _: (payload, 0), {ME}) == []


def test_an_invalid_run_raises_an_error_that_names_the_field() -> None:
    with pytest.raises(ValueError, match=r"JobRun\.attempt is missing"):
        parse_published({"attempt": {}, "actions": []})
    with pytest.raises(ValueError, match="actions is missing"):
        parse_published({"attempt": {}})


def plant_link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def plant_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o644)


def plant_huge_file(path: Path) -> None:
    os.truncate(path, 1 << 30)


def plant_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def plant_users_file(path: Path) -> None:
    os.chown(path, 1234, 1234)


def plant_in_users_folder(path: Path) -> None:
    os.chown(path.parent, 1234, 1234)


def plant_in_open_folder(path: Path) -> None:
    path.parent.chmod(0o777)


@pytest.mark.skipif(ME != 0, reason="needs root to give files away")
@pytest.mark.parametrize(
    "plant",
    [
        plant_link,
        plant_fifo,
        plant_huge_file,
        plant_directory,
        plant_users_file,
        plant_in_users_folder,
        plant_in_open_folder,
    ],
)
def test_a_diagnosis_that_another_user_could_have_planted_is_ignored(
    publisher: FilePublisher, plant: Callable[[Path], None]
) -> None:
    publisher.tell_owner(make_run(81, 10), ())
    publisher.tell_owner(make_run(1081, 20), ())
    plant(publisher.directory / "why" / "0" / "81-10.munge")
    found = read_why(publisher.directory, None, make_unseal(1001), set())
    assert [parse_published(one)[0].attempt.job_id for one in found] == [1081]


def test_a_run_with_much_text_of_its_user_can_still_be_sealed(publisher: FilePublisher) -> None:
    """MUNGE refuses more than 1 MiB. A run that cannot be sealed would keep all later ones from their owners."""
    ends = {f"/home/ada/{number}.log": [number, "m"] for number in range(40_000)}
    run = replace(make_run(81, 10), output_begins=ends, output_ends=ends)
    use = GpuUse(
        attempt=run.attempt, node="n" * 64, gpu=1, began=0.0, interval_s=60.0, use_pct=(1.5,), mem_mib=(1,),
        processes=(1,),
    )  # fmt: skip
    for uses, kept in (((use,), 1), ((use,) * 10_000, 0)):
        publisher.tell_owner(run, (ACTION,), uses)
        assert (publisher.directory / "why" / "0" / "81-10.munge").stat().st_size < 750_000
        (plain,) = read_why(publisher.directory, 81, make_unseal(1001), {ME})
        assert parse_published(plain) == (make_run(81, 10), (ACTION,))
        assert len(parse_published_gpu_use(plain)) == kept
