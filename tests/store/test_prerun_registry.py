"""Pre-runs in flight, as files: who attaches is either heard or told that the door is shut. With real processes."""

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


def trial(state: Path, name: str) -> str:
    path = state / "prerun" / name
    path.mkdir(parents=True)
    return str(path)


def guest(job_id: int) -> WaitingJob:
    return WaitingJob(job_id=job_id, release_at="2099-01-01T00:00:00", trial_dir=f"/state/prerun/{job_id}")


def test_the_first_claims_a_group_and_the_second_finds_it(tmp_path: Path) -> None:
    flights, first, second = PrerunRegistry(tmp_path), trial(tmp_path, "a"), trial(tmp_path, "b")
    assert [flights.claim("g", first), flights.claim("g", second)] == [True, False]
    prerun_registry.mark_submitted(first, 77)
    found = flights.of("g")
    assert found == InflightPrerun(directory=Path(first), job_id=77, since=Path(first).stat().st_mtime)
    flights.drop("g", second)
    assert flights.of("g") == found
    flights.drop("g", first)
    assert flights.of("g") is None


def test_guests_are_heard_until_the_door_is_shut(tmp_path: Path) -> None:
    flights, host = PrerunRegistry(tmp_path), Path(trial(tmp_path, "a"))
    flights.claim("g", str(host))
    assert [prerun_registry.attach(host, guest(9)), prerun_registry.attach(host, guest(10))] == [True, True]
    assert prerun_registry.list_waiting_jobs(host) == (guest(9), guest(10))
    assert prerun_registry.close(host) == (guest(9), guest(10))
    assert prerun_registry.attach(host, guest(11)) is False
    prerun_registry.take(host, guest(9))
    assert prerun_registry.close(host) == (guest(10),)


def test_a_pre_run_that_speaks_for_one_job_alone_takes_no_guests(tmp_path: Path) -> None:
    host = Path(trial(tmp_path, "a"))
    assert prerun_registry.attach(host, guest(9)) is False
    assert prerun_registry.close(host) == ()


def test_a_pointer_to_a_directory_that_is_gone_is_a_dead_pre_run(tmp_path: Path) -> None:
    flights, host = PrerunRegistry(tmp_path), Path(trial(tmp_path, "a"))
    flights.claim("g", str(host))
    (host / "waiting").rmdir()
    host.rmdir()
    found = flights.of("g")
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


def test_no_guest_is_lost_when_the_door_shuts_while_many_processes_attach(tmp_path: Path) -> None:
    host = Path(trial(tmp_path, "a"))
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
    heard = {one.job_id for one in prerun_registry.close(host)}
    believed = {int(word) for one in attachers for word in one.communicate()[0].split()}
    assert heard == believed
    assert len(heard) >= 30


def test_one_who_was_killed_at_the_door_is_waited_for_no_longer_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Path(trial(tmp_path, "a"))
    PrerunRegistry(tmp_path).claim("g", str(host))
    prerun_registry.attach(host, prerun_registry.WaitingJob(job_id=7, release_at="now", trial_dir="/t"))
    (host / prerun_registry.WAITING / ".8").write_text("now\n/t\n")  # its rename never comes
    monkeypatch.setattr(prerun_registry, "DOOR_S", 0.05)
    assert [one.job_id for one in prerun_registry.close(host)] == [7]


def test_who_is_at_the_door_when_it_shuts_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerun_registry, "DOOR_S", allow(60))
    host = Path(trial(tmp_path, "a"))
    PrerunRegistry(tmp_path).claim("g", str(host))
    prerun_registry.attach(host, prerun_registry.WaitingJob(job_id=7, release_at="now", trial_dir="/t"))
    entering = (host / prerun_registry.WAITING / ".9").open("w")
    entering.write("now\n/t\n")
    entering.close()
    handle = os.open(host / prerun_registry.WAITING, os.O_RDONLY)  # as the kernel holds it in the middle of a rename
    enters = threading.Timer(0.1, lambda: os.rename(".9", "9", src_dir_fd=handle, dst_dir_fd=handle))
    enters.start()
    heard = [one.job_id for one in prerun_registry.close(host)]
    enters.join()
    os.close(handle)
    assert heard == [7, 9]


CLAIMER = """\
import sys
from pathlib import Path
from slurmwrap.store.prerun_registry import PrerunRegistry
sys.stdin.readline()
print(PrerunRegistry(Path(sys.argv[1])).claim("g", sys.argv[2]))
"""


def test_of_many_processes_one_claims_a_group(tmp_path: Path) -> None:
    claimers = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMER, str(tmp_path), trial(tmp_path, str(n))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(6)
    ]
    said = [one.communicate("\n")[0].strip() for one in claimers]
    assert sorted(said) == ["False"] * 5 + ["True"]


def aged(path: Path, days: float) -> None:
    for one in (*path.rglob("*"), path):
        os.utime(one, (time.time() - days * 86400,) * 2)


def test_old_trials_go_and_those_in_flight_stay(tmp_path: Path) -> None:
    flights = PrerunRegistry(tmp_path)
    old, young, pointed, kept = (Path(trial(tmp_path, name)) for name in ("old", "young", "pointed", "kept"))
    (old / "spec.json").write_text("{}")
    flights.claim("g", str(pointed))
    for path in (old, pointed, kept):
        aged(path, 15)
    assert flights.prune(14 * 86400, keep=frozenset({str(kept)})) == 1
    assert sorted(path.name for path in flights.trials()) == ["kept", "pointed", "young"]
    assert young.is_dir()


def test_nothing_there_is_no_trial(tmp_path: Path) -> None:
    flights = PrerunRegistry(tmp_path / "none")
    assert (flights.trials(), flights.prune(1.0), flights.of("g")) == ((), 0, None)


def test_a_state_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "inflight").write_text("a file")
    with pytest.raises(OSError, match="inflight"):
        PrerunRegistry(tmp_path).claim("g", trial(tmp_path, "a"))
