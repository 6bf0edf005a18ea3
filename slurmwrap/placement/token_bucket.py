"""Limit how many changes of pending jobs may be made: a token bucket. Pure; a caller never sleeps until it fills."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The number of `tokens` (updates that may be made) at `at` (Unix seconds).

    It holds the tokens of one second, so no burst is larger than that.
    """

    tokens: float
    at: float


def fill_bucket(bucket: Bucket | None, now: float, per_s: float) -> Bucket:
    """Return the bucket as it is now; a new one is full. A clock that was set back adds nothing."""
    most = max(1.0, per_s)
    if bucket is None:
        return Bucket(tokens=most, at=now)
    gained = max(0.0, now - bucket.at) * per_s
    return Bucket(tokens=min(most, bucket.tokens + gained), at=now)


def take(bucket: Bucket, count: int, per_s: float) -> Bucket | None:
    """Return the bucket without `count` tokens, or None if it must fill first.

    A count above the bucket's size is allowed when the bucket is full and leaves it negative, so the mean rate still
    holds.
    """
    needed = min(float(count), max(1.0, per_s))
    return Bucket(tokens=bucket.tokens - count, at=bucket.at) if bucket.tokens >= needed - 1e-9 else None
