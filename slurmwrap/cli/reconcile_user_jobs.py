"""Asks Slurm how a user's jobs ended before anything is said of them: one pass of their own reconciler.

Where a site's reconciler is at work its word is taken instead: it knows more, and it alone acts then.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

from slurmwrap.cli.record_access import RecordSource
from slurmwrap.config.load_config import RULES, Config
from slurmwrap.errors import SlurmError, SlurmwrapError, StoreError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.store.published_files import FILE

# The pass is given up then; the next one goes on.
BOUND_S = 15.0
# For one command of Slurm's: what is stored shall not wait longer for a controller that is away.
SLURM_S = 4.0
SHOWN_AFTER_S = 1
_TRIES, _PAUSE_S = 5, 0.2
# The site's reconciler publishes every five minutes at least.
FRESH_S = 420.0


class _TooLong(BaseException):
    """Not an Exception: a pass goes on after those of single jobs."""


def look_first(source: RecordSource, config: Config, *, although_site: bool = False) -> str:
    """Takes in what ended since the last look; returns what could not be looked at, "" when all was.

    `although_site`: also where the site's reconciler is at work, without acting: it may be some seconds behind.
    """
    # Anyone who reads a damaged one says so.
    if source.site or _is_damaged(source):
        return ""
    site_works = source.published is not None and _is_fresh(source)
    if site_works and not although_site:
        return ""
    try:
        with _limit_time():
            return _run_pass(source, config if source.published is None else _only_looking(config))
    except _TooLong:
        return f"Slurm did not give all answers within {BOUND_S:.0f} s: what is stored is shown"
    except SlurmError as error:
        return f"Slurm could not be asked ({error}): what is stored is shown, and what ended since is missing"
    except (SlurmwrapError, OSError, KeyError) as error:
        return f"how your jobs ended could not be looked up ({error}): what is stored is shown"


def _is_damaged(source: RecordSource) -> bool:
    from slurmwrap.store.database import Database

    try:
        if source.database.exists():
            Database.open(source.database, readonly=True).close()
    except StoreError:
        return True
    return False


def _is_fresh(source: RecordSource) -> bool:
    assert source.published is not None
    with suppress(OSError):
        path = source.published if source.published.name == FILE else source.published / FILE
        return abs(time.time() - path.stat().st_mtime) < FRESH_S
    return False


def _only_looking(config: Config) -> Config:
    """Judges, and leaves all actions to the site."""
    return replace(config, rules=dict.fromkeys(RULES, "observe"))


def _run_pass(source: RecordSource, config: Config) -> str:
    from slurmwrap.console import Console
    from slurmwrap.host.lock import hold_exclusive_lock
    from slurmwrap.reconcile import reconcile_once
    from slurmwrap.reconcile.wire_adapters import user_edges
    from slurmwrap.slurm.commands import SlurmCommands
    from slurmwrap.store.database import Database

    config = replace(config, slurm_timeout_s=min(SLURM_S, config.slurm_timeout_s))
    slurm, console = SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s), Console.of_terminal("slurmwrap")
    # SlurmError before anything is made in the user's home.
    slurm.cluster_name()
    with ExitStack() as stack:
        for tries in range(_TRIES):
            try:
                stack.enter_context(hold_exclusive_lock(source.database.with_suffix(".lock"), "another reconciler"))
                break
            except StoreError as error:
                # A gsub call has it for a moment, `reconcile --watch` for ever.
                if tries + 1 == _TRIES:
                    return f"{error}; what was found so far is shown"
                time.sleep(_PAUSE_S)
        store = stack.enter_context(Database.open(source.database))
        summary = reconcile_once(user_edges(config, slurm, store, console.say, source.database.parent))
    return f"not all was looked up: {summary.errors[0]}" if summary.errors else ""


@contextmanager
def _limit_time() -> Iterator[None]:
    """_TooLong after BOUND_S; a line on a terminal while it takes. Only in the main thread, where signals arrive."""
    began, shown = time.monotonic(), sys.stderr.isatty()

    def ring(number: int, frame: FrameType | None) -> None:
        if shown:
            sys.stderr.write("\r\033[Kslurmwrap: asking Slurm how your jobs ended ...")
            sys.stderr.flush()
        if time.monotonic() - began >= BOUND_S:
            raise _TooLong

    try:
        before = signal.signal(signal.SIGALRM, ring)
    except ValueError:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, SHOWN_AFTER_S, SHOWN_AFTER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
