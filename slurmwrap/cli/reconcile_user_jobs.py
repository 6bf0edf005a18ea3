"""Run one pass of a user's own reconciler before a command reports on their jobs, so that ended jobs are known.

Where a site's reconciler works, its records are used instead: it knows more, and only it acts on jobs.
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

# The pass is stopped after this many seconds; the next pass continues.
BOUND_S = 15.0
# Timeout of one Slurm command, in seconds: stored records are shown without waiting longer for a missing controller.
SLURM_S = 4.0
SHOWN_AFTER_S = 1
_TRIES, _PAUSE_S = 5, 0.2
# The site's reconciler publishes at least every five minutes.
FRESH_S = 420.0


class _TimeLimitExceeded(BaseException):
    """The pass took too long. Not an Exception, because a pass continues after an Exception of a single job."""


def reconcile_own_jobs_first(source: RecordSource, config: Config, *, although_site: bool = False) -> str:
    """Ingest and diagnose what ended since the last pass; return what could not be looked up, "" if everything was.

    `although_site`: also run where the site's reconciler works, which may be some seconds behind; it then takes no
    action.
    """
    # The command that reads a damaged database reports it.
    if source.site or _is_damaged(source):
        return ""
    site_works = source.published is not None and _is_site_recent(source)
    if site_works and not although_site:
        return ""
    try:
        with _limit_time():
            return _run_pass(source, config if source.published is None else _without_actions(config))
    except _TimeLimitExceeded:
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


def _is_site_recent(source: RecordSource) -> bool:
    assert source.published is not None
    with suppress(OSError):
        path = source.published if source.published.name == FILE else source.published / FILE
        return abs(time.time() - path.stat().st_mtime) < FRESH_S
    return False


def _without_actions(config: Config) -> Config:
    """Return the configuration with every rule set to `observe`: diagnose, and leave all actions to the site."""
    return replace(config, rules=dict.fromkeys(RULES, "observe"))


def _run_pass(source: RecordSource, config: Config) -> str:
    from slurmwrap.console import Console
    from slurmwrap.host.lock import hold_exclusive_lock
    from slurmwrap.reconcile import reconcile_once
    from slurmwrap.reconcile.wire_adapters import make_user_services
    from slurmwrap.slurm.commands import SlurmCommands
    from slurmwrap.store.database import Database

    config = replace(config, slurm_timeout_s=min(SLURM_S, config.slurm_timeout_s))
    slurm, console = SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s), Console.of_terminal("slurmwrap")
    # Raises SlurmError before anything is created in the user's home.
    slurm.cluster_name()
    with ExitStack() as stack:
        for tries in range(_TRIES):
            try:
                stack.enter_context(hold_exclusive_lock(source.database.with_suffix(".lock"), "another reconciler"))
                break
            except StoreError as error:
                # A gsub call holds the lock for a moment, `reconcile --watch` holds it permanently.
                if tries + 1 == _TRIES:
                    return f"{error}; what was found so far is shown"
                time.sleep(_PAUSE_S)
        store = stack.enter_context(Database.open(source.database))
        summary = reconcile_once(make_user_services(config, slurm, store, console.say, source.database.parent))
    return f"not all was looked up: {summary.errors[0]}" if summary.errors else ""


@contextmanager
def _limit_time() -> Iterator[None]:
    """Raise _TimeLimitExceeded after BOUND_S; show a line on a terminal meanwhile. Main thread only (signals)."""
    began, shown = time.monotonic(), sys.stderr.isatty()

    def on_alarm(number: int, frame: FrameType | None) -> None:
        if shown:
            sys.stderr.write("\r\033[Kslurmwrap: asking Slurm how your jobs ended ...")
            sys.stderr.flush()
        if time.monotonic() - began >= BOUND_S:
            raise _TimeLimitExceeded

    try:
        before = signal.signal(signal.SIGALRM, on_alarm)
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
