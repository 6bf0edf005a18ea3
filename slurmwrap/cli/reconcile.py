"""`slurmwrap reconcile`: run the reconciler (slurmwrap.reconcile) with its adapters, for the site or for one user."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap.cli.reconcile_maintenance import ReconcilerMaintenance
from slurmwrap.config import load_config as configuration
from slurmwrap.config.load_config import Config
from slurmwrap.console import Console
from slurmwrap.errors import SlurmwrapError, UsageError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub.prefetch import make_slurm_commands
from slurmwrap.host.lock import hold_exclusive_lock
from slurmwrap.install.service_watchdog import beat, is_watched
from slurmwrap.reconcile import PassSummary, Services, event_log, reconcile_once
from slurmwrap.reconcile import watch as watch_slurm
from slurmwrap.reconcile.event_log import Event, EventKind, EventLog
from slurmwrap.reconcile.order_pending import withdraw_order
from slurmwrap.reconcile.reconcile_pass import make_services_without_effect
from slurmwrap.reconcile.restore_limits import restore_all_limits
from slurmwrap.reconcile.wire_adapters import make_site_services, make_user_services
from slurmwrap.slurm.choose_adapter import choose
from slurmwrap.store.database import Database
from slurmwrap.store.published_files import list_trusted_uids
from slurmwrap.store.reconciler_host import hold_reconciler_host
from slurmwrap.store.user_state_files import DATABASE

SITE_POLL_S, USER_POLL_S = 15.0, 60.0
# How long a service that ends gives jobs back their priority, in seconds.
_WITHDRAW_S = 20.0


def reconcile(
    once: Annotated[bool, typer.Option("--once", help="Make one pass, then exit (default).")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Continue until SIGTERM, as a service.")] = False,
    user: Annotated[bool, typer.Option("--user", help="Only your own jobs, without any hook.")] = False,
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
    console = Console.of_terminal("slurmwrap")
    log = EventLog.of(config, console, os.environ)
    commands, timeout_s = make_slurm_commands(config, os.environ, console), config.slurm_timeout_s
    slurm = choose(config.slurm.adapter, commands, os.environ, timeout_s=timeout_s, say=console.say).slurm
    site = not user and _is_site(config)
    state_dir = Path(config.site.state_dir) if site else configuration.find_user_state_dir(os.environ)
    database = state_dir / ("site.db" if site else DATABASE)
    with (
        hold_exclusive_lock(database.with_suffix(".lock"), "another reconciler"),
        _hold_host(config, site=site) as renew,
        Database.open(database) as store,
    ):
        services = (
            make_site_services(config, commands, store, console.say)
            if site
            else make_user_services(config, commands, store, console.say, state_dir)
        )
        services = replace(services, slurm=slurm, say=log.note, lasting=site or watch)
        maintenance = ReconcilerMaintenance(database, config, site=site, say=log.note)
        if watch:
            services = replace(services, is_watched=lambda now: site and is_watched(state_dir, now))
            _run_service(
                services,
                state_dir / "controller" / "wake",
                poll or (SITE_POLL_S if site else USER_POLL_S),
                log,
                maintenance,
                renew,
            )
            _withdraw_order(services, log)
        else:
            summary = reconcile_once(services)
            log.tell_all(_list_pass_events(summary))
            maintenance.after(summary, time.time())
    if not site:
        _clean_up_preruns(config, console)


def _hold_host(config: Config, *, site: bool) -> AbstractContextManager[Callable[[], None]]:
    """Return the context in which this host is recorded as the one that runs the site's reconciler."""
    if not site or not config.site.published:
        return nullcontext(lambda: None)
    trusted = list_trusted_uids(config) | {os.geteuid()}
    return hold_reconciler_host(Path(config.site.published), socket.gethostname(), trusted, time.time)


def _withdraw_order(services: Services, log: EventLog) -> None:
    """Give pending jobs back the priority that they had, before the service ends: no pass would do it any more.

    What is left when the time is over follows at the next start, or by the watchdog of the site.
    """
    try:
        withdraw_order(make_services_without_effect(services), _WITHDRAW_S)
    except SlurmwrapError as error:
        log.note(f"the order of pending jobs stays for now: {error}")


def _clean_up_preruns(config: Config, console: Console) -> None:
    """Release the user's jobs whose pre-run is gone, and remove what old pre-runs left."""
    from slurmwrap.gsub.submit import clean_up_preruns, open_submit_context

    clean_up_preruns(open_submit_context(config, os.environ, console))


def _is_site(config: Config) -> bool:
    """Whether to reconcile the site: site.state_dir is configured, and root, SlurmUser or its owner is the caller."""
    if not config.site.state_dir:
        return False
    if os.geteuid() == 0 or os.geteuid() == _find_uid(config.site.slurm_user):
        # SlurmUser must get an error if the directory belongs to someone else, and not run as an ordinary user.
        return True
    try:
        return Path(config.site.state_dir).stat().st_uid == os.geteuid()
    except OSError:
        return False


def _find_uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid if user else -1
    except KeyError:
        return -1


def _run_service(
    services: Services,
    wake: Path,
    poll_s: float,
    log: EventLog,
    maintenance: ReconcilerMaintenance,
    renew: Callable[[], None],
) -> None:
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Without a log file of its own, SIGHUP (a closed terminal) only ends the service; under nohup it stays ignored.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, frame: stopping.append(received))
    log.tell(Event(kind=EventKind.STARTED, text=f"reconciling every {poll_s:g} s until stopped"))
    watch_slurm(
        services,
        poll_s=poll_s,
        woken=_make_wake_time_reader(wake),
        stopped=lambda: bool(stopping),
        report=lambda summary: _report_pass(summary, log, wake.parent.parent, maintenance, renew),
    )
    _restore_limits(services, log)
    log.tell(Event(kind=EventKind.STOPPED, text="stopped"))


def _restore_limits(services: Services, log: EventLog) -> None:
    """Restore all lowered time limits before the service ends: no pass would do it any more."""
    try:
        done, errors = restore_all_limits(services.slurm, services.limits.read())
    except SlurmwrapError as error:
        done, errors = [], [f"{error}: the watchdog restores the lowered time limits"]
    for text in done:
        log.note(text)
    log.tell_all(tuple(map(event_log.make_error_event, errors)))


def _report_pass(
    summary: PassSummary,
    log: EventLog,
    state_dir: Path,
    maintenance: ReconcilerMaintenance,
    renew: Callable[[], None],
) -> None:
    renew()
    # The watchdog reads this time: a complete pass was made.
    beat(state_dir, time.time())
    log.tell_all(_list_pass_events(summary, quiet=True))
    maintenance.after(summary, time.time())


def _make_wake_time_reader(wake: Path) -> Callable[[], int]:
    """Return a function that reads the modification time of the file that EpilogSlurmctld touches; 0 without it."""

    def read() -> int:
        try:
            return wake.stat().st_mtime_ns
        except OSError:
            return 0

    return read


def _list_pass_events(summary: PassSummary, *, quiet: bool = False) -> tuple[Event, ...]:
    """Return the events of a pass; `quiet`: without its summary."""
    refused = summary.ingested.refused
    return (
        *map(event_log.make_judged_event, summary.judged),
        *map(event_log.make_acted_event, summary.applied),
        *map(event_log.make_refused_action_event, summary.given_up),
        *map(event_log.make_error_event, summary.errors),
        *([event_log.make_rejected_files_event(refused)] if refused else []),
        *([] if quiet else [event_log.make_pass_event(len(summary.judged), len(summary.applied), summary.waiting)]),
    )
