"""Record in site.published which host runs the site's reconciler, so that a second host refuses to run another one.

The lock of the database (host/lock.py) excludes a second process on one host. Two hosts with a database each, as two
controllers may have, share only the published directory and the spool. A record is valid for VALID_S after the last
pass; a service that ends removes it, so that another host can take over at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slurmwrap.errors import StoreError
from slurmwrap.policy.time_limit import HEARTBEAT_LATE_S
from slurmwrap.store.atomic_write import replace_file
from slurmwrap.store.published_files import read_trusted

FILE = "reconciler.json"
# Seconds without a pass after which a reconciler counts as ended.
VALID_S = HEARTBEAT_LATE_S


def read_reconciler_host(directory: Path, trusted_uids: Collection[int]) -> tuple[str, float]:
    """Return (host, Unix seconds of its last pass) of the site's reconciler; ("", 0.0) when none is recorded."""
    content = read_trusted(str(directory), FILE, trusted_uids)
    try:
        plain = json.loads(content) if content else {}
        return str(plain["host"]), float(plain["at"])
    except (ValueError, TypeError, KeyError):
        return "", 0.0


@contextmanager
def hold_reconciler_host(
    directory: Path, host: str, trusted_uids: Collection[int], now: Callable[[], float]
) -> Iterator[Callable[[], None]]:
    """Record that `host` runs the reconciler; yield a function that renews the record, to be called after each pass.

    Raise StoreError, now or at a renewal, when another host did within VALID_S. Without the directory nothing is
    recorded. `now()`: Unix seconds.
    """

    def renew() -> None:
        other, at = read_reconciler_host(directory, trusted_uids)
        if other not in ("", host) and abs(now() - at) < VALID_S:
            raise StoreError(
                f"the reconciler of this site runs on {other} (last pass {now() - at:.0f} s ago)",
                hint=f"Two would each read half of the observations. Stop it on {other} first; if that host is down, "
                f"wait {VALID_S / 60:.0f} minutes or remove {directory / FILE}.",
            )
        with suppress(OSError):  # as for the heartbeat: what cannot be written must not stop the reconciler
            replace_file(directory / FILE, json.dumps({"version": 1, "host": host, "at": now()}), 0o644)

    if directory.is_dir():
        renew()
    try:
        yield renew
    finally:
        if read_reconciler_host(directory, trusted_uids)[0] == host:
            with suppress(OSError):
                (directory / FILE).unlink()
