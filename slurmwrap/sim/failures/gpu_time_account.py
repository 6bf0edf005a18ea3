"""Account: where one world's GPU time went, and how many jobs met what. Seconds of GPU time; counts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class GpuTimeAccount:
    """Filled while a world is played."""

    productive: float = 0.0  # of runs that ended well, and of earlier ones that they went on from
    killed: float = 0.0  # of runs that their users ended
    wasted: float = 0.0
    again: float = 0.0  # of `wasted` and `false_stopped`: of runs that were no job's first
    trials: float = 0.0
    false_stopped: float = 0.0
    completed: int = 0
    runs: int = 0
    failed_runs: int = 0
    stopped_by_trial: int = 0
    refused: int = 0
    spared: int = 0
    replaced: int = 0  # runs of a dump that ended well, in whose place a retry had ended well before
    waited_in_vain_s: float = 0.0  # that jobs stopped by their pre-run really waited in the queue, all together
    false_stops: int = 0
    budget_stops: int = 0  # of these, those whose log was read aright: a budget was spent
    given_up: int = 0
    unsuccessful: int = 0  # jobs that failed for good, or were stopped, or refused
    unsuccessful_gpu_s: float = 0.0
    node_failures: int = 0
    cured: int = 0
    cured_after_s: float = 0.0  # all of them together
    excluded_days: float = 0.0
    excluded_lemon_days: float = 0.0
    told_after_s: list[float] = field(default_factory=list)  # from submission to the last word, of the unsuccessful
    cured_by: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by the cause of the first failure
    cost_by_day: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # of submission
    by_category: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    struck: dict[str, int] = field(
        default_factory=lambda: defaultdict(int)
    )  # jobs, by the cause of their first failure

    @property
    def cost(self) -> float:
        """All GPU time that no job's result came out of, but for what users ended themselves."""
        return self.wasted + self.trials + self.false_stopped
