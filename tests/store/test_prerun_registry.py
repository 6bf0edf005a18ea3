"""Pre-runs in flight, as files: a job that attaches is either included or refused. With real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import allow, wait_until

from slurmwrap.store import prerun_registry
from slurmwrap.store.prerun_registry import InflightPrerun, PrerunRegistry, WaitingJob


def make_trial(state: Path, name: str) -> str:
    path = state / "prerun" / name
    path.mkdir(parents=True)
    return str(path)


def make_waiting_job(job_id: int) -> WaitingJob:
    return WaitingJob(job_id=job_id, release_at="2099-01-01T00:00:00", trial_dir=f"/state/prerun/{job_id}")


def test_the_first_pre_run_claims_a_group_and_the_second_finds_it(tmp_path: Path) -> None:
    registry, first, second = PrerunRegistry(tmp_path), make_trial(tmp_path, "a"), make_trial(tmp_path, "b")
    assert [registry.claim("g", first), registry.claim("g", second)] == [True, False]
    prerun_registry.mark_submitted(first, 77)
    found = registry.of("g")
    assert found == InflightPrerun(directory=Path(first), job_id=77, since=Path(first).stat().st_mtime)
    registry.drop("g", second)
    assert registry.of("g") == found
    registry.drop("g", first)
    assert registry.of("g") is None


def test_jobs_can_attach_until_the_pre_run_is_closed(tmp_path: Path) -> None:
    registry, host = PrerunRegistry(tmp_path), Path(make_trial(tmp_path, "a"))
    registry.claim("g", str(host))
    assert [prerun_registry.attach(host, make_waiting_job(9)), prerun_registry.attach(host, make_waiting_job(10))] == [
        True,
        True,
    ]
    assert prerun_registry.list_waiting_jobs(host) == (make_waiting_job(9), make_waiting_job(10))
    assert prerun_registry.close(host) == (make_waiting_job(9), make_waiting_job(10))
    assert prerun_registry.attach(host, make_waiting_job(11)) is False
    prerun_registry.take(host, make_waiting_job(9))
    assert prerun_registry.close(host) == (make_waiting_job(10),)


def test_no_job_can_attach_to_a_pre_run_without_a_group(tmp_path: Path) -> None:
    host = Path(make_trial(tmp_path, "a"))
    assert prerun_registry.attach(host, make_waiting_job(9)) is False
    assert prerun_registry.close(host) == ()


def test_a_claim_whose_directory_was_deleted_is_not_submitting(tmp_path: Path) -> None:
    registry, host = PrerunRegistry(tmp_path), Path(make_trial(tmp_path, "a"))
    registry.claim("g", str(host))
    (host / "waiting").rmdir()
    host.rmdir()
    found = registry.of("g")
    assert found is not None
    assert (found.job_id, found.submitting(time.time())) == (None, False)


ATTACHER = """\
import sys
from pathlib import Path
from slurmwrap.store import prerun_registry as inflight
host, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sys.stdin.readline()
for job in range(first, first + count):
    if inflight.attach(host, inflight.WaitingJob(job_id=job, release_at="now", trial_dir="/t")):
        print(job, flush=True)
"""


def test_no_attached_job_is_lost_when_close_races_with_many_processes(tmp_path: Path) -> None:
    host = Path(make_trial(tmp_path, "a"))
    PrerunRegistry(tmp_path).claim("g", str(host))
    attachers = [
        subprocess.Popen(
            [sys.executable, "-c", ATTACHER, str(host), str(1000 * n), "400"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in (1, 2, 3)
    ]
    for one in attachers:
        assert one.stdin
        one.stdin.write("\n")
        one.stdin.flush()
    wait_until(lambda: len(prerun_registry.list_waiting_jobs(host)) >= 30, "30 guests attach", pause=0.001)
    attached = {one.job_id for one in prerun_registry.close(host)}
    accepted = {int(word) for one in attachers for word in one.communicate()[0].split()}
    assert attached == accepted
    assert len(attached) >= 30


def test_close_does_not_wait_longer_than_the_limit_for_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Path(make_trial(tmp_path, "a"))
    PrerunRegistry(tmp_path).claim("g", str(host))
    prerun_registry.attach(host, prerun_registry.WaitingJob(job_id=7, release_at="now", trial_dir="/t"))
    (host / prerun_registry.WAITING / ".8").write_text("now\n/t\n")  # never renamed
    monkeypatch.setattr(prerun_registry, "DOOR_S", 0.05)
    assert [one.job_id for one in prerun_registry.close(host)] == [7]


def test_close_waits_for_a_process_that_is_attaching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerun_registry, "DOOR_S", allow(60))
    host = Path(make_trial(tmp_path, "a"))
    PrerunRegistry(tmp_path).claim("g", str(host))
    prerun_registry.attach(host, prerun_registry.WaitingJob(job_id=7, release_at="now", trial_dir="/t"))
    entering = (host / prerun_registry.WAITING / ".9").open("w")
    entering.write("now\n/t\n")
    entering.close()
    handle = os.open(host / prerun_registry.WAITING, os.O_RDONLY)  # as the kernel holds it in the middle of a rename
    enters = threading.Timer(0.1, lambda: os.rename(".9", "9", src_dir_fd=handle, dst_dir_fd=handle))
    enters.start()
    attached = [one.job_id for one in prerun_registry.close(host)]
    enters.join()
    os.close(handle)
    assert attached == [7, 9]


CLAIMER = """\
import sys
from pathlib import Path
from slurmwrap.store.prerun_registry import PrerunRegistry
sys.stdin.readline()
print(PrerunRegistry(Path(sys.argv[1])).claim("g", sys.argv[2]))
"""


def test_only_one_of_many_processes_claims_a_group(tmp_path: Path) -> None:
    claimers = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMER, str(tmp_path), make_trial(tmp_path, str(n))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(6)
    ]
    answers = [one.communicate("\n")[0].strip() for one in claimers]
    assert sorted(answers) == ["False"] * 5 + ["True"]


def set_age(path: Path, days: float) -> None:
    for one in (*path.rglob("*"), path):
        os.utime(one, (time.time() - days * 86400,) * 2)


def test_old_trials_are_pruned_and_those_in_flight_are_kept(tmp_path: Path) -> None:
    registry = PrerunRegistry(tmp_path)
    old, young, pointed, kept = (Path(make_trial(tmp_path, name)) for name in ("old", "young", "pointed", "kept"))
    (old / "spec.json").write_text("{}")
    registry.claim("g", str(pointed))
    for path in (old, pointed, kept):
        set_age(path, 15)
    assert registry.prune(14 * 86400, keep=frozenset({str(kept)})) == 1
    assert sorted(path.name for path in registry.trials()) == ["kept", "pointed", "young"]
    assert young.is_dir()


def test_a_missing_state_directory_has_no_trials(tmp_path: Path) -> None:
    registry = PrerunRegistry(tmp_path / "none")
    assert (registry.trials(), registry.prune(1.0), registry.of("g")) == ((), 0, None)


def test_a_state_directory_that_cannot_be_written_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "inflight").write_text("a file")
    with pytest.raises(OSError, match="inflight"):
        PrerunRegistry(tmp_path).claim("g", make_trial(tmp_path, "a"))
