"""Evaluate the findings about running jobs (rule `early`) on invented jobs, with production's functions.

    bench/early_findings.py                  all kinds of jobs (about half a minute)
    bench/early_findings.py --seed 2 --json
    bench/early_findings.py --verbose        each wrong or late finding

Good jobs look bad for a while: silent validations, checkpoints of minutes, compilations, downloads, licences, skipped
batches, survived errors. Bad ones diverge, lose a rank, hang, leave GPUs idle or will not finish. Each writes output in
one of many formats, may count its steps, and has samples of its GPUs once a minute, which arrive a minute late, or
none. It is looked at every two minutes, and up to half a minute later. Printed: for each kind of job which findings
were made, precision (findings of the right kind among all), recall, and by how much a finding came later than the
rule's own waiting time.
"""

from __future__ import annotations

import argparse
import json
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurmwrap.config.config_defaults import Early
from slurmwrap.diagnosis.running_output import read_signs
from slurmwrap.model.evidence import LogTail, RunKey
from slurmwrap.model.running_job import DIVERGED, IDLE, PARTLY_DEAD, STUCK, WILL_NOT_FINISH, GpuUse
from slurmwrap.policy.early_findings import (
    CountedNow,
    EarlySign,
    RunningLook,
    RunningSeries,
    WatchedRun,
    add_look,
    find_signs,
    needs_cpu_time,
)

MINUTE, HOUR = 60.0, 3600.0
SETTINGS = Early()
# The sampler's samples reach the database so much later.
SAMPLE_LATE_S = 60.0
KEY = RunKey(cluster="bench", job_id=1, submit_time=1)
PRECISION, LATE_S = 0.98, 180.0

# Rows of progress: {s} is the step of {n}, {x} the loss, {t} and {a} are other figures, {e} the epoch, {p} percent.
FORMATS = (
    "step {s}/{n} loss {x} lr 3.0e-04 {t:.1f} ms",
    "{{'loss': {x}, 'grad_norm': {a:.4f}, 'learning_rate': 2e-05, 'epoch': {e:.2f}}}",
    " iteration {s:8d}/{n:8d} | elapsed time per iteration (ms): {t:.1f} | lm loss: {x} | loss scale: 65536.0 |",
    "[2026-11-27 10:00:00,000][train][INFO] - epoch 3 iter {s} train_loss={x} acc={a:.3f}",
    "Epoch: [3]  [{s:4d}]  eta: 0:17:11  lr: 0.0001  loss: {x} ({x})  time: 0.21  data: 0.01  max mem: 11000",
    "Epoch 2:  {p:3.0f}%|####      | {s}/{n} [12:30<31:12,  4.2it/s, v_num=3, train_loss={x}]",
    "{s}/{n} [=====>........] - ETA: 91s - loss: {x} - accuracy: {a:.4f}",
    '{{"step": {s}, "loss": {x}, "lr": 0.0003, "time": {t}}}',
    "0: [rank0] INFO:train: step={s} total_loss={x} ce_loss={x} aux_loss=0.01",
    "2026-11-27 10:00:00 | INFO | train_inner | epoch 002: {s} / {n} loss={x}, nll_loss={x}, ppl=9.1, num_updates={s}",
    "[titan] 2026-11-27 10:00:00 - root - INFO - step: {s:4d}  loss: {x:>8}  memory: 40.1GiB(50%)  tps: 7,204",
)


@dataclass
class Job:
    """An invented job: what it writes, counts and uses. Times in seconds from its start."""

    random: Random
    gpus: int = 8
    counted: bool = False
    sampled: bool = True  # the node's sampler reports its GPUs
    accounted: bool = False  # Slurm accounts the CPU time of its steps
    limit_s: float = 7 * 24 * HOUR
    warned: bool = False
    total: int = 20_000
    row: str = FORMATS[0]
    now: float = 0.0
    step: int = 0
    loss: float = 6.0
    output: list[tuple[float, str]] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    # From each time on: (use in percent, processes) of each GPU, and CPUs in use.
    use: list[tuple[float, tuple[tuple[float, int], ...]]] = field(default_factory=list)
    cpus: list[tuple[float, float]] = field(default_factory=list)
    truth: frozenset[str] = frozenset()
    bad_at: float = 0.0  # when a finding is due

    def say(self, text: str) -> None:
        """Write one row."""
        self.output.append((self.now, text))

    def progress(self, loss: str = "", step: int | None = None) -> None:
        """Write a row of progress with this loss, or a finite one."""
        step = self.step if step is None else step
        shown = loss or f"{self.loss + self.random.uniform(-0.2, 0.2):.4f}"
        figures = {"t": self.random.uniform(90, 110), "a": self.random.random()}
        share = step / self.total
        self.say(self.row.format(s=step, n=self.total, x=shown, e=3 * share, p=100 * share, **figures))

    def uses(self, use: float, processes: int = 1, cpus: float = 8.0, gpus: int | None = None) -> None:
        """From now on so many GPUs (all) have this use, the others none."""
        busy = self.gpus if gpus is None else gpus
        self.use.append((self.now, tuple((use, processes) if i < busy else (0.0, 0) for i in range(self.gpus))))
        self.cpus.append((self.now, cpus))

    def pause(self, seconds: float, use: float = 0.0, processes: int = 1, cpus: float = 8.0) -> None:
        """Let time pass with this use of all GPUs."""
        self.uses(use, processes, cpus)
        self.now += seconds

    def train(self, seconds: float, gap: float, every: int = 10, loss: str = "", use: float = 92.0) -> None:
        """Make steps for so long, with a row every so many of them."""
        self.uses(use, 1, 10.0)
        end = self.now + seconds
        while self.now < end:
            self.now += gap * self.random.uniform(0.9, 1.1)
            self.step += 1
            self.loss *= 0.9999
            self.steps.append(self.now)
            if self.step % every == 0:
                self.progress(loss)

    def due(self, *kinds: str, after: float = 0.0) -> Job:
        """Mark the job as bad from now on; the finding is due `after` seconds later."""
        self.truth, self.bad_at = frozenset(kinds), self.now + after
        return self


def make_job(random: Random, **settings: object) -> Job:
    """Return a job with a random format and size."""
    gpus = random.choice((2, 4, 8, 8, 8, 16))
    job = Job(random=random, gpus=gpus, counted=random.random() < 0.4, accounted=random.random() < 0.5)
    job.row = random.choice(FORMATS)
    for name, value in settings.items():
        setattr(job, name, value)
    job.pause(random.uniform(10, 90), processes=0)
    return job


def pace(job: Job) -> tuple[float, int]:
    """Return a step time, and every how many steps a row follows (a row every 5 to 60 s)."""
    gap = job.random.choice((0.5, 1.0, 2.0, 5.0, 12.0, 30.0))
    job.total = int(20 * HOUR / gap)
    return gap, max(1, int(job.random.uniform(5, 60) / gap))


# --- good jobs ----------------------------------------------------------------------------------------------------


def plain(job: Job) -> Job:
    job.train(job.random.uniform(0.5, 3) * HOUR, *pace(job))
    return job


def checkpoint_of_minutes(job: Job) -> Job:
    gap, every = pace(job)
    loud = job.random.random() < 0.5
    for _ in range(3):
        job.train(job.random.uniform(20, 40) * MINUTE, gap, every)
        if loud:
            job.say(f"Saving checkpoint to /out/step_{job.step}.pt")
        job.pause(job.random.uniform(7, 9.5) * MINUTE, cpus=job.random.choice((0.05, 4.0)))
    job.train(10 * MINUTE, gap, every)
    return job


def validation_on_gpus(job: Job) -> Job:
    gap, every = pace(job)
    for _ in range(2):
        job.train(30 * MINUTE, gap, every)
        job.pause(job.random.uniform(8, 50) * MINUTE, use=job.random.choice((80, 98, 100)))
        job.say("epoch 3 done: val_loss 2.31 acc 0.71")
    job.train(10 * MINUTE, gap, every)
    return job


def validation_on_cpus(job: Job) -> Job:
    gap, every = pace(job)
    lasts = job.random.uniform(3, 25)
    for _ in range(2):
        job.train(30 * MINUTE, gap, every)
        if lasts > 9:
            job.say(
                job.random.choice(
                    ("Running validation", "Evaluating on the test set (1 process)", "Computing BLEU: eval")
                )
            )
        job.pause(lasts * job.random.uniform(0.9, 1.1) * MINUTE, cpus=1.0)
        job.say("mAP 0.311")
    job.train(10 * MINUTE, gap, every)
    return job


def compilation_at_start(job: Job) -> Job:
    if job.random.random() < 0.5:
        job.say("compiling the model, this takes a while")
    job.pause(job.random.uniform(10, 25) * MINUTE, cpus=1.0)
    job.train(HOUR, *pace(job))
    return job


def compilation_later(job: Job) -> Job:
    gap, every = pace(job)
    job.accounted = True
    job.train(30 * MINUTE, gap, every)
    if job.random.random() < 0.5:
        job.say("W1127 torch/_dynamo/convert_frame.py: torch._dynamo hit config.recompile_limit (8)")
    job.pause(job.random.uniform(9, 13) * MINUTE, cpus=1.0)
    job.train(30 * MINUTE, gap, every)
    return job


def download(job: Job) -> Job:
    job.say(
        job.random.choice(
            ("Downloading dataset to /scratch/imagenet", "Fetching 128 files", "copying data to local disk")
        )
    )
    end = job.now + job.random.uniform(5, 40) * MINUTE
    loud = job.random.random() < 0.5
    while job.now < end:
        job.pause(MINUTE, processes=0, cpus=0.3)
        if loud:
            job.say(f"Downloading data:  {job.random.randrange(100):3d}%|##  | 1.2G/9.0G [03:11<09:11, 22.1MB/s]")
    job.train(HOUR, *pace(job))
    return job


def licence_at_start(job: Job) -> Job:
    job.say(job.random.choice(("Waiting for a license of solver (3 in use)", "licence server: queued, position 4")))
    job.pause(job.random.uniform(8, 40) * MINUTE, processes=0, cpus=0.01)
    job.train(HOUR, *pace(job))
    return job


def licence_later(job: Job) -> Job:
    gap, every = pace(job)
    job.train(30 * MINUTE, gap, every)
    job.say("No license available, waiting")
    job.pause(job.random.uniform(5, 26) * MINUTE, cpus=0.01)
    job.train(30 * MINUTE, gap, every)
    return job


def skipped_batches(job: Job) -> Job:
    gap, every = pace(job)
    for _ in range(4):
        job.train(12 * MINUTE, gap, every)
        for _ in range(job.random.randrange(1, 5)):
            job.step += every
            job.pause(gap, use=90)
            job.progress("nan")
    job.say("step 300 loss 2.31 grad_norm inf, skipping the update (loss scale 32768)")
    job.train(12 * MINUTE, gap, every)
    return job


def nan_of_metrics(job: Job) -> Job:
    gap, every = pace(job)
    for epoch in range(3):
        job.train(15 * MINUTE, gap, every)
        for _ in range(8):
            job.say(f"epoch {epoch} class {job.random.randrange(99)} IoU nan, val_loss: nan, loss_mask_val nan")
        job.say(f"{{'eval_loss': nan, 'eval_runtime': 31.2, 'epoch': {epoch}}}")
    job.train(15 * MINUTE, gap, every)
    return job


def nan_until_filled(job: Job) -> Job:
    for step in range(job.random.randrange(5, 19)):
        job.pause(30, use=20)
        job.progress("nan", step + 1)
    job.train(HOUR, *pace(job))
    return job


def nan_then_recovered(job: Job) -> Job:
    gap, every = pace(job)
    job.train(30 * MINUTE, gap, every)
    # A loss scaler halves its scale until the loss is finite again, within a minute.
    for _ in range(8):
        job.step += 1
        job.pause(5, use=90)
        job.progress("nan")
    job.train(30 * MINUTE, gap, every)
    return job


def survived_errors(job: Job) -> Job:
    gap, every = pace(job)
    for _ in range(3):
        job.train(15 * MINUTE, gap, every)
        rank = job.random.randrange(8)
        job.say(f"[rank{rank}]: Traceback (most recent call last):")
        job.say(f'[rank{rank}]:   File "/home/u/data.py", line 88, in read')
        job.say(f"[rank{rank}]: OSError: [Errno 5] Input/output error: 'shard-{rank}.tar'")
        job.say("retrying the shard in 30 s")
    job.train(15 * MINUTE, gap, every)
    return job


def failed_preparation(job: Job) -> Job:
    job.say("srun: error: n3: task 3: Exited with exit code 1")
    job.say("stage-in: one node had the data already, going on")
    job.pause(job.random.uniform(2, 12) * MINUTE, processes=0, cpus=1.0)
    job.train(HOUR, *pace(job))
    return job


def elastic_restart(job: Job) -> Job:
    gap, every = pace(job)
    job.train(30 * MINUTE, gap, every)
    job.say("[rank3]: Traceback (most recent call last):")
    job.say('[rank3]:   File "train.py", line 9, in step')
    job.say("[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered")
    job.pause(20)
    job.say("ERROR:torch.distributed.elastic: failed (exitcode: 1) local_rank: 3")
    job.say("INFO:torch.distributed.elastic.agent.server.api: 2/3 attempts left; will restart worker group")
    job.pause(job.random.uniform(1, 8) * MINUTE, processes=0, cpus=1.0)
    job.train(30 * MINUTE, gap, every)
    return job


def independent_tasks(job: Job) -> Job:
    gap, every = pace(job)
    job.train(20 * MINUTE, gap, every)
    job.say("srun: error: n1: task 5: Exited with exit code 2")
    job.train(HOUR, gap, every, use=80)
    return job


def slow_rows(job: Job) -> Job:
    job.counted = False
    gap = job.random.choice((2.0, 6.0))
    job.total = int(20 * HOUR / gap)
    job.train(8 * HOUR, gap, int(job.random.uniform(20, 80) * MINUTE / gap))
    return job


def end_of_training(job: Job) -> Job:
    gap, every = pace(job)
    job.train(HOUR, gap, every)
    job.say(
        job.random.choice(
            (
                "Training finished, uploading the model",
                "Training completed. Exporting to ONNX",
                "Saved final model; pushing",
            )
        )
    )
    job.pause(job.random.uniform(5, 28) * MINUTE, cpus=job.random.choice((0.05, 1.0)))
    job.say("done")
    return job


def alternates(job: Job) -> Job:
    gap, every = pace(job)
    for _ in range(8):
        job.train(6 * MINUTE, gap, every)
        job.pause(job.random.uniform(4, 9) * MINUTE, cpus=30.0)
    return job


def no_training(job: Job) -> Job:
    job.counted = False
    for number in range(300):
        job.pause(job.random.uniform(10, 60), use=60)
        job.say(f"wrote embeddings of part-{number:05d}.parquet")
    return job


def unsampled(job: Job) -> Job:
    job.sampled = False
    gap, every = pace(job)
    for _ in range(4):
        job.train(20 * MINUTE, gap, every)
        job.pause(job.random.uniform(2, 9) * MINUTE, use=80)
    job.train(10 * MINUTE, gap, every)
    return job


def slow_file_system(job: Job) -> Job:
    gap, every = pace(job)
    for _ in range(3):
        job.train(20 * MINUTE, gap, every)
        job.pause(job.random.uniform(3, 9) * MINUTE, cpus=0.02)
    job.train(10 * MINUTE, gap, every)
    return job


def fits_its_limit(job: Job) -> Job:
    gap = job.random.choice((1.0, 2.0))
    lasts = job.random.uniform(1.5, 3) * HOUR
    job.total = int(lasts / gap)
    job.limit_s = lasts * job.random.uniform(1.1, 1.6)
    # A slow start: what the first steps say of the end is wrong.
    job.train(10 * MINUTE, gap * 1.3, 20)
    job.train(lasts - 10 * MINUTE, gap, 20)
    return job


def fits_after_long_preparation(job: Job) -> Job:
    gap = job.random.choice((1.0, 2.0))
    lasts = job.random.uniform(2, 4) * HOUR
    job.total = int(lasts / gap)
    job.say("tokenizing 128 files")
    job.pause(job.random.uniform(20, 40) * MINUTE, processes=0, cpus=30.0)
    job.limit_s = job.now + lasts * job.random.uniform(1.1, 1.4)
    job.train(lasts, gap, 20)
    return job


def saves_before_its_limit(job: Job) -> Job:
    gap = job.random.choice((1.0, 2.0))
    job.limit_s = 3 * HOUR
    job.total = int(8 * HOUR / gap)
    for _ in range(6):
        job.train(30 * MINUTE, gap, 20)
        job.say(f"saved checkpoint checkpoint-{job.step}")
    return job


def stops_early(job: Job) -> Job:
    gap = 2.0
    job.limit_s, job.total = 3 * HOUR, int(5 * HOUR / gap)
    job.train(2 * HOUR, gap, 20)
    job.say("Early stopping: no improvement for 10 epochs")
    return job


# --- bad jobs -----------------------------------------------------------------------------------------------------


def stuck_wait(job: Job, gap: float, every: int, factor: float = 1.0) -> float:
    """Return the rule's own waiting time for a job of this pace."""
    usual = gap if job.counted else gap * every
    return factor * max(SETTINGS.stuck_s, SETTINGS.stuck_gaps * usual * 1.1)


def hang(job: Job) -> Job:
    gap, every = pace(job)
    job.train(job.random.uniform(0.5, 2) * HOUR, gap, every)
    job.due(STUCK, after=stuck_wait(job, gap, every))
    job.pause(3 * HOUR, cpus=0.02)
    return job


def hang_unsampled(job: Job) -> Job:
    job.sampled, job.accounted = False, job.random.random() < 0.5
    gap, every = pace(job)
    job.train(job.random.uniform(0.5, 2) * HOUR, gap, every)
    job.due(STUCK, after=stuck_wait(job, gap, every, 1.0 if job.accounted else 3.0))
    job.pause(5 * HOUR, cpus=0.02)
    return job


def hang_busy_cpu(job: Job) -> Job:
    job.accounted = True
    gap, every = pace(job)
    job.train(HOUR, gap, every)
    job.due(STUCK, after=stuck_wait(job, gap, every, 3.0))
    job.pause(4 * HOUR, cpus=float(job.gpus))
    return job


def hang_in_checkpoint(job: Job) -> Job:
    gap, every = pace(job)
    job.train(HOUR, gap, every)
    job.say("Saving checkpoint step_3000")
    job.due(STUCK, after=stuck_wait(job, gap, every, 3.0))
    job.pause(4 * HOUR, cpus=0.02)
    return job


def hang_at_start(job: Job) -> Job:
    job.say("initializing process group: world size 16")
    job.due(STUCK, after=6 * SETTINGS.stuck_s - job.now)
    job.pause(3 * HOUR, cpus=0.05)
    return job


def hang_spinning(job: Job) -> Job:
    gap, every = pace(job)
    job.train(HOUR, gap, every)
    job.due(STUCK, after=max(6 * SETTINGS.stuck_s, stuck_wait(job, gap, every, 3.0)))
    job.pause(5 * HOUR, use=100, cpus=float(job.gpus))
    return job


def lose_rank(job: Job, *rows: str, sampled_use: float | None = None) -> Job:
    gap, every = pace(job)
    job.train(job.random.uniform(0.3, 1.5) * HOUR, gap, every)
    for row in rows:
        job.say(row)
    usual = gap if job.counted else gap * every
    job.due(PARTLY_DEAD, after=max(SETTINGS.dead_s, 3 * usual * 1.1))
    if sampled_use is None:
        sampled_use = job.random.choice((0.0, 100.0))
    job.use.append((job.now, ((0.0, 0), *((sampled_use, 1) for _ in range(job.gpus - 1)))))
    job.cpus.append((job.now, float(job.gpus)))
    job.now += 2 * HOUR
    return job


def lost_task(job: Job) -> Job:
    how = job.random.choice(("Exited with exit code 1", "Killed", "Segmentation fault", "Out Of Memory", "Aborted"))
    return lose_rank(job, f"srun: error: n2: task {job.random.randrange(job.gpus)}: {how}")


def lost_rank(job: Job) -> Job:
    rank = job.random.randrange(job.gpus)
    prefix = job.random.choice((f"[rank{rank}]: ", f"{rank}: ", f"[default{rank}]:", ""))
    kind = job.random.choice(("RuntimeError: CUDA error: an illegal memory access was encountered", "KeyError: 'image'",
                              "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
                              "ValueError: too many dimensions 'str'"))  # fmt: skip
    rows = ("Traceback (most recent call last):", '  File "/home/u/train.py", line 88, in <module>', "    main()", kind)
    return lose_rank(job, *(prefix + row for row in rows))


def lost_rank_unsampled(job: Job) -> Job:
    job.sampled = False
    return lost_task(job)


def diverge(job: Job) -> Job:
    gap, every = pace(job)
    job.train(job.random.uniform(0.2, 1.5) * HOUR, gap, every)
    job.due(DIVERGED, after=5 * gap * every * 1.1 + SETTINGS.diverged_s)
    job.train(2 * HOUR, gap, every, loss="nan")
    return job


def diverge_at_once(job: Job) -> Job:
    gap, every = pace(job)
    rows, wait = 4 * SETTINGS.diverged_rows, 5 * SETTINGS.diverged_s
    job.due(DIVERGED, after=max(rows * gap * every * 1.1, wait) + SETTINGS.diverged_s)
    job.train(3 * HOUR, gap, every, loss="nan")
    return job


def diverge_to_infinity(job: Job) -> Job:
    gap, every = pace(job)
    job.train(0.5 * HOUR, gap, every)
    job.due(DIVERGED, after=5 * gap * every * 1.1 + SETTINGS.diverged_s)
    job.train(2 * HOUR, gap, every, loss="inf")
    return job


def trains_on_cpus(job: Job) -> Job:
    job.due(IDLE, after=SETTINGS.idle_s - job.now)
    job.train(2 * HOUR, *pace(job), use=0.0)
    job.use = [(at, tuple((0.0, 0) for _ in range(job.gpus))) for at, _ in job.use]
    return job


def one_gpu_has_a_process(job: Job) -> Job:
    gap, every = pace(job)
    job.due(IDLE, after=SETTINGS.idle_s - job.now)
    job.train(2 * HOUR, gap, every)
    job.use = [(0.0, tuple((95.0, 1) if i == 0 else (0.0, 0) for i in range(job.gpus)))]
    return job


def one_gpu_is_used(job: Job) -> Job:
    gap, every = pace(job)
    job.due(IDLE, after=SETTINGS.unused_s - job.now)
    job.train(3 * HOUR, gap, every)
    job.use = [(0.0, tuple((95.0, 1) if i == 0 else (0.0, 1) for i in range(job.gpus)))]
    return job


def sleeps(job: Job) -> Job:
    job.due(IDLE, after=SETTINGS.idle_s - job.now)
    job.pause(3 * HOUR, processes=0, cpus=0.0)
    return job


def too_long(job: Job) -> Job:
    gap = job.random.choice((1.0, 2.0))
    job.limit_s = job.random.uniform(3, 6) * HOUR
    job.total = int(job.limit_s * job.random.uniform(1.5, 5) / gap)
    # From rows alone progress is known once there are two of them; then it must last.
    job.due(
        WILL_NOT_FINISH, after=max(900.0, 0.25 * job.limit_s) - job.now + SETTINGS.forecast_s + 2 * SETTINGS.every_s
    )
    job.row = FORMATS[job.random.choice((0, 2))]
    job.train(job.limit_s - 60, gap, 20)
    return job


GOOD: dict[str, tuple[Callable[[Job], Job], int]] = {
    "plain": (plain, 20),
    "checkpoint of 9 minutes": (checkpoint_of_minutes, 20),
    "silent validation on GPUs": (validation_on_gpus, 15),
    "validation on CPUs": (validation_on_cpus, 20),
    "compilation of 12 minutes": (compilation_at_start, 20),
    "compilation later": (compilation_later, 15),
    "download of data": (download, 20),
    "waits for a licence": (licence_at_start, 15),
    "waits for a licence later": (licence_later, 15),
    "skipped batches": (skipped_batches, 15),
    "NaN of metrics": (nan_of_metrics, 15),
    "NaN until a buffer is full": (nan_until_filled, 10),
    "NaN, recovered": (nan_then_recovered, 10),
    "survived errors": (survived_errors, 15),
    "a failed preparation": (failed_preparation, 10),
    "elastic restart": (elastic_restart, 15),
    "independent tasks": (independent_tasks, 10),
    "slow rows": (slow_rows, 10),
    "the end of a training": (end_of_training, 15),
    "GPUs and CPUs in turn": (alternates, 10),
    "no training": (no_training, 10),
    "no sampler": (unsampled, 15),
    "slow file system": (slow_file_system, 10),
    "fits its limit": (fits_its_limit, 15),
    "fits after a long preparation": (fits_after_long_preparation, 10),
    "saves before its limit": (saves_before_its_limit, 10),
    "stops early": (stops_early, 2),
}
BAD: dict[str, tuple[Callable[[Job], Job], int]] = {
    "hang": (hang, 20),
    "hang, no sampler": (hang_unsampled, 15),
    "hang, CPUs busy": (hang_busy_cpu, 10),
    "hang in a checkpoint": (hang_in_checkpoint, 10),
    "hang at the start": (hang_at_start, 10),
    "hang, GPUs at 100 %": (hang_spinning, 10),
    "lost task": (lost_task, 20),
    "lost rank": (lost_rank, 20),
    "lost rank, no sampler": (lost_rank_unsampled, 10),
    "diverged": (diverge, 20),
    "diverged at once": (diverge_at_once, 10),
    "diverged to infinity": (diverge_to_infinity, 10),
    "trains on CPUs": (trains_on_cpus, 10),
    "one GPU has a process": (one_gpu_has_a_process, 10),
    "one GPU is used": (one_gpu_is_used, 10),
    "sleeps": (sleeps, 5),
    "too long for its limit": (too_long, 15),
}


# --- replay -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A finding: when it was made, and when its evidence was gone."""

    at: float
    sign: EarlySign


def replay(job: Job) -> dict[str, Made]:
    """Return the findings about a job by kind, each when it was first made."""
    series = RunningSeries(
        run=WatchedRun(
            began=0.0, limit_s=job.limit_s, gpus=job.gpus, cpus=job.gpus * 8, several=job.gpus > 1, warned=job.warned
        )
    )
    found: dict[str, Made] = {}
    written = [at for at, _ in job.output]
    before = 0.0
    now = job.random.uniform(0, SETTINGS.every_s)
    while now < job.now:
        first, last = bisect_right(written, before), bisect_right(written, now)
        rows = [text for _, text in job.output[first:last]]
        tails = [LogTail(name="o", text="\n".join(rows) + "\n", size=1, modified=written[last - 1])] if rows else []
        look = RunningLook(
            at=now,
            signs=read_signs(tails, now, first=before == 0.0),
            output_at=written[last - 1] if rows else None,
            counter=count_steps(job, now) if job.counted else None,
        )
        series = add_look(series, look, SETTINGS)
        if job.accounted and needs_cpu_time(series, now, SETTINGS):
            series = add_look(series, RunningLook(at=now, cpu_s=sum_cpu_time(job, now)), SETTINGS)
        for sign in find_signs(series, sample_gpus(job, now) if job.sampled else (), now, SETTINGS):
            found.setdefault(sign.kind, Made(now, sign))
        before = now
        now += SETTINGS.every_s + job.random.uniform(0, 30)
    return found


def count_steps(job: Job, now: float) -> CountedNow | None:
    """Return what the step counter shows."""
    made = bisect_right(job.steps, now)
    if not made:
        return None
    span = job.steps[made - 1] - job.steps[0]
    per_s = (made - 1) / span if span > 0 else None
    ranks = job.gpus
    return CountedNow(count=made, total=made * ranks, processes=ranks, at=job.steps[made - 1], per_s=per_s)


def sum_cpu_time(job: Job, now: float) -> float:
    """Return the CPU time of the job's steps until now."""
    ends = [*(at for at, _ in job.cpus[1:]), float("inf")]
    return sum(
        max(0.0, min(now, end) - at) * cores for (at, cores), end in zip(job.cpus, ends, strict=True) if at < now
    )


def sample_gpus(job: Job, now: float) -> tuple[GpuUse, ...]:
    """Return the samples that have arrived, a mean of each minute."""
    minutes = int(max(0.0, now - SAMPLE_LATE_S) // MINUTE)
    kept = range(max(0, minutes - 240), minutes)
    starts = [at for at, _ in job.use]
    rows = [job.use[max(0, bisect_right(starts, (minute + 0.5) * MINUTE) - 1)][1] for minute in kept]
    return tuple(
        GpuUse(
            attempt=KEY,
            node=f"n{gpu // 8}",
            gpu=gpu % 8,
            began=kept.start * MINUTE,
            interval_s=MINUTE,
            use_pct=tuple(row[gpu][0] for row in rows),
            mem_mib=(),
            processes=tuple(row[gpu][1] for row in rows),
        )
        for gpu in range(job.gpus)
    )


@dataclass
class Row:
    """The jobs of one kind, and what was found about them."""

    name: str
    bad: bool
    jobs: int = 0
    right: int = 0  # jobs about which the right finding was made
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: int = 0  # findings that are not true
    late_s: list[float] = field(default_factory=list)


def run_all(seed: int, share: float = 1.0) -> Iterator[tuple[Row, list[str]]]:
    """Yield each row with a line for each wrong, missing or late finding. `share`: of the jobs of each kind."""
    for bad, kinds in ((False, GOOD), (True, BAD)):
        for name, (make, number) in kinds.items():
            row, lines = Row(name, bad), []
            for index in range(max(1, round(number * share))):
                job = make(make_job(Random(f"{seed} {name} {index}")))
                found = replay(job)
                row.jobs += 1
                row.kinds.update(found.keys())
                early = {kind for kind, made in found.items() if kind in job.truth and made.at < job.bad_at - 1800}
                wrong = {kind for kind in found if kind not in job.truth} | early
                row.wrong += len(wrong)
                lines += [f"{name} {index}: {found[kind].sign.words} at {found[kind].at:.0f}" for kind in wrong]
                if right := [found[kind] for kind in job.truth if kind in found]:
                    row.right += 1
                    row.late_s.append(right[0].at - job.bad_at)
                    if row.late_s[-1] > LATE_S:
                        lines.append(f"{name} {index}: {row.late_s[-1]:.0f} s late")
                elif bad:
                    lines.append(f"{name} {index}: missing")
            yield row, lines


@dataclass(frozen=True)
class Totals:
    """The figures of all jobs."""

    good: int
    bad: int
    findings: int
    precision: float
    recall: float
    in_time: float  # share of the right findings that came within LATE_S of the rule's own waiting time
    median_late_s: float
    most_late_s: float


def sum_up(rows: Iterable[Row]) -> Totals:
    """Return the totals of these rows."""
    rows = tuple(rows)
    findings = sum(sum(row.kinds.values()) for row in rows)
    counted = [row for row in rows if row.bad]
    late = [one for row in rows for one in row.late_s]
    return Totals(
        good=sum(row.jobs for row in rows if not row.bad),
        bad=sum(row.jobs for row in rows if row.bad),
        findings=findings,
        precision=1 - sum(row.wrong for row in rows) / max(1, findings),
        recall=sum(row.right for row in counted) / max(1, sum(row.jobs for row in counted)),
        in_time=sum(one <= LATE_S for one in late) / max(1, len(late)),
        median_late_s=median(late) if late else 0.0,
        most_late_s=max(late, default=0.0),
    )


def main() -> int:
    """Print the figures; exit code 1 if they miss the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows, notes = [], []
    for row, lines in run_all(asked.seed):
        rows.append(row)
        notes += lines
    total = sum_up(rows)
    if asked.json:
        print(json.dumps({"seed": asked.seed, **vars(total)}))
    else:
        for row in rows:
            kinds = ", ".join(f"{kind} {count}" for kind, count in row.kinds.items()) or "-"
            late = f"{median(row.late_s):6.0f} s" if row.late_s else ""
            print(f"{'bad ' if row.bad else 'good'} {row.name:28} {row.jobs:4} jobs  {late:9} {kinds}")
        print(
            f"\n{total.good} good and {total.bad} bad jobs, {total.findings} findings: "
            f"precision {total.precision:.3f}, "
            f"recall {total.recall:.3f}; {total.in_time:.3f} within {LATE_S:.0f} s of the rule's own waiting time "
            f"(median {total.median_late_s:.0f} s, most {total.most_late_s:.0f} s)"
        )
    if asked.verbose:
        print("\n".join(notes))
    return 0 if total.precision >= PRECISION and total.in_time >= PRECISION else 1


if __name__ == "__main__":
    sys.exit(main())
