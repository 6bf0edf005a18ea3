"""The same loads under both conditions: where leases end, and on a Slurm that takes nothing back from running jobs."""

from __future__ import annotations

from evaluation.commands import Bench, Command
from evaluation.synergy import PROFILES
from evaluation.tables import HOUR, block, number, table
from evaluation.tiresias import PHILLY480

TUNING = (
    Command(("tests/data/traces/synergy_static100.csv", *PROFILES, "--mode", "rounds,slurm", "--policy", "fifo",
             "--mechanism", "proportional,graded")),
    Command(("tests/data/traces/synergy_dynamic100.csv", *PROFILES, "--mode", "rounds,slurm", "--policy", "fifo,srtf",
             "--mechanism", "proportional,graded")),
)  # fmt: skip
PLACEMENT = (
    Command((*PHILLY480, "--mode", "rounds", "--policy", "fifo,srsf", "--placement", "any,consolidate,skew")),
    Command((*PHILLY480, "--mode", "slurm", "--policy", "fifo,srsf", "--placement", "any,consolidate,skew")),
)


def commands() -> list[Command]:
    return [*TUNING, *PLACEMENT]


def page(bench: Bench) -> str:
    """Return the table, in hours. Each ratio is to the first run of the same trace, conditions and policy."""
    return "\n".join(
        [
            "**CPUs and memory: plain requests and `graded`**", "", _table(bench, TUNING), "", block(*TUNING), "",
            "**Locality: any GPUs, consolidated, or by skew**", "", _table(bench, PLACEMENT), "", block(*PLACEMENT),
        ]
    )  # fmt: skip


def _table(bench: Bench, wanted: tuple[Command, ...]) -> str:
    head = ["trace", "world", "policy", "mechanism", "placement", ">makespan h", ">mean JCT h", ">p99 h", ">queued h",
            ">GPUs %", ">servers per multi-GPU job", ">mean JCT: times shorter"]  # fmt: skip
    rows, first = [], dict[tuple[str, str, str], float]()
    for run in (run for command in wanted for run in bench.runs(command)):
        key = (run["trace"], run["mode"], run["policy"])
        base = first.setdefault(key, run["mean_jct_s"])
        rows.append(
            [
                run["trace"].rpartition("/")[2],
                run["mode"],
                run["policy"],
                run["mechanism"],
                run["placement"],
                *(number(run[name] / HOUR) for name in ("makespan_s", "mean_jct_s", "p99_jct_s", "mean_queueing_s")),
                number(100 * run["gpu_utilisation"], 1),
                number(run["servers_per_multi_gpu_job"]),
                number(base / run["mean_jct_s"], 3),
            ]
        )
    return table(head, rows)
