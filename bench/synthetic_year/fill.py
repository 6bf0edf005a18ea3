"""Fill a database a few days at a time: draw the calls, write what they leave, and prune old data, as a site does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from slurmwrap.config.load_config import Retention
from slurmwrap.store.retention import compute_cutoffs, prune, rewrite
from synthetic_year.calls import DAY_S, Caller
from synthetic_year.sink import Sink
from synthetic_year.site import Rates, site_of
from synthetic_year.told import Teller

_STRIDE_D = 7


def fill(
    path: Path,
    *,
    days: int,
    jobs_per_day: int,
    seed: int = 1,
    until: float = 1_795_000_000.0,
    rates: Rates | None = None,
    retention: Retention | None = None,
    observed_d: float = 7.0,
    pruned: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Mapping[str, int]:
    """Create the file `path`, which must not exist, with the history of the `days` before `until`.

    Return the number of rows written to each table. Old data are pruned as by `slurmwrap db prune`; data that pruning
    would remove at once are not generated, and observations only for the last `observed_d` days.
    """
    kept = retention or Retention()
    site = site_of(jobs_per_day, seed, rates)
    sink = Sink(path)
    caller = Caller(site, jobs_per_day, seed)
    teller = Teller(site, caller, sink, seed, until=until)
    over = compute_cutoffs(kept if pruned else Retention(detail_d=days, keep_d=days), until)
    teller.leave_out(before=over["detail"] - DAY_S, observations=over["settled"] - observed_d * DAY_S)
    began = until - days * DAY_S
    day = began
    while day < until:
        end = min(until, day + _STRIDE_D * DAY_S)
        teller.tell(caller.between(day, end), day, end)
        sink.flush()
        if pruned:
            prune(path, kept, end)
        say(f"day {round((end - began) / DAY_S)} of {days}: {sink.counts['attempts']:,} runs")
        day = end
    sink.close()
    if pruned:
        rewrite(path, until)  # as the reconciler does once a week
    return dict(sink.counts)
