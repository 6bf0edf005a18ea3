"""Build the Services of a reconciler from the real adapters, for the site or for one user (adapter)."""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from slurmwrap.config.load_config import Config, read_layers
from slurmwrap.diagnosis.classifier import make_classifier
from slurmwrap.errors import SlurmError, UsageError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host import munge
from slurmwrap.host.mounts import find_mount_point
from slurmwrap.host.read_loss_curve import LossCurveFiles
from slurmwrap.host.read_running_jobs import RunningJobReader
from slurmwrap.host.read_user_file import StepFiles, UserLogs, read_inputs_as
from slurmwrap.host.run_command import start_detached
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.host.user_account import find_user_name
from slurmwrap.protocols import Publisher
from slurmwrap.reconcile import Scope, Services
from slurmwrap.reconcile.messenger import make_site_messenger, make_user_messenger
from slurmwrap.reconcile.notifications import format_why_text, make_site_publisher, make_user_publisher
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.sacct import OptionalSacct, Sacct
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.lowered_limits import LIMITS_FILE, LoweredLimitFile
from slurmwrap.store.published_files import FilePublisher
from slurmwrap.store.site_switch import read_site_switch
from slurmwrap.store.spool_reader import PlainSpool, SealedSpool
from slurmwrap.store.user_state_files import SPOOL
from slurmwrap.store.why_file import WhyFilePublisher


def make_site_services(config: Config, slurm: SlurmCommands, store: Database, say: Callable[[str], None]) -> Services:
    """Return the services for all jobs of the cluster: spools of nodes and controller, and files published to users."""
    site = config.site
    trusted = frozenset({0, _find_slurm_uid(config, slurm)})
    controller = PlainSpool(Path(site.state_dir) / "controller", trusted)
    shared = (
        (SealedSpool(site.spool, site.munge_socket, slurm.node_addresses, trusted, slurm.cluster_name()),)
        if site.spool
        else ()
    )
    publisher, messenger = None, make_site_messenger(config, say)
    if site.published:
        sealed = FilePublisher(Path(site.published), site.munge_socket, munge.encode)
        publisher = make_site_publisher(sealed, messenger, store.attempts_of)
    scope = Scope(trusted=trusted | {-1})
    services = _make_services(config, slurm, store, say, spools=(*shared, controller), publisher=publisher, scope=scope)
    limits = LoweredLimitFile(Path(site.state_dir) / LIMITS_FILE)
    return replace(
        services, limits=limits, may_extend=slurm.may_extend, messenger=messenger, boot_times=slurm.boot_times,
        start_node_check=start_node_check,
    )  # fmt: skip


def start_node_check(node: str) -> Callable[[], int | None]:
    """Start `slurmwrap nodes repaired NODE --resume` in a session of its own, and return its exit code's function."""
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "nodes", "repaired", "--resume"]
    argv += ["--note", "rule resume: rebooted since the drain", "--", node]
    return start_detached(argv)


def make_user_services(
    config: Config, slurm: SlurmCommands, store: Database, say: Callable[[str], None], state: Path
) -> Services:
    """Return the services for the jobs of the user who runs this process. `state`: directory of their records."""
    uid = os.geteuid()
    scope = Scope(user=find_user_name(uid), uid=uid, trusted=frozenset())
    # If the site has a reconciler, it reports to the user.
    beside = None if config.site.published else WhyFilePublisher(format_why_text)
    own = config.for_own_jobs()
    messenger = make_user_messenger(own, say, own_url=_has_own_url())
    publisher = make_user_publisher(beside, messenger, store.attempts_of)
    spools = (PlainSpool(state / SPOOL),)
    services = _make_services(own, slurm, store, say, spools=spools, publisher=publisher, scope=scope)
    return replace(services, messenger=messenger)


def _has_own_url() -> bool:
    """Return whether notify.url is set by the user's file or a variable, and not by the site's file."""
    return any("url" in layer.tables.get("notify", {}) for layer in read_layers(os.environ)[1:])


def _make_services(
    config: Config,
    slurm: SlurmCommands,
    store: Database,
    say: Callable[[str], None],
    *,
    spools: tuple[SealedSpool | PlainSpool, ...],
    publisher: Publisher | None,
    scope: Scope,
) -> Services:
    step_files = StepFiles()
    return Services(
        slurm=slurm,
        store=store,
        spools=spools,
        logs=UserLogs(),
        clock=SystemClock(),
        publisher=publisher,
        unpack=record_from_json,
        classify=make_classifier(config.diagnosis.signatures),
        read_inputs=read_inputs_as,
        config=config,
        scope=scope,
        accounting=OptionalSacct(slurm.config, Sacct(os.environ, timeout_s=config.slurm_timeout_s)),
        mounts=find_mount_point,
        steps=step_files,
        losses=step_files.losses,
        saved_at=step_files.saved_at,
        preemption=slurm.preemption,
        curves=LossCurveFiles(),
        read_running=RunningJobReader(),
        step_cpu_s=partial(_read_step_cpu_s, slurm, Sacct(os.environ, timeout_s=config.slurm_timeout_s)),
        own_cpu_s=_get_own_cpu_s,
        may_resize=slurm.may_resize,
        say=say,
        switched_off=partial(_describe_switch, config),
    )


def _describe_switch(config: Config) -> str | None:
    switch = read_site_switch(config)
    return None if switch is None else switch.describe()


def _get_own_cpu_s() -> float:
    return sum(os.times()[:4])


def _read_step_cpu_s(slurm: SlurmCommands, sacct: Sacct, address: str) -> float | None:
    """Return the CPU seconds of a running job's steps, by sstat; None where Slurm does not account them."""
    with suppress(SlurmError):
        if slurm.config().get("JobAcctGatherType", "").rpartition("/")[2] in ("", "none"):
            return None
        counted = [one.cpu_s for one in sacct.running_steps(address).values() if one.cpu_s is not None]
        return sum(counted) if counted else None
    return None


def _find_slurm_uid(config: Config, slurm: SlurmCommands) -> int:
    """Return SlurmUser's uid: as configured, else as Slurm prints it ("slurm(64030)")."""
    if config.site.slurm_user:
        try:
            return pwd.getpwnam(config.site.slurm_user).pw_uid
        except KeyError:
            raise UsageError(f"site.slurm_user: there is no user '{config.site.slurm_user}'") from None
    match = re.search(r"\((\d+)\)", slurm.config().get("SlurmUser", ""))
    return int(match[1]) if match else 0
