"""Published rates of failures, as data: Philly's whole table 7, Kokolis et al.'s node figures, slurmwrap's own measured
ones.

Philly: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019,
table 7: 96,260 jobs of 75 days. The table was reproduced from notes and checked by its own sums: the columns of the GPU
demands add up to the trials in all 22 rows, the shares to 100 %. Second-hand, without a second source: all run times to
failure but 18,090.88 min, and the split by GPU demand. Four buckets are marked `*`, because notes disagree.

Nodes: Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025 (arXiv
2410.21680), second-hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb
from types import MappingProxyType

from slurmwrap.diagnosis.taxonomy import CATEGORIES

MINUTE_S = 60.0
# Philly, all jobs: their number, and how they ended (shares of jobs, shares of GPU time).
JOBS = 96_260
UNSUCCESSFUL_JOBS, UNSUCCESSFUL_GPU_TIME = 0.172, 0.1776
KILLED_JOBS, KILLED_GPU_TIME = 0.135, 0.3769
# No run to failure is longer than the trace.
LONGEST_MIN = 75 * 24 * 60.0
# The shortest in the table is 0.12 min.
LEAST_MIN = 0.1
UNSUCCESSFUL_OR_KILLED_JOBS = UNSUCCESSFUL_JOBS + KILLED_JOBS
UNSUCCESSFUL_OR_KILLED_GPU_TIME = UNSUCCESSFUL_GPU_TIME + KILLED_GPU_TIME
# Kokolis et al.: failures per node-day of RSC-1; lemon nodes as a share of all; failures of jobs with 512 and more GPUs
# before and after lemon nodes were removed, which is the share that these had caused.
NODE_FAILURES_PER_DAY = 6.50 / 1000
LEMON_SHARE = (0.012, 0.017)
LEMONS_CAUSE = 1 - 0.04 / 0.14
# Root causes of their lemons, per cent. GPU and PCIe faults appear in the kernel log (Xid); the rest ends as NODE_FAIL.
NODE_CAUSES: Mapping[str, float] = MappingProxyType(
    {"gpu": 28.2, "dimm": 20.5, "pcie": 15.4, "eud": 10.3, "bios": 7.7, "nic": 7.7, "psu": 5.1, "optics": 2.6}
)
GPU_CAUSES = ("gpu", "pcie")
# docs/diagnosis-rounds.md: rounds of unseen logs before anything was fixed on them, (logs, right categories, right
# decisions).
CLASSIFIED = (
    (110, 95, 101), (110, 86, 98), (110, 86, 98), (110, 99, 103), (110, 92, 96), (110, 101, 103),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PrerunRound:
    """One round of unseen training scripts on the lab, before anything was fixed on them (docs/prerun-rounds.md)."""

    sound: int  # jobs without a bug
    failed: int  # of these, those that the pre-run called `fail`
    visible: int  # bugs that one rank meets within three steps
    stopped: int  # of these


PRERUN_ROUNDS = (
    PrerunRound(sound=32, failed=0, visible=58, stopped=54),
    PrerunRound(sound=29, failed=1, visible=58, stopped=55),
    PrerunRound(sound=33, failed=0, visible=66, stopped=61),
)
# Rounds of bugs in code that runs after the third step (docs/prerun-rounds.md, "Late bugs"), at first sight. The sound
# jobs of the second round are those of the first and do not count twice.
LATE_ROUNDS = (
    PrerunRound(sound=94, failed=1, visible=77, stopped=48),
    PrerunRound(sound=0, failed=0, visible=115, stopped=90),
    PrerunRound(sound=36, failed=0, visible=91, stopped=75),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateThreads:
    """Public threads about a Python error after minutes to days of training (tests/data/failures/late_threads.csv)."""

    rehearsed: int  # in code that a rehearsal executes, with the same outcome
    other: int  # known to need the time, the data or the number of steps of the real run
    unclear: int  # stage or cause are not known


# 71 public threads with a semantic, syntax, import or permission error or a traceback, collected on 2026-11-26. They
# were found by questions that name no stage and no cause, and labelled by one reader, who read 30 of all 171 threads a
# second time from notes (26 equal labels). That is no second opinion. No published study was found that splits late
# failures by stage. One share for all five categories: 49 of the 71 are semantic errors, none is a syntax or import
# error, and semantic errors and tracebacks were hard to tell apart.
#
# The first reading, on that day, found 15. Later on that day the 20 in code that is due every N steps or epochs, at a
# certain epoch or at the end of a schedule were read again, with their code. Five changed: four because a rehearsal now
# enters blocks that run every N iterations, one because the first reading was wrong. 15 remain among the `other`. This
# reader knew what the rehearsal does; two of the five ran in a notebook or in Python 2, where nothing is rehearsed.
#
# The share is one of jobs. 12 of the first 15 failed by the beginning of the second epoch, so it is too high for
# failures after many epochs; the five new ones failed after about 100 steps (2), 10 epochs (2) and 25 epochs. For new
# scripts it is rather too low: code that others use has few bugs at the end of an epoch.
LATE_THREADS = LateThreads(rehearsed=20, other=36, unclear=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCause:
    """One row of table 7. Run times to failure in minutes, `share` of all of them in per cent."""

    reason: str  # name in Philly's table
    category: str  # slurmwrap's own (diagnosis/taxonomy.py)
    bucket: str  # IF infrastructure, AE engine, U user; "*": unverified
    trials: int
    jobs: int
    users: int
    p50_min: float
    p90_min: float
    p95_min: float
    share: float
    # Trials of jobs with 1, 2 to 4, more than 4 GPUs.
    by_demand: tuple[int, int, int]

    @property
    def repetition(self) -> float:
        """Mean number of trials of a job with this cause."""
        return self.trials / self.jobs

    @property
    def transient(self) -> bool:
        """Whether another run may help, by the taxonomy."""
        return CATEGORIES[self.category].decision in ("retry", "retry_elsewhere")


def _cause(reason: str, category: str, bucket: str, *numbers: float) -> PublishedCause:
    """Return a row of table 7; `numbers` in the order of the table's columns."""
    trials, jobs, users, p50, p90, p95, share, one, few, many = numbers
    return PublishedCause(
        reason=reason,
        category=category,
        bucket=bucket,
        trials=int(trials),
        jobs=int(jobs),
        users=int(users),
        p50_min=p50,
        p90_min=p90,
        p95_min=p95,
        share=share,
        by_demand=(int(one), int(few), int(many)),
    )


# fmt: off
PHILLY = (
    # reason, our category, bucket, trials, jobs, users, p50, p90, p95 (min), % of run time to failure, 1, 2-4, >4 GPUs
    _cause("CPU out of memory", "cpu_oom", "AE U", 12076, 2803, 65, 13.45, 17.73, 33.97, 6.62, 11465, 235, 376),
    _cause("Incorrect inputs", "incorrect_inputs", "IF U", 9690, 4936, 208, 1.87, 404.83, 2095.73, 30.43, 5844, 2638,
         1208),
    _cause("Semantic error", "semantic_error", "AE U", 2943, 2049, 159, 2.72, 376.00, 1436.88, 9.22, 1603, 494, 846),
    _cause("Core dump", "core_dump", "AE U", 2912, 1784, 122, 0.85, 72.75, 431.65, 3.35, 1936, 496, 480),
    _cause("Invalid mem access", "invalid_memory_access", "U", 2602, 1235, 108, 1.03, 403.50, 1357.38, 3.82, 712, 774,
         1116),
    _cause("Model ckpt error", "checkpoint_error", "IF", 1995, 948, 85, 181.67, 3728.93, 8196.02, 21.73, 743, 384, 868),
    _cause("CUDA failure", "cuda_failure", "AE", 1484, 571, 70, 1.32, 19.87, 82.17, 0.62, 133, 1153, 198),
    _cause("Syntax error", "syntax_error", "AE U", 1132, 883, 110, 0.58, 5.02, 12.00, 0.19, 780, 184, 168),
    _cause("Traceback from crash", "traceback_from_crash", "IF AE U", 777, 271, 44, 1.02, 894.33, 1394.07, 2.34, 356,
         277, 144),
    _cause("MPI error", "mpi_error", "AE/IF*", 634, 166, 28, 1.62, 3015.27, 5143.98, 3.70, 456, 54, 124),
    _cause("GPU out of memory", "gpu_oom", "U/AE*", 487, 261, 35, 18.53, 353.62, 2740.28, 1.08, 237, 70, 180),
    _cause("MPI runtime failure", "mpi_runtime_failure", "IF", 478, 420, 96, 1389.48, 13778.60, 18090.88, 14.63, 240,
         141, 97),
    _cause("Permission error", "permission_error", "U", 299, 151, 37, 1.00, 8.15, 15.85, 0.07, 56, 202, 41),
    _cause("Import error", "import_error", "AE/IF* U", 148, 148, 41, 0.67, 4.58, 10.73, 0.06, 108, 30, 10),
    _cause("Job preempted", "job_preempted", "IF", 147, 95, 34, 559.08, 2682.85, 5892.23, 1.66, 25, 95, 27),
    _cause("CUDA init failed", "cuda_init_failed", "AE/IF*", 141, 69, 20, 1.08, 2.18, 4.63, 0.03, 16, 66, 59),
    _cause("Model diverged", "model_diverged", "U", 84, 30, 5, 1.48, 44.37, 76.53, 0.01, 78, 5, 1),
    _cause("CUDA ver. mismatch", "cuda_version_mismatch", "AE", 49, 49, 19, 0.83, 1.65, 1.67, 0.00, 1, 1, 47),
    _cause("GPU ECC error", "gpu_ecc_error", "IF", 10, 10, 2, 26.82, 671.92, 2035.02, 0.03, 1, 5, 4),
    _cause("Output node error", "semantic_error", "U", 3, 3, 1, 0.85, 0.95, 0.95, 0.00, 3, 0, 0),
    _cause("Cannot load libs", "cannot_load_libs", "AE", 1, 1, 1, 0.12, 0.12, 0.12, 0.00, 1, 0, 0),
    _cause("No signature", "no_signature", "–", 1684, 698, 94, 1.87, 28.00, 95.17, 0.42, 1235, 294, 155),
)
# A job that failed for two reasons counts twice.
FAILING_JOBS = sum(cause.jobs for cause in PHILLY) / JOBS


def get_demand_column(gpus: int) -> int:
    """Return the column of `by_demand` for a job with so many GPUs."""
    return 0 if gpus <= 1 else 1 if gpus <= 4 else 2


def compute_misread_share() -> float:
    """Return the share of logs whose category the classifier got wrong at first sight, all rounds together."""
    return 1 - sum(right for _, right, _ in CLASSIFIED) / sum(count for count, _, _ in CLASSIFIED)


def compute_harmless_share() -> float:
    """Return for which share of these the decision was right nevertheless."""
    count, right, decided = (sum(row[at] for row in CLASSIFIED) for at in range(3))
    return (decided - right) / (count - right)


def compute_late_seen_share() -> float:
    """Return which share of the late bugs that it executes a rehearsal stopped at first sight."""
    return sum(one.stopped for one in LATE_ROUNDS) / sum(one.visible for one in LATE_ROUNDS)


def compute_rehearsed_share() -> float:
    """Return the share of late Python errors whose code a shortened epoch executes, of those with a known stage."""
    return LATE_THREADS.rehearsed / (LATE_THREADS.rehearsed + LATE_THREADS.other)


def compute_rehearsed_interval() -> tuple[float, float]:
    """Return the exact 95 % interval of that share (Clopper and Pearson, Biometrika 1934)."""
    found, other = LATE_THREADS.rehearsed, LATE_THREADS.other
    return 1 - _bound_share(other, found), _bound_share(found, other)


def _bound_share(found: int, other: int) -> float:
    """Return the share at which `found` or fewer of all have a chance of 2.5 %."""
    if other == 0:
        return 1.0
    low, high, count = 0.0, 1.0, found + other
    while high - low > 1e-9:
        share = (low + high) / 2
        chance = sum(comb(count, at) * share**at * (1 - share) ** (count - at) for at in range(found + 1))
        low, high = (share, high) if chance > 0.025 else (low, share)
    return low


def compute_seen_share() -> float:
    """Return which share of the bugs that one rank meets within a trial's steps the pre-run stopped at first sight."""
    return sum(one.stopped for one in PRERUN_ROUNDS) / sum(one.visible for one in PRERUN_ROUNDS)


def compute_false_fail_share() -> float:
    """Return which share of the sound jobs the pre-run stopped at first sight."""
    rounds = (*PRERUN_ROUNDS, *LATE_ROUNDS)
    return sum(one.failed for one in rounds) / sum(one.sound for one in rounds)
