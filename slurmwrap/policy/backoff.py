"""When the next run may start: back-off with jitter, and the brake over all jobs. Pure.

The jitter comes out of the job's own key: a reconciler that was killed decides the same again, and a hundred jobs that
failed in the same second do not come back in the same second.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from hashlib import sha256

HOUR_S = 3600.0
JITTER = 0.25  # of the wait, at most


def compute_backoff_s(base_s: int, spent: int, seed: str = "") -> int:
    """Seconds before the next run: doubled with each failure of the same root cause, an hour at most, then up to a
    quarter more by `seed`."""
    wait = min(HOUR_S, base_s * 2 ** min(spent, 10))
    return int(wait * (1 + JITTER * compute_spread(seed)))


def compute_spread(seed: str) -> float:
    """0 <= x < 1, always the same of one seed; 0 of none."""
    if not seed:
        return 0.0
    return int.from_bytes(sha256(seed.encode("utf-8", "surrogatepass")).digest()[:4], "big") / 2**32


def find_next_start(starts: Iterable[float], earliest: float, per_hour: int) -> float:
    """The first moment from `earliest` on at which one more start leaves no hour with more than `per_hour` of them.

    `starts`: Unix seconds of the other retries, past and to come. `per_hour` 0: no brake.
    """
    if per_hour <= 0:
        return earliest
    known = sorted(starts)
    later = sorted(start + HOUR_S for start in known if start + HOUR_S > earliest)
    return next(at for at in (earliest, *later) if _is_within_rate(known, at, per_hour))


def _is_within_rate(known: Sequence[float], at: float, per_hour: int) -> bool:
    hour = HOUR_S - 0.001  # sums of seconds as floats are not exact
    if bisect_right(known, at) - bisect_right(known, at - hour) >= per_hour:
        return False  # at once, for most of the moments of a long queue
    near = known[bisect_right(known, at - hour) : bisect_left(known, at + hour)]
    together = sorted((*near, at))
    return all(last - first >= hour for first, last in zip(together, together[per_hour:], strict=False))
