"""Measure how fast ended jobs are read, diagnosed and stored, from sealed spool files on. Needs munged.

The budget is 300 attempts a second (one node each: files of a Prolog and an Epilog, sealed by MUNGE, and the record of
EpilogSlurmctld). Most of the time is spent on opening the seals. The baseline, measured in the same run, passes the
same credentials to `unmunge` one after another and does nothing else. `make bench` runs this program.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurmwrap.config.load_config import Config
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.host.read_user_file import UserLogs
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.model.cluster import Node, Snapshot
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.topology import Topology
from slurmwrap.reconcile import Scope, Services, reconcile_once
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.spool_reader import PlainSpool, SealedSpool
from slurmwrap.store.spool_writer import write_plain, write_sealed

LOG = (
    "step 1 loss 2.3\n" * 2500 + 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\nKeyError: 1\n'
)
NODES = 8


class QuietSlurm:
    """A Slurm that returns given records at once."""

    def __init__(self, jobs: tuple[JobRecord, ...]) -> None:
        self._jobs = {job.job_id: job for job in jobs}

    def cluster_name(self) -> str:
        return "bench"

    def snapshot(self) -> Snapshot:
        nodes = tuple(Node(name=f"n{i}", state="IDLE", cpus=32, mem_mib=256000) for i in range(NODES))
        return Snapshot(taken_at=time.time(), cluster="bench", nodes=nodes, topology=Topology())

    def jobs(self, user: str | None = None) -> tuple[JobRecord, ...]:
        return tuple(self._jobs.values())

    def job(self, address: str) -> JobRecord | None:
        return self._jobs.get(int(address))


@contextlib.contextmanager
def munged(home: Path) -> Iterator[str]:
    program = shutil.which("munged", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        sys.exit("munged is not installed (Debian: apt-get install munge)")
    (home / "key").write_bytes(os.urandom(64))
    (home / "key").chmod(0o600)
    options = {"key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed", "socket": "socket"}
    argv = [program, "--foreground", "--force", "--origin=127.0.0.1"]
    argv += [f"--{option}={home / name}" for option, name in options.items()]
    daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (home / "socket").exists():
            time.sleep(0.02)
        yield str(home / "socket")
    finally:
        daemon.terminate()
        daemon.wait(10)


def job(number: int, now: int) -> JobRecord:
    fine = number % 4 == 0
    return JobRecord(
        job_id=number, name="train", user="ada", uid=1001, state="COMPLETED" if fine else "FAILED",
        exit_code=0 if fine else 1, submit_time=now - 200, start_time=now - 100, end_time=now - 20,
        nodes=(f"n{number % NODES}",), partition="gpu", gpus=8, cpus=32, requeue=True,
    )  # fmt: skip


def hooks(ended: JobRecord) -> list[Observation]:
    assert ended.start_time is not None and ended.end_time is not None
    facts: dict[str, Any] = {"restarts": 0, "uid": ended.uid, "nodes": ended.nodes[0], "gpus": "0-7"}
    over = {"exit": f"{ended.exit_code}:0", "wait_status": ended.exit_code << 8, "derived": 0}
    log = [{"name": "stdout", "text": LOG, "truncated": False}] if ended.exit_code else []
    epilog = {**facts, **over, "logs": log, "kernel": [], "mem_peak_mib": 9000, "started_at": float(ended.start_time)}

    def note(context: Context, at: int, node: str, told: dict[str, Any]) -> Observation:
        return Observation(
            nonce=uuid.uuid4().hex, cluster="bench", job_id=ended.job_id, context=context, at=at, node=node, facts=told
        )

    return [
        note(Context.PROLOG, ended.start_time, ended.nodes[0], facts),
        note(Context.EPILOG, ended.end_time, ended.nodes[0], epilog),
        note(Context.EPILOG_SLURMCTLD, ended.end_time, "", {**facts, **over}),
    ]


def fill(spool: Path, controller: Path, jobs: tuple[JobRecord, ...], socket: str) -> None:
    for ended in jobs:
        *sealed, plain = hooks(ended)
        for observation in sealed:
            write_sealed(spool, observation, socket=socket)
        write_plain(controller, plain)


def one_after_the_other(spool: Path, socket: str) -> float:
    """Return the seconds of the baseline."""
    credentials = [path.read_bytes() for path in spool.iterdir()]
    began = time.perf_counter()
    for credential in credentials:
        subprocess.run(["unmunge", f"--socket={socket}"], input=credential, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def reconcile(place: Path, spool: Path, controller: Path, jobs: tuple[JobRecord, ...], socket: str) -> float:
    """Return the seconds of one pass over all files."""
    addresses = {f"n{i}": "127.0.0.1" for i in range(NODES)}
    with Database.open(place / "site.db") as store:
        services = Services(
            slurm=QuietSlurm(jobs),  # type: ignore[arg-type] - nothing is submitted and nothing is changed
            store=store,
            spools=(SealedSpool(spool, socket, lambda: addresses, {os.geteuid()}, "bench"), PlainSpool(controller)),
            logs=UserLogs(),
            clock=SystemClock(),
            publisher=None,
            unpack=record_from_json,
            classify=diagnose_run,
            read_inputs=lambda uid, paths: (),
            config=Config(),
            scope=Scope(trusted=frozenset({os.geteuid(), -1})),
        )
        began = time.perf_counter()
        summary = reconcile_once(services)
        taken = time.perf_counter() - began
    assert len(summary.judged) == len(jobs) and not summary.errors and not summary.ingested.refused, summary.errors
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slurmwrap-bench-") as scratch, munged(Path(scratch)) as socket:
        place = Path(scratch)
        spool, controller = place / "spool", place / "controller"
        spool.mkdir(mode=0o700)
        jobs = tuple(job(number, int(time.time())) for number in range(1, options.attempts + 1))
        fill(spool, controller, jobs, socket)
        plain = one_after_the_other(spool, socket)
        taken = reconcile(place, spool, controller, jobs, socket)
    rate, ratio = options.attempts / taken, taken / plain
    print(f"unmunge alone, one after the other  {plain:6.2f} s")
    print(f"the whole reconcile                 {taken:6.2f} s   {ratio:.2f} of that")
    print(f"{rate:.0f} attempts/s (budget: 300), n = {options.attempts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
