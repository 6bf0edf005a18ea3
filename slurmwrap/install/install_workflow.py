"""The order of steps of `slurmwrap hooks`: from flags to a plan, from a plan to a cluster that has it, and back."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurmwrap.config.load_config import Config, find_site_file, load
from slurmwrap.console import Console
from slurmwrap.errors import ConfigError, SlurmError, SlurmwrapError, StoreError, UsageError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.install.apply_plan import System, prepare, switch_on
from slurmwrap.install.copy_to_nodes import NodePayload, group_by_reason, make_bundle, send
from slurmwrap.install.hook_test_job import HookTestResult, select_representative_nodes, try_out
from slurmwrap.install.install_target import CONF_PLACES, find_account, read_system_settings, resolve_install_target
from slurmwrap.install.manifest import INSTALLED, Manifest, digest, read_manifest, write_manifest
from slurmwrap.install.plan_installation import InstallationPlan, make_config_text, make_plan, read_conf
from slurmwrap.install.safe_files import FileTree
from slurmwrap.install.systemd_units import PATH as SERVICE_PATH
from slurmwrap.model import hostlist
from slurmwrap.model.cluster import Node
from slurmwrap.model.observation import Observation, SpoolEntry
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.pyslurm.compatibility import read_commands_release
from slurmwrap.slurm.scontrol_parser import parse_release
from slurmwrap.store.database import Database
from slurmwrap.store.spool_reader import PlainSpool, SealedSpool

NONE, ALL = "none", "all"
SETTLE_S = 30.0
RESTART = (
    "restart slurmctld once (systemctl restart slurmctld): before 23.11 it takes up an EpilogSlurmctld only if one was "
    "set when it started. Jobs go on meanwhile, and until then too all is recorded but array ids and names"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallContext:
    """What a command of `slurmwrap hooks` works on."""

    system: System
    manifest: Manifest | None
    slurm: SlurmCommands
    console: Console


def context(
    root: Path, manifest_file: Path, *, reconfigure: bool = True, systemd: bool = True, slurm_conf: Path | None = None
) -> InstallContext:
    """SlurmwrapError where the manifest cannot be read."""
    console = Console.of_terminal("slurmwrap")
    tree = FileTree(root=root, trusted=frozenset({0, os.geteuid()}))
    manifest = read_manifest(tree, manifest_file)
    named = slurm_conf or (manifest.settings.get("slurm_conf") if manifest else None)
    if named and root == Path("/"):
        # Slurm's commands shall speak of the same cluster.
        os.environ["SLURM_CONF"] = str(named)
    system = System(tree=tree, manifest_file=manifest_file, reconfigure=reconfigure, systemd=systemd, say=console.say)
    commands = SlurmCommands(dict(os.environ), timeout_s=30.0)
    return InstallContext(system=system, manifest=manifest, slurm=commands, console=console)


def make(
    context: InstallContext, asked: Mapping[str, Any], shared: str, slurm_conf: Path | None, release: str
) -> tuple[InstallContext, InstallationPlan]:
    """The plan, and the ground with SlurmUser trusted, whose directories the site's are."""
    conf = _conf(context, slurm_conf)
    before = context.manifest.settings if context.manifest else {}
    edit = before.get("edit", True) if asked.get("edit") is None else bool(asked["edit"])
    settings = read_conf(context.system.tree, conf, context.manifest, edit=edit)
    told = read_system_settings(settings, context.system.tree, conf)
    defaults = {"config": str(find_site_file(os.environ)), "command": _command(), "munge": shutil.which("munge")}
    asked = {**asked, "slurm_bin": _slurm_bin()} if context.system.alive else asked
    wanted = resolve_install_target(asked, before, {**defaults, **told}, _config(context), shared)
    tree = replace(
        context.system.tree,
        trusted=context.system.tree.trusted | {find_account(context.system.tree, wanted.slurm_user).uid},
    )
    context = replace(context, system=replace(context.system, tree=tree))
    found = (tree.root / wanted.command.lstrip("/")).exists()
    here, of = context.system.here, _release(release)
    return context, make_plan(wanted, tree, context.manifest, of, command_found=found, here=here)


def _conf(context: InstallContext, named: Path | None) -> Path:
    if named is not None:
        return named
    if context.manifest is not None:
        return Path(str(context.manifest.settings["slurm_conf"]))
    places = [*([os.environ["SLURM_CONF"]] if os.environ.get("SLURM_CONF") else []), *CONF_PLACES]
    for place in places:
        if context.system.tree.read(Path(place)) is not None:
            return Path(place)
    try:
        told = context.slurm.config().get("SLURM_CONF", "") if context.system.alive else ""
    except SlurmError:
        told = ""
    if not told:
        raise UsageError("there is no slurm.conf where one is looked for", hint="Name it: --slurm-conf PATH")
    return Path(told)


def _config(context: InstallContext) -> Config:
    """The site's, of the running system; an image has none of slurmwrap's yet."""
    if not context.system.alive:
        return Config()
    try:
        return load(os.environ)
    except ConfigError as error:
        raise ConfigError(str(error), hint=error.hint or "Correct it first: the services would not start.") from error


def _command() -> str:
    beside = Path(sys.executable).with_name("slurmwrap")
    return shutil.which("slurmwrap") or str(beside if beside.exists() else "/usr/bin/slurmwrap")


def _slurm_bin() -> str:
    """Of the Slurm that is found here, /opt/slurm/bin; "" where every service finds it."""
    folder = str(Path(shutil.which("scontrol") or "/usr/bin/scontrol").parent)
    return "" if folder in SERVICE_PATH else folder


def _release(named: str) -> tuple[int, int]:
    found = parse_release(named or read_commands_release(os.environ))
    if found is None:
        raise UsageError("Slurm's release is not known here", hint="Say it: --slurm-release 24.11")
    return found


def steps_of(
    plan: InstallationPlan, context: InstallContext, names: Sequence[str], *, by_hand: bool, test: bool
) -> tuple[str, ...]:
    """What installation does, in its order."""
    found = [f"{context.system.manifest_file}: what is done is written down first"]
    found.append("directories and files on this machine")
    if names:
        found.append(f"the files marked * to {hostlist.fold(names)}, by one short job of root's on each")
    elif context.system.alive and not by_hand:
        found.append("the nodes have the files marked * already")
    else:
        found.append("the files marked * on the nodes: not by us; `slurmwrap hooks bundle` packs them for you")
    changed = [str(one.path) for one in plan.changes if one.before != one.after]
    if changed and not plan.wanted.edit:
        found.append(f"not done: you bring these lines to {', '.join(changed)}, then run `scontrol reconfigure`")
    elif changed:
        found.append(", ".join(changed))
        told = context.system.reconfigure and context.system.alive
        found.append("scontrol reconfigure" if told else "not done: run `scontrol reconfigure` yourself")
    if plan.restart and changed:
        found.append(f"not done: {RESTART}")
    if plan.enable and context.system.systemd_runs:
        found.append(f"systemctl enable, and restart: {' '.join(plan.enable)}")
    elif plan.enable:
        found.append(f"not done, systemd does not run here: systemctl enable --now {' '.join(plan.enable)}")
    if test and not lines_missing(plan):
        found.append("a test job on one node of each partition, whose hooks must be heard and believed")
    return tuple(found)


def lines_missing(plan: InstallationPlan) -> bool:
    """Whether slurm.conf lacks lines that others have to bring there."""
    return not plan.wanted.edit and any(one.before != one.after for one in plan.changes)


def shipment_of(plan: InstallationPlan) -> NodePayload:
    """What every node needs."""
    files = tuple((item.path, item.mode, item.content) for item in plan.node_items)
    return NodePayload(files=files, python=plan.wanted.python)


def for_controller(plan: InstallationPlan, context: InstallContext) -> NodePayload:
    """What a backup controller needs: the nodes' files, the configuration, EpilogSlurmctld's directory."""
    wanted, nodes = plan.wanted, shipment_of(plan)
    there = context.system.tree.read(Path(wanted.config))
    content = there.content if there else make_config_text(wanted).encode()
    state = Path(wanted.state_dir)
    folders = tuple((path, 0o700, wanted.slurm_user) for path in (state, state / "controller"))
    return replace(nodes, files=(*nodes.files, (Path(wanted.config), 0o644, content)), folders=folders)


def target_nodes(context: InstallContext, asked: str, plan: InstallationPlan) -> tuple[str, ...]:
    """Who gets the files: `asked` NONE, ALL, a host list, or "": those that have not got just these."""
    if asked == NONE or not context.system.alive:
        return ()
    names = tuple(node.name for node in all_nodes(context))
    if asked == ALL:
        return names
    if asked:
        return hostlist.expand(asked)
    mark = digest(make_bundle(shipment_of(plan)))
    known = context.manifest.nodes if context.manifest else {}
    return tuple(name for name in names if known.get(name) != mark)


def all_nodes(context: InstallContext) -> tuple[Node, ...]:
    """Of this cluster. SlurmError where slurmctld does not answer."""
    return tuple(context.slurm.snapshot().nodes)


def install(
    context: InstallContext, plan: InstallationPlan, names: Sequence[str], patience_s: float, skip: Iterable[str]
) -> Manifest:
    """Everything but the test job. SlurmwrapError says how far it came: Slurm's configuration is untouched until every
    node has the files."""
    if context.system.alive and os.geteuid() != 0:
        raise SlurmwrapError(
            "only root can install hooks", hint="Run it with sudo. `slurmwrap hooks plan` needs no root."
        )
    manifest = prepare(plan, context.system, context.manifest)
    if names:
        manifest = _send(context, plan, names, patience_s, frozenset(skip), manifest)
    unfinished = context.manifest is not None and context.manifest.state != INSTALLED
    return switch_on(plan, context.system, manifest, unfinished=unfinished)


def _send(
    context: InstallContext,
    plan: InstallationPlan,
    names: Sequence[str],
    patience_s: float,
    skip: frozenset[str],
    manifest: Manifest,
) -> Manifest:
    shipment = shipment_of(plan)
    context.console.say(f"sending {len(make_bundle(shipment)) >> 10} KiB to {hostlist.fold(names)}")
    sent = send(
        [name for name in names if name not in skip], all_nodes(context), shipment, context.slurm, SystemClock(),
        patience_s=patience_s,
    )  # fmt: skip
    mark = digest(make_bundle(shipment))
    manifest = replace(manifest, nodes={**manifest.nodes, **{one.node: mark for one in sent if not one.reason}})
    write_manifest(context.system.tree, manifest, context.system.manifest_file)
    failed = group_by_reason(sent)
    if failed:
        told = "; ".join(f"{hostlist.fold(nodes)}: {reason}" for reason, nodes in failed)
        left = hostlist.fold([name for _, nodes in failed for name in nodes])
        raise SlurmwrapError(
            f"not on every node: {told}",
            hint="slurm.conf was not touched: a node without the files is drained at its first job. Install again "
            "when they are free, bring the files there yourself (`slurmwrap hooks bundle`), or leave out: "
            f"--skip {left}",
        )
    context.console.say(f"{len(sent)} nodes have the files")
    return manifest


def test_jobs(
    context: InstallContext, plan: InstallationPlan, names: Sequence[str], user: str, patience_s: float
) -> tuple[HookTestResult, ...]:
    """Waits until the hooks of one tiny job on each node were heard and believed."""
    nodes, wanted = settled_nodes(context), plan.wanted
    trusted = frozenset({0, find_account(context.system.tree, wanted.slurm_user).uid})
    addresses = {node.name: node.address for node in nodes}
    sealed = SealedSpool(wanted.spool, wanted.munge_socket, lambda: addresses, trusted, wanted.cluster)
    controller = PlainSpool(Path(wanted.state_dir) / "controller", trusted)

    def spooled() -> list[SpoolEntry]:
        return [*sealed.collect(100_000), *controller.collect(100_000)]

    def heard(job_id: int) -> list[Observation]:
        found = [one.item for one in spooled() if isinstance(one.item, Observation)]
        return [*(one for one in found if one.job_id == job_id), *_stored(wanted.state_dir, wanted.cluster, job_id)]

    return try_out(
        tuple(names) or select_representative_nodes(nodes), nodes, context.slurm, heard, spooled, SystemClock(),
        user=user,
        patience_s=patience_s,
    )  # fmt: skip


def _unsettled(node: Node) -> bool:
    """Not registered yet with a slurmctld that has just begun."""
    return node.state == "UNKNOWN" or "NOT_RESPONDING" in node.flags


def settled_nodes(context: InstallContext, names: Collection[str] = ()) -> tuple[Node, ...]:
    """Since 23.11 a reconfigured slurmctld starts anew, and its nodes answer some seconds later. `names`: those that
    are waited for; (): all."""
    nodes: tuple[Node, ...] = ()
    clock = SystemClock()
    late = clock.now() + SETTLE_S
    while clock.now() < late:
        with suppress(SlurmError):
            nodes = all_nodes(context)
        awaited = [node for node in nodes if not names or node.name in names]
        if select_representative_nodes(nodes) and not any(map(_unsettled, awaited)):
            break
        clock.sleep(0.5)
    return nodes


def _stored(state_dir: str, cluster: str, job_id: int) -> tuple[Observation, ...]:
    """What the reconciler has read already; it may be at work, or not there yet."""
    path = Path(state_dir) / "site.db"
    if not path.exists():
        return ()
    try:
        with Database.open(path, readonly=True) as store:
            return store.observations(cluster, job_id)
    except StoreError:
        return ()
