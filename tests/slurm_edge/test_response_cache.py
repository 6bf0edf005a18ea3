"""Answers of Slurm cached for a few seconds: safe owners and modes, lifetime, and use in a snapshot."""

from __future__ import annotations

import os
import pwd
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.host.run_command import start_in_background
from slurmwrap.model.limits import Limits, Qos, Quotas
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.response_cache import ResponseCache

ROOT = os.geteuid() == 0


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    (tmp_path / "slurm.conf").touch()
    return {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_CONF": str(tmp_path / "slurm.conf"),
        "XDG_RUNTIME_DIR": str(runtime),
        "TMPDIR": str(tmp_path / "none"),
    }


def folder(environ: dict[str, str]) -> Path:
    return Path(environ["XDG_RUNTIME_DIR"]) / "slurmwrap"


def only_file(environ: dict[str, str]) -> Path:
    (found,) = folder(environ).iterdir()
    return found


# --- the files


@pytest.mark.parametrize("answer", [b"", b"NodeName=n0 State=IDLE\n", b"\xff\x00\n" * 200_000])
def test_a_fresh_answer_is_returned_unchanged(environ: dict[str, str], answer: bytes) -> None:
    kept = ResponseCache(environ, 60)
    kept.leave("nodes", answer)
    assert (kept.read("nodes"), kept.read("rest")) == (answer, None)
    assert folder(environ).stat().st_mode & 0o7777 == 0o700
    assert only_file(environ).stat().st_mode & 0o7777 == 0o600


def make_older(environ: dict[str, str], by_s: float) -> None:
    """Make the cached answer `by_s` seconds older."""
    path = only_file(environ)
    head, answer = path.read_bytes()[:256], path.read_bytes()[256:]
    *mark, at, size = head.split()
    path.write_bytes(b" ".join((*mark, repr(float(at) - by_s).encode(), size)).ljust(255) + b"\n" + answer)


@pytest.mark.parametrize(("by_s", "times", "counts"), [(9, 1, True), (11, 1, False), (11, 3, True), (-5, 1, False)])
def test_an_answer_expires_and_one_from_the_future_is_ignored(environ, by_s, times, counts) -> None:
    kept = ResponseCache(environ, 10)
    kept.leave("nodes", b"x")
    make_older(environ, by_s)
    assert kept.read("nodes", times) == (b"x" if counts else None)


def test_a_lifetime_of_0_disables_the_cache(environ: dict[str, str]) -> None:
    ResponseCache(environ, 60).leave("nodes", b"x")
    off = ResponseCache(environ, 0)
    assert off.read("nodes") is None
    off.leave("rest", b"y")
    assert len(list(folder(environ).iterdir())) == 1


@pytest.mark.parametrize("name", ["SLURM_CONF", "PATH", "LD_LIBRARY_PATH"])
def test_an_answer_of_another_slurm_is_ignored(environ: dict[str, str], name: str) -> None:
    ResponseCache(environ, 60).leave("nodes", b"x")
    assert ResponseCache({**environ, name: "/other"}, 60).read("nodes") is None


def test_answers_of_two_clusters_are_kept_separately(environ: dict[str, str]) -> None:
    here, there = ResponseCache(environ, 60), ResponseCache({**environ, "SLURM_CONF": "/other"}, 60)
    here.leave("nodes", b"here")
    there.leave("nodes", b"there")
    assert (here.read("nodes"), there.read("nodes")) == (b"here", b"there")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def change_version(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"slurmwrap-", b"slurmwrap-9", 1))


def replace_content(path: Path) -> None:
    path.write_bytes(b"something else")


def make_readable_by_all(path: Path) -> None:
    path.chmod(0o644)


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("target"))
    path.symlink_to("target")


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def open_folder_for_all(path: Path) -> None:
    path.parent.chmod(0o755)


def replace_folder_by_link(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.symlink_to("elsewhere")


def change_owner(path: Path) -> None:
    os.chown(path, 65534, 65534)


def change_folder_owner(path: Path) -> None:
    os.chown(path.parent, 65534, 65534)


MANIPULATIONS = [truncate, change_version, replace_content, make_readable_by_all, replace_by_link, replace_by_pipe]
MANIPULATIONS += [open_folder_for_all, replace_folder_by_link, *([change_owner, change_folder_owner] if ROOT else [])]


@pytest.mark.parametrize("harm", MANIPULATIONS)
def test_a_damaged_or_unsafe_cache_file_is_ignored(environ: dict[str, str], harm: Callable[[Path], None]) -> None:
    kept = ResponseCache(environ, 60)
    kept.leave("nodes", b"x" * 1000)
    assert kept.read("nodes") == b"x" * 1000
    harm(only_file(environ))
    assert kept.read("nodes") is None


@pytest.mark.parametrize(
    "harm", [open_folder_for_all, replace_folder_by_link, *([change_folder_owner] if ROOT else [])]
)
def test_nothing_is_written_where_other_users_may_read_or_write(environ, harm) -> None:
    kept = ResponseCache(environ, 60)
    kept.leave("nodes", b"x")
    harm(only_file(environ))
    kept.leave("rest", b"y")
    assert [path.name.partition("-")[0] for path in folder(environ).iterdir()] == ["nodes"]


def test_without_a_private_runtime_directory_the_temporary_directory_is_used(environ, tmp_path: Path) -> None:
    (tmp_path / "run").chmod(0o755)
    environ["TMPDIR"] = str(tmp_path)
    ResponseCache(environ, 60).leave("nodes", b"x")
    assert ResponseCache(environ, 60).read("nodes") == b"x"
    assert (tmp_path / f"slurmwrap-{os.geteuid()}").is_dir()
    assert not folder(environ).exists()


def test_a_cache_directory_that_cannot_be_created_is_no_error(environ: dict[str, str]) -> None:
    environ["XDG_RUNTIME_DIR"] = "/nowhere"
    kept = ResponseCache(environ, 60)
    kept.leave("nodes", b"x")
    assert kept.read("nodes") is None


# --- snapshots from cached answers


SCONTROL = """#!/bin/sh
echo "$*" >> {here}/calls
if [ -e {here}/away ]; then echo "Unable to contact slurm controller (connect failure)" >&2; exit 1; fi
if [ "$*" = "show node -d -o" ]; then echo "NodeName=n0 State=IDLE"; exit; fi
cat > /dev/null
echo "PartitionName=p Default=YES"
echo "Configuration data as of 5"
echo "ClusterName = c"
"""


def slurm(environ: dict[str, str], tmp_path: Path, seconds: float = 60) -> SlurmCommands:
    (tmp_path / "scontrol").write_text(SCONTROL.format(here=tmp_path))
    (tmp_path / "scontrol").chmod(0o755)
    return SlurmCommands(environ, kept=ResponseCache(environ, seconds))


def calls(tmp_path: Path) -> list[str]:
    return sorted((tmp_path / "calls").read_text().splitlines())


def test_a_second_snapshot_within_the_lifetime_uses_the_cache_and_says_so(environ, tmp_path) -> None:
    first, second = (slurm(environ, tmp_path).snapshot() for _ in range(2))
    assert calls(tmp_path) == ["-o", "show node -d -o"]
    assert (first.kept, second.kept) == (False, True)
    assert (first.quotas_kept, second.quotas_kept) == (False, True)
    assert replace(second, kept=False, quotas_kept=False, taken_at=first.taken_at) == first


def test_if_only_the_nodes_expired_only_they_are_requested(environ, tmp_path) -> None:
    whole = slurm(environ, tmp_path).snapshot()
    for path in folder(environ).iterdir():
        if path.name.startswith("nodes"):
            path.unlink()
    again = slurm(environ, tmp_path).snapshot()
    assert calls(tmp_path) == ["-o", "show node -d -o", "show node -d -o"]
    assert replace(again, taken_at=whole.taken_at) == replace(whole, quotas_kept=True)


QUOTAS = """#!/bin/sh
cat > {here}/asked
echo "scontrol: QOS=normal(1) MaxTRESPJ=cpu=3 PreemptMode=OFF"
"""


def test_current_quotas_are_requested_even_if_answers_are_cached(environ, tmp_path) -> None:
    one = slurm(environ, tmp_path)
    one.snapshot()
    assert slurm(environ, tmp_path).snapshot().quotas_kept
    (tmp_path / "scontrol").write_text(QUOTAS.format(here=tmp_path))
    assert one.quotas() == Quotas(qos=(Qos(name="normal", limits=Limits(cpus_per_job=3)),))
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert (tmp_path / "asked").read_text() == f"show assoc_mgr users={user} flags=assoc,qos\n"


def test_repeated_snapshots_of_one_adapter_are_always_current(environ, tmp_path) -> None:
    one = slurm(environ, tmp_path)
    assert [one.snapshot().kept for _ in range(3)] == [False] * 3
    assert len(calls(tmp_path)) == 6


def test_a_failure_is_not_cached(environ, tmp_path) -> None:
    (tmp_path / "away").touch()
    for _ in range(2):
        with pytest.raises(SlurmUnreachable):
            slurm(environ, tmp_path).snapshot()
    assert not folder(environ).exists() or list(folder(environ).iterdir()) == []


def test_a_snapshot_started_early_is_the_same_and_requests_once(environ, tmp_path) -> None:
    one = slurm(environ, tmp_path, 0)
    one.begin_snapshot()
    begun = one.snapshot()
    later = slurm(environ, tmp_path, 0).snapshot()
    assert replace(begun, taken_at=later.taken_at) == later
    assert len(calls(tmp_path)) == 4


def test_an_error_of_an_early_snapshot_is_raised_when_it_is_used(environ, tmp_path) -> None:
    (tmp_path / "away").touch()
    one = slurm(environ, tmp_path)
    one.begin_snapshot()
    with pytest.raises(SlurmUnreachable, match="Unable to contact"):
        one.snapshot()


def test_background_work_returns_its_value_or_raises_its_error() -> None:
    def fails() -> None:
        raise SlurmError("no")

    assert start_in_background(lambda: threading.current_thread() is threading.main_thread())() is False
    with pytest.raises(SlurmError, match="no"):
        start_in_background(fails)()


def test_background_work_does_not_block_until_its_result_is_requested() -> None:
    release = threading.Event()
    work = start_in_background(lambda: release.wait(allow(60)))
    release.set()
    assert work() is True
