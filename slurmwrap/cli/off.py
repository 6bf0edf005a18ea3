"""`slurmwrap off` and `slurmwrap on`: the switch of an administrator for everything that slurmwrap changes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap.cli import list_options
from slurmwrap.cli.hooks_watchdog import restore_limits_without_service, withdraw_order_without_service
from slurmwrap.config.load_config import Config, load
from slurmwrap.console import Console
from slurmwrap.errors import StoreError, UsageError
from slurmwrap.install.service_watchdog import is_beating, last_beat
from slurmwrap.reconcile.restore_limits import list_lowered_jobs
from slurmwrap.report import text_format
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.lowered_limits import LIMITS_FILE, LoweredLimitFile
from slurmwrap.store.site_switch import (
    SiteSwitch,
    get_switch_directory,
    read_site_switch,
    remove_site_switch,
    write_site_switch,
)

_WAIT_S, _LOOK_S = 60.0, 0.5


def off(
    note: list_options.Note = "",
    wait: Annotated[bool, typer.Option(help="Wait until the reconciler has put back what it had changed.")] = True,
) -> None:
    """Switch slurmwrap off for the whole site, and put back what it has changed for a while.

    gsub passes every call to sbatch. All rules observe; lowered time limits and changed priorities are restored, jobs
    that wait for a pre-run are released, the Prolog gate refuses nothing. Hooks and reconciler go on recording. Nodes
    that slurmwrap drained stay drained (slurmwrap nodes list). For root and SlurmUser.

    \b
    Examples:
      slurmwrap off --note "upgrade of Slurm"
      slurmwrap on
    """
    config = load(os.environ)
    directory = _require_site(config)
    console = Console.of_terminal("slurmwrap")
    known = read_site_switch(config)
    if known is None:
        switch = SiteSwitch(at=time.time(), by=list_options.get_user_name_of_caller(), note=note)
        write_site_switch(directory, switch)
        if read_site_switch(config) is None:
            raise StoreError(
                f"{directory} is not trusted, so slurmwrap stays on",
                hint="root or SlurmUser must own it, and no one else may write it",
            )
        typer.echo("slurmwrap is off: gsub passes every call to sbatch")
    else:
        _require_writable(directory)
        since = text_format.moment(known.at, None)
        typer.echo(f"slurmwrap is off already, since {since} by {text_format.visible(known.describe())}")
    if not config.site.published:
        console.say("site.published is not configured: gsub on other hosts does not see the switch")
    if wait:
        _wait_until_undone(config, console)


def on() -> None:
    """Switch slurmwrap on again after `slurmwrap off`. For root and SlurmUser.

    \b
    Examples:
      slurmwrap on
    """
    config = load(os.environ)
    directory = _require_site(config)
    was_off = read_site_switch(config) is not None
    remove_site_switch(directory)
    typer.echo(f"slurmwrap is on{' again; the rules hold from the next pass of the reconciler on' if was_off else ''}")


def _require_site(config: Config) -> str:
    directory = get_switch_directory(config)
    if not directory:
        raise UsageError(
            "no site is configured on this host",
            hint="For your own calls set GSUB_PASS=1; for a site see docs/install.md",
        )
    return directory


def _require_writable(directory: str) -> None:
    if not os.access(directory, os.W_OK):
        raise StoreError(f"slurmwrap is off already, and you may not write {directory}", hint="For root and SlurmUser.")


def _wait_until_undone(config: Config, console: Console) -> None:
    """Wait for a pass of the reconciler that began after the switch. If it does not run, put everything back here."""
    state_dir = Path(config.site.state_dir)
    if not config.site.state_dir or not state_dir.is_dir():
        console.say("the reconciler of this site runs on another host; its next pass puts back what it had changed")
        return
    now = time.time()
    if not is_beating(state_dir, now):
        console.say("the reconciler does not run; what it had changed is put back now")
        for line in restore_limits_without_service(config, state_dir, now, console):
            typer.echo(line)
        typer.echo(withdraw_order_without_service(config, state_dir, console).strip() or "every priority is its own")
        return
    console.say("waiting for the next pass of the reconciler")
    # The first pass that ends from now on may have begun before the switch, the second did not.
    passes, left, seen, until = 0, 0, last_beat(state_dir), now + _WAIT_S
    _wake(state_dir)
    while (passes < 2 or left) and time.time() < until:
        time.sleep(_LOOK_S)
        if (beat := last_beat(state_dir)) != seen:
            passes, seen, left = passes + 1, beat, _count_lowered_limits(config, state_dir)
            _wake(state_dir)
    if passes < 2 or left:
        still = f"{text_format.count(left, 'time limit')} still lowered" if left else "it has made no pass yet"
        console.say(f"the reconciler is not done: {still}; see its journal, or call this command again")
    else:
        typer.echo("the reconciler has put back what it had changed")


def _count_lowered_limits(config: Config, state_dir: Path) -> int:
    lowered = LoweredLimitFile(state_dir / LIMITS_FILE).read()
    jobs = SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s).jobs() if lowered else ()
    return len(list_lowered_jobs(lowered, jobs))


def _wake(state_dir: Path) -> None:
    """Touch the file that EpilogSlurmctld touches; where there is none, the next pass comes in its own time."""
    path = state_dir / "controller" / "wake"
    try:
        os.utime(path, follow_symlinks=False)
    except OSError:
        return
