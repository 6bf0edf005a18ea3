"""The table of expected run times that the site publishes for gsub: one line for each group of jobs. Pure.

gsub finds the line of the most specific group that it knows by a digest, without reading the others. So a reader must
know the user, the key and the options to find a line about a job, as for profiles (job_key.derive_published_key). But
who knows that a user runs jobs with 8 GPUs can find these users' run times. So a site that hides jobs from other users
publishes none (reconcile/publish_run_times.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slurmwrap.digest import sha256_hex
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.run_time import (
    QUANTILE_LEVELS,
    SOURCES,
    RunTimeEstimate,
    RunTimeQuery,
    scale_estimate,
)
from slurmwrap.profiling.job_key import is_count_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_DIGITS = 16
# Stands for any value of a count in a job's length options.
_ANY = "*"
_NEARLY_ONE = 1 + 1e-9


def list_published_groups(cluster: str, job: RunTimeQuery) -> Iterator[tuple[str, float, RunTimeQuery]]:
    """Yield the groups of a job, most specific first: digest, count, and what is known of a job of the group.

    The count is that of the job in a group of jobs that differ in one count; in other groups it is 0.
    """
    if job.key:
        yield _digest(cluster, "job", job.user, job.key, job.variant, *_flatten(job.length)), 0.0, job
        for place, (name, value) in enumerate(job.length):
            if is_count_name(name) and (count := _parse_count(value)):
                before, after = job.length[:place], job.length[place + 1 :]
                digest = _digest(
                    cluster, "job", job.user, job.key, job.variant, *_flatten((*before, (name, _ANY), *after))
                )
                # A count that no run has, so that all runs count alike, scaled to it.
                scaled = replace(job, length=(*before, (name, repr(count * _NEARLY_ONE)), *after))
                yield digest, count, scaled
        yield _digest(cluster, "key", job.user, job.key), 0.0, replace(job, variant=_ANY, length=())
    of_user = replace(job, key="", variant="", length=())
    of_account = replace(of_user, user="")
    groups = (("user", job.user, of_user), ("account", job.account, of_account))
    for kind, name, known in (*groups, ("partition", job.partition, replace(of_account, account=""))):
        if name:
            yield _digest(cluster, kind, name, str(job.gpus)), 0.0, known


def format_line(digest: str, estimate: RunTimeEstimate, count: float) -> str:
    """Return the line of one group. `count`: as in list_published_groups(); the estimate holds for it."""
    times = " ".join(f"{time:.0f}" for time in estimate.quantiles_s)
    return f"{digest} {SOURCES.index(estimate.source)} {estimate.n} {count:g} {times}"


def join_lines(lines: Iterable[str]) -> str:
    """Return the table. Its lines are sorted by digest, and ";" ends them, since JSON would escape a line feed."""
    return "".join(f"{line};" for line in sorted(lines))


def find_published_run_time(table: str, cluster: str, job: RunTimeQuery) -> RunTimeEstimate | None:
    """Return the expected run time of a job by the published table; None if no line is about it."""
    for digest, count, _ in list_published_groups(cluster, job):
        if line := _find_line(table, digest):
            return _parse_line(line.split(" "), count)
    return None


def _find_line(table: str, digest: str) -> str:
    """Return the line that begins with `digest`; "" if there is none. This is a binary search over the text."""
    low, high = 0, len(table)
    while low < high:
        # Lines that begin in [low, high) are left; take the one that contains the middle.
        start = table.rfind(";", low, (low + high) // 2) + 1 or low
        end = table.find(";", start)
        if end < 0:
            return ""
        found = table[start : start + _DIGITS]
        if found == digest:
            return table[start:end]
        low, high = (end + 1, high) if found < digest else (low, start)
    return ""


def _parse_line(words: Sequence[str], count: float) -> RunTimeEstimate | None:
    try:
        source, runs, base, *times = map(float, words[1:])
        found = RunTimeEstimate(quantiles_s=tuple(times), source=SOURCES[int(source)], n=int(runs))
        if len(times) != len(QUANTILE_LEVELS) or not all(time > 0 for time in times):
            return None
        return scale_estimate(found, count / base) if count else found
    except (ValueError, IndexError, ZeroDivisionError, OverflowError):
        return None


def _flatten(length: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for name, value in length:
        yield f"{name}={value}"


def _parse_count(value: str) -> float:
    """Return a count as a number; 0 if it is none."""
    try:
        return float(value) if float(value) < float("inf") else 0.0
    except ValueError:
        return 0.0


def _digest(*parts: str) -> str:
    return sha256_hex("\0".join(parts).encode("utf-8", "surrogateescape"))[:_DIGITS]
