"""`slurmwrap hooks watchdog`: check whether the services are on time, write to the journal, and mail changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from slurmwrap.config.load_config import Config, load
from slurmwrap.console import Console
from slurmwrap.errors import SlurmwrapError, UsageError
from slurmwrap.fast_dataclasses import asdict
from slurmwrap.host.journal import is_our_stderr
from slurmwrap.host.mail import Mailer
from slurmwrap.install.service_watchdog import OverdueState, is_beating, look, news, since
from slurmwrap.model.lowered_limit import LoweredLimit
from slurmwrap.reconcile import event_log
from slurmwrap.reconcile.restore_limits import find_forgotten_limits, restore_all_limits
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.lowered_limits import LIMITS_FILE, LoweredLimitFile


def check_services(now: float, console: Console) -> tuple[list[dict[str, Any]], str]:
    """Return what is overdue, and the text for people. Raise UsageError if no site is configured.

    If the reconciler makes no passes, restore the time limits that it lowered, and give pending jobs back the priority
    that they had without it.
    """
    config = load(os.environ)
    if not config.site.state_dir:
        raise UsageError("no site is configured", hint="The watchdog is the site's: it needs site.state_dir.")
    state_dir = Path(config.site.state_dir)
    reports = Path(config.report.directory) if config.report.directory else state_dir / "reports"
    restored = restore_limits_without_service(config, state_dir, now, console)
    late = look(state_dir, reports, now, since=since(state_dir, now))
    lines = [f"{one.text}\n  {one.hint}" for one in late] or ["the reconciler and the night report are on time"]
    text = "\n".join((*lines, *restored))
    if any(one.what == "reconciler" for one in late):
        text += withdraw_order_without_service(config, state_dir, console)
    change = news(state_dir, late, now)
    # As a service, write log records with a priority, so that filters by priority show them.
    if is_our_stderr(os.environ):
        event_log.EventLog.of(config, console, os.environ).tell_all(
            [event_log.make_overdue_event(one.what, one.text) for one in late]
        )
    if change:
        _send_mail(config, "late" if change == "late" else "well again", _format_mail(late, text), console)
    return [asdict(one) for one in late], text


def restore_limits_without_service(config: Config, state_dir: Path, now: float, console: Console) -> list[str]:
    """Return what was restored. Errors are printed, and the next call tries again."""
    if is_beating(state_dir, now):
        return []
    slurm, lowered = SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s), tuple[LoweredLimit, ...]()
    try:
        lowered = LoweredLimitFile(state_dir / LIMITS_FILE).read()
    except SlurmwrapError as error:
        console.error(error)
    try:
        lowered = (*lowered, *_find_forgotten_limits(lowered, slurm, state_dir))
    except SlurmwrapError as error:
        console.error(error)
    try:
        done, errors = restore_all_limits(slurm, lowered)
    except SlurmwrapError as error:
        console.error(error)
        return []
    for text in errors:
        console.say(text)
    return done


def _find_forgotten_limits(
    known: tuple[LoweredLimit, ...], slurm: SlurmCommands, state_dir: Path
) -> tuple[LoweredLimit, ...]:
    """Return the lowered limits that only the database knows. SlurmwrapError if it, or Slurm, does not answer."""
    from slurmwrap.store.database import Database

    path = state_dir / "site.db"
    if not path.exists():
        return ()
    with Database.open(path) as store:
        return find_forgotten_limits(known, slurm.jobs(), store, slurm.cluster_name())


def withdraw_order_without_service(config: Config, state_dir: Path, console: Console) -> str:
    """Return what was done as lines of text. An error is printed, and the next call tries again."""
    from slurmwrap.gsub.prefetch import make_slurm_commands
    from slurmwrap.reconcile.order_pending import withdraw_order
    from slurmwrap.reconcile.wire_adapters import make_site_services
    from slurmwrap.store.database import Database

    path = state_dir / "site.db"
    if not path.exists():
        return ""
    try:
        with Database.open(path) as store:
            commands = make_slurm_commands(config, os.environ, console)
            updates, complete = withdraw_order(make_site_services(config, commands, store, console.say))
    except SlurmwrapError as error:
        console.error(error)
        return ""
    rest = "" if complete else "; the others follow"
    return f"\n{updates} pending jobs have their own priority again{rest}" if updates or not complete else ""


def _format_mail(late: tuple[OverdueState, ...], text: str) -> str:
    host = os.uname().nodename
    end = "Jobs run as usual; they are not diagnosed, retried or reported until this is fixed." if late else ""
    return f"slurmwrap's watchdog on {host}:\n\n{text}\n\n{end}".rstrip() + "\n"


def _send_mail(config: Config, subject: str, text: str, console: Console) -> None:
    addresses = tuple(address.strip() for address in config.report.to.split(",") if address.strip())
    if not config.mail.server or not addresses:
        return
    try:
        Mailer(server=config.mail.server, sender=config.mail.sender).send(addresses, f"slurmwrap: {subject}", text)
    except SlurmwrapError as error:
        console.error(error)
