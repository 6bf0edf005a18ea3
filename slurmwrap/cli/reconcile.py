"""`slurmwrap reconcile`: wires the real edges to slurmwrap.reconcile, for the site or for one user."""

from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from shutil import disk_usage
from typing import Annotated

import typer

from slurmwrap.cli.metrics import Round
from slurmwrap.config import load_config as configuration
from slurmwrap.config.load_config import Config
from slurmwrap.console import Console
from slurmwrap.errors import SlurmwrapError, StoreError, UsageError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub.prefetch import make_slurm_commands
from slurmwrap.host.lock import hold_exclusive_lock
from slurmwrap.install.service_watchdog import beat
from slurmwrap.reconcile import PassSummary, Services, event_log, reconcile_once
from slurmwrap.reconcile import watch as watch_slurm
from slurmwrap.reconcile.event_log import Event, EventKind, EventLog
from slurmwrap.reconcile.wire_adapters import site_edges, user_edges
from slurmwrap.slurm.choose_adapter import choose
from slurmwrap.store import retention
from slurmwrap.store.database import Database
from slurmwrap.store.user_state_files import DATABASE

# What the reconciler does between its passes: forgets what is over, and writes the figures for monitoring.
#
# Nothing here may end the reconciler: what goes wrong is said, once until it works again.
PRUNE_EVERY_S = 3600.0
# Of one go: what is left waits for the next.
PRUNE_FOR_S = 5.0
_REWRITE_EVERY_S = 7 * 86_400.0
_NIGHT = range(1, 5)  # hours, local time


class Housekeeping:
    """Between passes. `now` is the clock's, Unix seconds."""

    def __init__(self, database: Path, config: Config, *, site: bool, say: Callable[[str], None]) -> None:
        self._path, self._config, self._site, self._say = database, config, site, say
        self._pruned_at = self._written_at = float("-inf")
        self._said: dict[str, str] = {}

    def after(self, summary: PassSummary, now: float) -> None:
        """One pass has ended."""
        if not 0 <= now - self._pruned_at < PRUNE_EVERY_S:
            self._try("prune", lambda: self._prune(now))
            self._pruned_at = now
        wanted = self._config.metrics.textfile and self._site
        if wanted and not 0 <= now - self._written_at < self._config.metrics.every_s:
            self._try("metrics", lambda: self._write(summary, now))
            self._written_at = now

    def _try(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
            self._said.pop(what, None)
        except (SlurmwrapError, OSError) as error:
            if self._said.get(what) != str(error):
                self._say(f"{what}: {error}" + (f" ({error.hint})" if isinstance(error, SlurmwrapError) else ""))
            self._said[what] = str(error)

    def _prune(self, now: float) -> None:
        window, kept = self._config.nodes.window_days, self._config.retention
        retention.prune(self._path, kept, now, window_d=window, short_digests=self._site, for_s=PRUNE_FOR_S)
        if self._site and datetime.fromtimestamp(now).hour in _NIGHT:
            self._rewrite(now)

    def _rewrite(self, now: float) -> None:
        """Once a week, at night: rows that were cut leave pages half empty, and only writing all anew fills them.
        Readers go on meanwhile; the only writer is this process."""
        if now - retention.get_rewrite_time(self._path) < _REWRITE_EVERY_S:
            return
        size = self._path.stat().st_size
        if disk_usage(self._path.parent).free < 2 * size:
            raise StoreError(
                f"{self._path} cannot be written anew: it takes twice its {size / 1e9:.1f} GB of free space",
                hint="free some, or set [retention] lower",
            )
        retention.rewrite(self._path, now)

    def _write(self, summary: PassSummary, now: float) -> None:
        from slurmwrap.cli.metrics import collect_families, text_of, write_textfile

        newest = Round(at=now, seconds=summary.took_s, errors=len(summary.errors))
        with Database.open(self._path, readonly=True) as database:
            text = text_of(collect_families(database, self._config, now, newest))
        write_textfile(Path(self._config.metrics.textfile), text)


SITE_POLL_S, USER_POLL_S = 15.0, 60.0


def reconcile(
    once: Annotated[bool, typer.Option("--once", help="One pass, then end (default).")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until SIGTERM, as a service.")] = False,
    user: Annotated[bool, typer.Option("--user", help="My own jobs only, without any hook.")] = False,
    poll: Annotated[float | None, typer.Option(min=1.0, help="Seconds between passes of --watch.")] = None,
) -> None:
    """Find out why jobs ended, and act on it as far as the rules allow.

    Root and SlurmUser reconcile the site's jobs where site.state_dir is configured; everyone else their own.

    \b
    Examples:
      slurmwrap reconcile               my jobs that ended since last time
      slurmwrap reconcile --watch       the service on the controller
    """
    if once and watch:
        raise UsageError("--once and --watch exclude each other")
    config = configuration.load(os.environ)
    voice = Console.of_terminal("slurmwrap")
    log = EventLog.of(config, voice, os.environ)
    commands, timeout_s = make_slurm_commands(config, os.environ, voice), config.slurm_timeout_s
    slurm = choose(config.slurm.adapter, commands, os.environ, timeout_s=timeout_s, say=voice.say).slurm
    site = not user and _is_site(config)
    place = Path(config.site.state_dir) if site else configuration.find_user_state_dir(os.environ)
    database = place / ("site.db" if site else DATABASE)
    with hold_exclusive_lock(database.with_suffix(".lock"), "another reconciler"), Database.open(database) as store:
        edges = (
            site_edges(config, commands, store, voice.say)
            if site
            else user_edges(config, commands, store, voice.say, place)
        )
        edges = replace(edges, slurm=slurm, say=log.note)
        house = Housekeeping(database, config, site=site, say=log.note)
        if watch:
            _run_service(
                edges, place / "controller" / "wake", poll or (SITE_POLL_S if site else USER_POLL_S), log, house
            )
        else:
            summary = reconcile_once(edges)
            log.tell_all(_list_pass_events(summary))
            house.after(summary, time.time())
    if not site:
        _look_after_preruns(config, voice)


def _look_after_preruns(config: Config, voice: Console) -> None:
    """Lets go the user's jobs whose pre-run is gone, and removes what old pre-runs left."""
    from slurmwrap.gsub.submit import clean_up_preruns, open_desk

    clean_up_preruns(open_desk(config, os.environ, voice))


def _is_site(config: Config) -> bool:
    """Whether we may speak for the site: its state is configured, and ours."""
    if not config.site.state_dir:
        return False
    if os.geteuid() == 0 or os.geteuid() == _named_uid(config.site.slurm_user):
        # SlurmUser, were the directory someone else's, shall hear of that and not become a plain user.
        return True
    try:
        return Path(config.site.state_dir).stat().st_uid == os.geteuid()
    except OSError:
        return False


def _named_uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid if user else -1
    except KeyError:
        return -1


def _run_service(edges: Services, wake: Path, poll_s: float, log: EventLog, house: Housekeeping) -> None:
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: stopping.append(received))
    log.tell(Event(kind=EventKind.STARTED, text=f"reconciling every {poll_s:g} s until told to stop"))
    watch_slurm(
        edges,
        poll_s=poll_s,
        woken=_wake_time(wake),
        stopped=lambda: bool(stopping),
        report=lambda summary: _report_pass(summary, log, wake.parent.parent, house),
    )
    log.tell(Event(kind=EventKind.STOPPED, text="stopped"))


def _report_pass(summary: PassSummary, log: EventLog, place: Path, house: Housekeeping) -> None:
    # For the watchdog: a pass was whole.
    beat(place, time.time())
    log.tell_all(_list_pass_events(summary, quiet=True))
    house.after(summary, time.time())


def _wake_time(wake: Path) -> Callable[[], int]:
    """EpilogSlurmctld touches the file; its time is the signal, and there need not be one."""

    def read() -> int:
        try:
            return wake.stat().st_mtime_ns
        except OSError:
            return 0

    return read


def _list_pass_events(summary: PassSummary, *, quiet: bool = False) -> tuple[Event, ...]:
    """What a pass did; `quiet`: without its sum."""
    refused = summary.ingested.refused
    return (
        *map(event_log.make_judged_event, summary.judged),
        *map(event_log.make_acted_event, summary.applied),
        *map(event_log.make_refused_action_event, summary.given_up),
        *map(event_log.make_error_event, summary.errors),
        *([event_log.make_rejected_files_event(refused)] if refused else []),
        *([] if quiet else [event_log.make_pass_event(len(summary.judged), len(summary.applied), summary.waiting)]),
    )
