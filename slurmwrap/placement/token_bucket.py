"""How many changes of waiting jobs may be made now: a token bucket. Pure; a pass is never slept through."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """`tokens` updates may be made at `at` (Unix seconds). It holds one second's worth: no burst is worse than that."""

    tokens: float
    at: float


def fill_bucket(bucket: Bucket | None, now: float, per_s: float) -> Bucket:
    """The bucket as it is now; a new one is full. A clock that was put back fills nothing."""
    most = max(1.0, per_s)
    if bucket is None:
        return Bucket(tokens=most, at=now)
    gained = max(0.0, now - bucket.at) * per_s
    return Bucket(tokens=min(most, bucket.tokens + gained), at=now)


def take(bucket: Bucket, count: int, per_s: float) -> Bucket | None:
    """The bucket without `count` tokens, or None where it must fill first.

    What is greater than the bucket is done when it is full, and owed: the mean rate holds all the same.
    """
    needed = min(float(count), max(1.0, per_s))
    return Bucket(tokens=bucket.tokens - count, at=bucket.at) if bucket.tokens >= needed - 1e-9 else None
