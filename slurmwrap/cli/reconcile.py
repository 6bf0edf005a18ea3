"""`slurmwrap reconcile`: wires the real edges to slurmwrap.reconcile, for the site or for one user."""

from __future__ import annotations

import os
import pwd
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap import config as configuration
from slurmwrap.cli import events
from slurmwrap.cli.asking import slurm_of
from slurmwrap.cli.events import Event, Kind, Log
from slurmwrap.cli.housekeeping import Housekeeping
from slurmwrap.cli.tellers import site_publisher, why_text
from slurmwrap.cli.voice import Voice
from slurmwrap.config import Config
from slurmwrap.diagnosis.classify import classifier
from slurmwrap.edges import Publisher
from slurmwrap.errors import UsageError
from slurmwrap.host import munge
from slurmwrap.host.clock import SystemClock
from slurmwrap.host.inputs import read_inputs_as
from slurmwrap.host.lock import held
from slurmwrap.host.mounts import mount_of
from slurmwrap.host.stepfiles import StepFiles
from slurmwrap.host.userfile import UserLogs
from slurmwrap.install.watchdog import beat
from slurmwrap.reconcile import Edges, Scope, Summary, reconcile_once
from slurmwrap.reconcile import watch as watch_slurm
from slurmwrap.slurm.accounting import Sacct, WhereThereIs
from slurmwrap.slurm.adapter import choose
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.beside import BesideOutput
from slurmwrap.store.database import Database
from slurmwrap.store.from_plain import from_plain
from slurmwrap.store.published import FilePublisher
from slurmwrap.store.spool import PlainSpool, SealedSpool
from slurmwrap.store.userstate import DATABASE, SPOOL

SITE_POLL_S, USER_POLL_S = 15.0, 60.0


def register(app: typer.Typer) -> None:
    """Adds the command to `slurmwrap`."""
    app.command("reconcile", short_help="Find out why jobs ended, and act by the rules.")(reconcile)


def reconcile(
    once: Annotated[bool, typer.Option("--once", help="One pass, then end (default).")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until SIGTERM, as a service.")] = False,
    user: Annotated[bool, typer.Option("--user", help="My own jobs only, without any hook.")] = False,
    poll: Annotated[float | None, typer.Option(min=1.0, help="Seconds between passes of --watch.")] = None,
) -> None:
    """Find out why jobs ended, and act on it as far as the rules allow.

    Root and SlurmUser reconcile the site's jobs where site.state_dir is configured; everyone else his own.

    \b
    Examples:
      slurmwrap reconcile               my jobs that ended since last time
      slurmwrap reconcile --watch       the service on the controller
    """
    if once and watch:
        raise UsageError("--once and --watch exclude each other")
    config = configuration.load(os.environ)
    voice = Voice.of_terminal("slurmwrap")
    log = Log.of(config, voice, os.environ)
    commands, timeout_s = slurm_of(config, os.environ, voice), config.slurm_timeout_s
    slurm = choose(config.slurm.adapter, commands, os.environ, timeout_s=timeout_s, say=voice.say).slurm
    site = not user and _is_site(config)
    place = Path(config.site.state_dir) if site else configuration.user_state_dir(os.environ)
    database = place / ("site.db" if site else DATABASE)
    with held(database.with_suffix(".lock"), "another reconciler"), Database.open(database) as store:
        edges = _site(config, commands, store, voice) if site else own_edges(config, commands, store, voice, place)
        edges = replace(edges, slurm=slurm, say=log.note)
        house = Housekeeping(database, config, site=site, say=log.note)
        if watch:
            _watch(edges, place / "controller" / "wake", poll or (SITE_POLL_S if site else USER_POLL_S), log, house)
        else:
            summary = reconcile_once(edges)
            log.tell_all(_told(summary))
            house.after(summary, time.time())
    if not site:
        _look_after_preruns(config, voice)


def _look_after_preruns(config: Config, voice: Voice) -> None:
    """Lets go the user's jobs whose pre-run is gone, and removes what old pre-runs left."""
    from slurmwrap.cli.flow import open_desk, tidy

    tidy(open_desk(config, os.environ, voice))


def _is_site(config: Config) -> bool:
    """Whether we may speak for the site: its state is configured, and ours."""
    if not config.site.state_dir:
        return False
    if os.geteuid() == 0 or os.geteuid() == _named_uid(config.site.slurm_user):
        return True  # SlurmUser, were the directory somebody else's, shall hear of that and not become a plain user
    try:
        return Path(config.site.state_dir).stat().st_uid == os.geteuid()
    except OSError:
        return False


def _named_uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid if user else -1
    except KeyError:
        return -1


def _site(config: Config, slurm: SlurmCommands, store: Database, voice: Voice) -> Edges:
    site = config.site
    trusted = frozenset({0, _slurm_uid(config, slurm)})
    controller = PlainSpool(Path(site.state_dir) / "controller", trusted)
    shared = (
        (SealedSpool(site.spool, site.munge_socket, slurm.node_addresses, trusted, slurm.cluster_name()),)
        if site.spool
        else ()
    )
    publisher = None
    if site.published:
        sealed = FilePublisher(Path(site.published), site.munge_socket, munge.encode)
        publisher = site_publisher(sealed, config, voice.say, store.attempts_of)
    scope = Scope(trusted=trusted | {-1})
    return _edges(config, slurm, store, voice, spools=(*shared, controller), publisher=publisher, scope=scope)


def own_edges(config: Config, slurm: SlurmCommands, store: Database, voice: Voice, place: Path) -> Edges:
    uid = os.geteuid()
    scope = Scope(user=pwd.getpwuid(uid).pw_name, uid=uid, trusted=frozenset())
    beside = None if config.site.published else BesideOutput(why_text)  # where there is a site, it tells
    return _edges(config, slurm, store, voice, spools=(PlainSpool(place / SPOOL),), publisher=beside, scope=scope)


def _edges(
    config: Config,
    slurm: SlurmCommands,
    store: Database,
    voice: Voice,
    *,
    spools: tuple[SealedSpool | PlainSpool, ...],
    publisher: Publisher | None,
    scope: Scope,
) -> Edges:
    return Edges(
        slurm=slurm,
        store=store,
        spools=spools,
        logs=UserLogs(),
        clock=SystemClock(),
        publisher=publisher,
        unpack=from_plain,
        classify=classifier(config.diagnosis.signatures),
        read_inputs=read_inputs_as,
        config=config,
        scope=scope,
        accounting=WhereThereIs(slurm.config, Sacct(os.environ, timeout_s=config.slurm_timeout_s)),
        mounts=mount_of,
        steps=StepFiles(),
        may_resize=slurm.may_resize,
        say=voice.say,
    )


def _slurm_uid(config: Config, slurm: SlurmCommands) -> int:
    """SlurmUser's uid: as configured, else as Slurm says ("slurm(64030)")."""
    if config.site.slurm_user:
        try:
            return pwd.getpwnam(config.site.slurm_user).pw_uid
        except KeyError:
            raise UsageError(f"site.slurm_user: there is no user '{config.site.slurm_user}'") from None
    told = re.search(r"\((\d+)\)", slurm.config().get("SlurmUser", ""))
    return int(told[1]) if told else 0


def _watch(edges: Edges, wake: Path, poll_s: float, log: Log, house: Housekeeping) -> None:
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: stopping.append(received))
    log.tell(Event(kind=Kind.STARTED, text=f"reconciling every {poll_s:g} s until told to stop"))
    watch_slurm(
        edges,
        poll_s=poll_s,
        woken=_wake_time(wake),
        stopped=lambda: bool(stopping),
        report=lambda summary: _passed(summary, log, wake.parent.parent, house),
    )
    log.tell(Event(kind=Kind.STOPPED, text="stopped"))


def _passed(summary: Summary, log: Log, place: Path, house: Housekeeping) -> None:
    beat(place, time.time())  # for the watchdog: a pass was whole
    log.tell_all(_told(summary, quiet=True))
    house.after(summary, time.time())


def _wake_time(wake: Path) -> Callable[[], int]:
    """EpilogSlurmctld touches the file; its time is the signal, and there need not be one."""

    def read() -> int:
        try:
            return wake.stat().st_mtime_ns
        except OSError:
            return 0

    return read


def _told(summary: Summary, *, quiet: bool = False) -> tuple[Event, ...]:
    """What a pass did; `quiet`: without its sum."""
    refused = summary.ingested.refused
    return (
        *map(events.judged, summary.judged),
        *map(events.acted, summary.applied),
        *map(events.not_acted, summary.given_up),
        *map(events.error, summary.errors),
        *([events.refused(refused)] if refused else []),
        *([] if quiet else [events.passed(len(summary.judged), len(summary.applied), summary.waiting)]),
    )
