"""The synthetic site: nodes, users, accounts, and every rate that is not in table 7. Records and pure functions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from math import exp, log
from statistics import NormalDist

from slurmwrap.sim.failures import published_rates as rates

GPUS_PER_NODE, LEAF_NODES, NODE_CPUS, NODE_MEM_MIB = 8, 32, 128, 1_024_000
CLUSTER = "ada"
FIRST_UID = 20_001


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates of the site. Shares are 0..1. `assumed`: no one has published the value."""

    # GPU demand: Synergy's mix for Philly's loads (70/10/15/5 for 1/2/4/8), and large jobs on top (assumed).
    demand: tuple[tuple[int, float], ...] = (
        *((1, 0.69), (2, 0.10), (4, 0.14), (8, 0.05)),
        *((16, 0.012), (32, 0.005), (64, 0.002), (128, 0.001)),
    )
    gsub: float = 0.5  # assumed: jobs that come by gsub; the others by sbatch
    retry: float = 0.5  # assumed: of gsub's jobs, those with --retry
    holdout: float = 0.05  # prerun.holdout
    passed_before: float = 0.5  # assumed: gsub's jobs whose fingerprint passed already
    own_prerun: float = 0.5  # assumed: one-GPU jobs that can start at once and so are their own pre-run
    inconclusive: float = 0.06  # assumed: of pre-runs that do not fail
    false_fail: float = 0.002  # assumed, so that the report has some to show
    forced_after_fail: float = 0.3  # assumed: users who submit the same job again with --force
    misses_company: float = 0.2  # sim/failures: failures that do not occur with one rank
    sees: float = rates.compute_seen_share()  # docs/prerun-reference.md
    array: float = 0.15  # assumed: jobs that are array tasks
    counts_steps: float = 0.3  # assumed: of gsub's jobs, with --count-steps
    idle: float = 0.03  # assumed: jobs whose GPUs idle (half of them without a process)
    gpu_util: float = 0.52  # Philly: mean of all GPUs in use
    timeout: float = 0.01  # assumed: jobs that run into their limit
    node_failures_per_day: float = rates.NODE_FAILURES_PER_DAY
    lemon_share: float = rates.LEMON_SHARE[0]
    lemons_cause: float = rates.LEMONS_CAUSE
    incidents_per_week: float = 1.0  # assumed
    same_input: float = 0.25  # sim/failures: the next corrupt input is the same file
    # assumed: runs that end well are log-normal, up to `run_most_s`; so that failed ones hold about a fifth and killed
    # ones two fifths of all GPU time (Philly: 17.8 and 37.7 %), whose run times are the table's
    run_median_s: float = 1800.0
    run_sigma: float = 2.8
    run_most_s: float = 14 * 86_400.0
    busy: float = 0.7  # assumed: share of the GPUs that are held, which sizes the fleet
    weekend: float = 0.45  # assumed: jobs on a day of the weekend, as a share of a working day's


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    name: str
    uid: int
    account: str
    scripts: tuple[tuple[str, str, str], ...]  # job name, path, digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    nodes: tuple[str, ...]
    lemons: tuple[str, ...]
    users: tuple[User, ...]
    user_sums: tuple[float, ...]  # cumulative weights: Zipf
    rates: Rates = field(default_factory=Rates)

    def user(self, share: float) -> User:
        """Return the user at `share` (0..1) of all jobs."""
        from bisect import bisect_right

        return self.users[min(len(self.users) - 1, bisect_right(self.user_sums, share * self.user_sums[-1]))]

    def some_nodes(self, count: int, draw: random.Random) -> tuple[str, ...]:
        """Draw nodes: neighbours below one switch for most jobs that fit there, scattered nodes for the others."""
        count = min(count, len(self.nodes))
        if count == 1:
            return (self.nodes[int(draw.random() * len(self.nodes))],)
        if count <= LEAF_NODES and draw.random() < 0.7:
            leaf = int(draw.random() * len(self.nodes)) // LEAF_NODES * LEAF_NODES
            below = self.nodes[leaf : leaf + LEAF_NODES]
            if len(below) >= count:
                at = draw.randrange(len(below) - count + 1)
                return below[at : at + count]
        return tuple(sorted(draw.sample(self.nodes, count)))


_MODELS = ("resnet50", "vit", "gpt2", "llama", "bert", "whisper", "unet", "dlrm", "t5", "clip", "yolo", "mamba")
_STEMS = ("train", "finetune", "sweep", "eval", "pretrain", "ablate")


def site_of(jobs_per_day: int, seed: int, rates_: Rates | None = None) -> Site:
    """Return a site that is as large as its jobs need: about a share `busy` of its GPU hours is allocated."""
    chosen = rates_ or Rates()
    draw = random.Random(f"site {seed}")
    mean_gpus = sum(gpus * share for gpus, share in chosen.demand)
    held = jobs_per_day * mean_gpus * _mean_s(chosen) * 1.2 / 86_400  # 1.2, because failed and killed runs are longer
    count = max(16, round(held / chosen.busy / GPUS_PER_NODE))
    nodes = tuple(f"gpu{number:04d}" for number in range(1, count + 1))
    people = min(400, max(8, round(jobs_per_day / 25)))
    accounts = tuple(f"lab-{name}" for name in _ACCOUNTS[: max(3, min(len(_ACCOUNTS), people // 12))])
    users = tuple(_user(number, accounts, draw) for number in range(people))
    return Site(
        nodes=nodes,
        lemons=tuple(draw.sample(nodes, max(1, round(count * chosen.lemon_share)))),
        users=users,
        user_sums=tuple(accumulate(1 / (rank + 1) ** 1.1 for rank in range(people))),
        rates=chosen,
    )


def _mean_s(rates_: Rates) -> float:
    """Return the mean of min(X, most) for a log-normal X."""
    middle, spread, most = log(rates_.run_median_s), rates_.run_sigma, log(rates_.run_most_s)
    below = NormalDist().cdf
    inside = exp(middle + spread**2 / 2) * below((most - middle - spread**2) / spread)
    return inside + rates_.run_most_s * (1 - below((most - middle) / spread))


_ACCOUNTS = (
    *("vision", "speech", "nlp", "robotics", "bio", "climate", "physics", "chem", "neuro", "security", "graphics"),
    *("theory", "systems", "medical", "astro", "econ", "games", "data", "audio", "maps", "infra", "teaching"),
)


def _user(number: int, accounts: tuple[str, ...], draw: random.Random) -> User:
    name = f"user{number + 1:03d}"
    weights = [1 / (rank + 1) for rank in range(len(accounts))]
    scripts = []
    for at in range(draw.randint(2, 8)):
        title = f"{draw.choice(_STEMS)}-{draw.choice(_MODELS)}"
        path = f"/home/{name}/projects/{title}/{at}/train.sbatch"
        scripts.append((title, path, sha256(path.encode()).hexdigest()))
    account = draw.choices(accounts, weights)[0]
    return User(name=name, uid=FIRST_UID + number, account=account, scripts=tuple(scripts))
