"""Let jobs run for some minutes while Slurm's and slurmwrap's daemons, disks and the clock fail, and check the records.

    .ci/chaos --minutes 20 --seed 1

Runs as root on a lab of its own, with two accounts of its own. Afterwards everything is healed, all jobs end, and the
checker counts lost runs, doubled actions, stuck holds, drained nodes, leftover limits and unfinished intents
(.ci/chaos/checker.py). Exit code 1 if it finds one. Logs and databases are kept then.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chaos import checker, collect, faults, stream
from chaos.checker import KernelLine, NodeSight, PlannedFault, RunRecords, Submitted
from chaos.cluster import HOMES, USERS, ChaosLab, start_cluster
from slurmwrap.lab.lab_spec import gpu_bus_id

_RESULTS = Path(__file__).resolve().parents[2] / "build" / "chaos"
# At most so many faults at once, and pauses between their beginnings and between submissions.
_FAULTS, _FAULT_PAUSE_S, _JOB_PAUSE_S = 2, (4.0, 16.0), (0.5, 5.0)
_NODES = 4
_DRAIN_S, _SETTLE_S, _REPAIR_S = 1500.0, 300.0, 40.0


@dataclass(slots=True)
class ChaosRun:
    """The state of one run: what was submitted and caused so far. Several threads append to its lists."""

    lab: ChaosLab
    dice: random.Random
    until: float
    submitted: list[Submitted] = field(default_factory=list)
    sights: list[NodeSight] = field(default_factory=list)
    kernel: list[KernelLine] = field(default_factory=list)
    faults: list[PlannedFault] = field(default_factory=list)
    crashes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    active: dict[str, str] = field(default_factory=dict)  # target -> fault
    newest: dict[str, int] = field(default_factory=dict)  # user -> newest job id
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    lock: threading.Lock = field(default_factory=threading.Lock)
    drained: dict[str, float] = field(default_factory=dict)  # node -> when it was first seen out of service
    held: dict[str, float] = field(default_factory=dict)  # job -> when it was first seen held after a failed launch
    releases: int = 0

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Run `event` at this time, in the pool."""
        with self.lock:
            heapq.heappush(self.events, (when, next(self.numbers), event))

    def take_due(self) -> list[Callable[[], None]]:
        """Return the events that are due."""
        due = []
        with self.lock:
            while self.events and self.events[0][0] <= time.time():
                due.append(heapq.heappop(self.events)[2])
        return due


def submit_job(run: ChaosRun, job: stream.StreamJob) -> None:
    """Submit a job of the stream, and plan what happens to it later."""
    home, at = HOMES / job.user, time.time()
    script = home / f"{job.marker}.sbatch"
    script.write_text(job.script)
    depends = (f"--dependency=afterany:{run.newest[job.user]}",) if job.depends and job.user in run.newest else ()
    done = run.lab.run([*job.argv, *depends, str(script)], job.user, cwd=home, timeout_s=180)
    job_id = stream.parse_job_id(done.stdout)
    run.submitted.append(Submitted(marker=job.marker, kind=job.kind, at=at, job_id=job_id))
    if job_id is None:
        run.failures.append(f"{job.marker}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        return
    run.newest[job.user] = job_id
    if job.after == "cancel":
        run.at(time.time() + run.dice.uniform(1, 25), lambda: cancel_job(run, job_id, job.user))
    elif job.after:
        run.at(time.time() + 2, lambda: strike_node(run, job_id, job.after, time.time() + 60))


def cancel_job(run: ChaosRun, job_id: int, user: str) -> None:
    """Cancel a job as its user; again later if Slurm does not answer."""
    if run.lab.run(["scancel", str(job_id)], user, timeout_s=60).returncode:
        run.at(time.time() + 10, lambda: cancel_job(run, job_id, user))


def strike_node(run: ChaosRun, job_id: int, how: str, until: float) -> None:
    """When the job runs: write an Xid of its GPU to the kernel log of its node, or cut the node's power."""
    shown = run.lab.run(["scontrol", "show", "job", "-d", str(job_id)], timeout_s=30).stdout
    where = re.search(r"Nodes=(\w+) .*?GRES=gpu\S*\(IDX:(\d+)", shown)
    if "JobState=RUNNING" not in shown or where is None:
        if time.time() < until:
            run.at(time.time() + 2, lambda: strike_node(run, job_id, how, until))
        return
    if how == "xid":
        bus = gpu_bus_id(int(where[2])).rpartition(".")[0]
        run.kernel.append(KernelLine(at=time.time(), node=where[1]))
        run.lab.add_kernel_line(
            where[1], f"NVRM: Xid (PCI:{bus}): 79, pid=4711, name=python, GPU has fallen off the bus."
        )
    else:
        cause_fault(run, faults.DrawnFault(kind="power", target=where[1], lasts_s=run.dice.uniform(2, 12)))


def cause_fault(run: ChaosRun, fault: faults.DrawnFault) -> None:
    """Begin a fault and plan its end, unless its target has one already."""
    target = "clock" if fault.kind == "clock" else fault.target
    with run.lock:
        if target in run.active or (not run.lab.is_running(target) and target in run.lab.processes):
            return
        run.active[target] = fault.kind
    began = time.time()
    faults.begin_fault(run.lab, fault)
    run.at(time.time() + fault.lasts_s, lambda: stop_fault(run, fault, target, began))


def stop_fault(run: ChaosRun, fault: faults.DrawnFault, target: str, began: float) -> None:
    """End a fault."""
    faults.end_fault(run.lab, fault)
    run.faults.append(PlannedFault(kind=fault.kind, target=fault.target, began=began, ended=time.time()))
    run.active.pop(target, None)


def plan_stream(run: ChaosRun, began: float) -> None:
    """Plan all submissions and faults; the same ones for the same seed."""
    when = began
    for number in itertools.count():
        when += run.dice.uniform(*_JOB_PAUSE_S)
        if when > run.until:
            break
        job = stream.draw_job(run.dice, number, USERS, HOMES)
        run.at(when, lambda job=job: submit_job(run, job))  # type: ignore[misc]
    when = began + 10
    while when < run.until:
        fault = faults.draw_fault(run.dice, run.lab.nodes)
        run.at(when, lambda fault=fault: len(run.active) < _FAULTS and cause_fault(run, fault))  # type: ignore[misc]
        when += run.dice.uniform(*_FAULT_PAUSE_S)


def supervise(run: ChaosRun) -> None:
    """Start daemons that ended by themselves, as systemd does; note nodes out of service and repair them."""
    for name in ("munged", "slurmctld", *run.lab.nodes, "reconcile"):
        with run.lock:
            dead = name not in run.active and not run.lab.is_running(name)
        if dead:
            run.crashes[f"{name} ended with {run.lab.processes[name].returncode}"] += 1
            run.lab.start(name)
    done = run.lab.run(["sinfo", "-N", "-h", "-p", "gpu", "-o", "%N\x1f%T\x1f%E"], timeout_s=10)
    for line in done.stdout.splitlines():
        node, state, reason = line.split("\x1f")
        if not any(word in state for word in ("down", "drain", "fail")):
            run.drained.pop(node, None)
            continue
        run.sights.append(NodeSight(at=time.time(), node=node, state=state.upper(), reason=reason))
        since = run.drained.setdefault(node, time.time())
        patience = _REPAIR_S if reason.startswith("slurmwrap:") else 15.0
        if node not in run.active and time.time() - since > patience:
            run.lab.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], timeout_s=30)
            run.drained.pop(node, None)


def play(run: ChaosRun, minutes: float) -> None:
    """Play the stream, heal, and wait until no job is left and the reconciler has nothing to do."""
    began = time.time()
    run.until = began + minutes * 60
    plan_stream(run, began)
    with ThreadPoolExecutor(12) as pool:
        futures = []
        looking = pool.submit(supervise, run)
        while time.time() < run.until or run.events or run.active:
            futures += [pool.submit(event) for event in run.take_due()]
            if looking.done():
                looking.result()
                looking = pool.submit(supervise, run)
            _show(run, began, f"{max(0, run.until - time.time()):.0f} s left")
            time.sleep(0.5)
        for future in futures:
            future.result()
        looking.result()
    _drain(run, began)


def _drain(run: ChaosRun, began: float) -> None:
    """Wait until Slurm has no job and the site's database no run to finish."""
    deadline = time.time() + _DRAIN_S
    queue = None
    # All nodes register again, so that slurmctld notices the jobs that were lost on them: else after ten minutes.
    run.lab.run(["scontrol", "reconfigure"])
    while (queue is None or not _all_far(queue)) and time.time() < deadline:
        supervise(run)
        queue = collect.read_queue(run.lab)
        _act_as_administrator(run, queue or ())
        for event in run.take_due():
            event()
        _show(run, began, f"draining, {'?' if queue is None else len(queue)} jobs left")
        time.sleep(2)
    deadline = time.time() + _SETTLE_S
    while time.time() < deadline and not _is_settled(run):
        supervise(run)
        _show(run, began, "waiting for the reconciler")
        time.sleep(2)


def _all_far(queue: tuple[checker.PendingJob, ...]) -> bool:
    """Return whether nothing more will happen: all jobs, if there are any, may start only after the drain."""
    return all(job.state == "PENDING" and (job.start or 0.0) > time.time() + _DRAIN_S for job in queue)


def _act_as_administrator(run: ChaosRun, queue: tuple[checker.PendingJob, ...]) -> None:
    """Cancel what can never start, and release what Slurm holds after a failed launch without consent to retries."""
    for job in queue:
        if job.reason == "DependencyNeverSatisfied":
            run.lab.run(["scancel", job.address])
        held = job.reason.replace(" ", "_") == "launch_failed_requeued_held"
        if held and "retry" not in job.name and time.time() - run.held.setdefault(job.address, time.time()) > _REPAIR_S:
            run.lab.run(["scontrol", "release", job.address])
            run.releases += 1
            del run.held[job.address]


def _is_settled(run: ChaosRun) -> bool:
    rows = collect.read_runs(run.lab.layout.state / "site.db")
    return all(row.reconciled for row in rows) and not collect.list_spool_files(run.lab)


_shown_at = 0.0


def _show(run: ChaosRun, began: float, what: str) -> None:
    """Print the progress line: at most once a second on a terminal, every 30 s elsewhere."""
    global _shown_at
    if time.monotonic() - _shown_at < (1 if sys.stdout.isatty() else 30):
        return
    _shown_at = time.monotonic()
    text = (
        f"{time.time() - began:5.0f} s: {len(run.submitted)} submissions, {len(run.faults)} faults, "
        f"now {', '.join(sorted(f'{kind} {target}' for target, kind in run.active.items())) or 'none'}; {what}"
    )
    print(f"\r{text[:118]:118}" if sys.stdout.isatty() else text, end="" if sys.stdout.isatty() else "\n", flush=True)


def gather(run: ChaosRun) -> RunRecords:
    """Collect the records after the reconciler has ended."""
    lab, site = run.lab, run.lab.layout.state / "site.db"
    users = collect.list_user_databases()
    return RunRecords(
        ended_at=time.time(),
        submitted=tuple(run.submitted),
        slurm_runs=collect.parse_completions(lab.jobcomp.read_text() if lab.jobcomp.exists() else ""),
        lines=collect.read_script_lines(),
        recorded=collect.read_runs(site),
        actions=collect.read_actions(site),
        user_actions=tuple(action for path in users for action in collect.read_actions(path)),
        pending=collect.read_queue(lab) or (),
        sights=tuple(run.sights),
        kernel=tuple(run.kernel),
        faults=tuple(run.faults),
        lowered_limits=collect.read_lowered_limits(lab),
        broken_databases=collect.find_damage((site, *users)),
        unread_files=collect.list_spool_files(lab),
        rejected=collect.read_rejected(site),
    )


def print_result(run: ChaosRun, records: RunRecords, seed: int) -> int:
    """Print what was done and found; return the number of violations."""
    found = checker.check(records)
    kinds = Counter(fault.kind for fault in records.faults)
    ran = [one for one in records.slurm_runs if one.start is not None]
    print(f"\nseed {seed}: {len(records.submitted)} submissions, {len(ran)} runs, {len(records.faults)} faults")
    print("faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    done = Counter(one.verb for one in records.actions if one.mode == "act" and one.done_at and not one.error)
    print("actions: " + ", ".join(f"{count} {verb}" for verb, count in sorted(done.items())))
    for text, count in sorted(run.crashes.items()):
        print(f"  {text}: {count} times")
    print(f"  {run.releases} jobs without consent to retries were released after failed launches")
    print(f"  {len(run.failures)} submissions were refused" + "".join(f"\n    {text}" for text in run.failures))
    for one in found:
        print(f"  {f'({one.excuse}) ' if one.excuse else ''}{one.title}: {one.text}")
    counts = checker.count_by_title(found)
    print("; ".join(f"{title}: {count}" for title, count in counts.items()))
    return sum(counts.values())


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long jobs are submitted and faults caused")
    parser.add_argument("--seed", type=int, help="of the jobs and faults; the default is drawn and printed")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp/slurmwrap-chaos"), help="directory of the lab")
    parser.add_argument("--base-port", type=int, default=25500)
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("it needs root: it acts as two users and makes small disks")
    seed = options.seed if options.seed is not None else random.randrange(10_000)
    print(f"seed {seed}, {options.minutes:g} minutes", flush=True)
    with _accounts(), start_cluster(options.dir, options.base_port, _NODES) as lab:
        run = ChaosRun(lab, random.Random(seed), 0.0)
        play(run, options.minutes)
        run.active["reconcile"] = "end"
        lab.end("reconcile", signal.SIGTERM)
        records = gather(run)
        violations = print_result(run, records, seed)
        _RESULTS.mkdir(parents=True, exist_ok=True)
        (_RESULTS / f"seed-{seed}.txt").write_text("\n".join(map(repr, (records, checker.check(records)))))
    kept = options.dir.with_name(f"{options.dir.name}-records")
    if violations:
        print(f"logs and databases: {kept}")
        return 1
    shutil.rmtree(kept, ignore_errors=True)
    return 0


@contextlib.contextmanager
def _accounts() -> Iterator[None]:
    """Make the two users and remove them, their homes included."""
    _remove_accounts()
    for user in USERS:
        argv = ["useradd", "--create-home", "--home-dir", str(HOMES / user), "--shell", "/bin/bash", user]
        subprocess.run(argv, check=True, capture_output=True, timeout=30)
        (HOMES / user).chmod(0o711)
    try:
        yield
    finally:
        _remove_accounts()


def _remove_accounts() -> None:
    for user in USERS:
        subprocess.run(["userdel", "-f", "-r", user], check=False, capture_output=True, timeout=30)
        shutil.rmtree(HOMES / user, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
