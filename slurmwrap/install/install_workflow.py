"""The workflow of `slurmwrap hooks`: make a plan from the options, install it on the cluster, and test the hooks."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurmwrap.config.load_config import Config, find_site_file, load
from slurmwrap.console import Console
from slurmwrap.errors import ConfigError, SlurmError, SlurmwrapError, StoreError, UsageError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.install.apply_plan import System, activate_installation, prepare
from slurmwrap.install.copy_to_nodes import NodePayload, group_by_reason, make_bundle, send
from slurmwrap.install.hook_test_job import HookTestResult, run_test_jobs, select_representative_nodes
from slurmwrap.install.install_target import CONF_PLACES, find_account, read_system_settings, resolve_install_target
from slurmwrap.install.manifest import INSTALLED, Manifest, digest, read_manifest, write_manifest
from slurmwrap.install.plan_installation import InstallationPlan, make_config_text, make_plan, read_conf
from slurmwrap.install.safe_files import FileTree
from slurmwrap.install.slurm_conf import list_other_controllers
from slurmwrap.install.systemd_units import PATH as SERVICE_PATH
from slurmwrap.model import hostlist
from slurmwrap.model.cluster import Node
from slurmwrap.model.observation import Observation, SpoolEntry
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.pyslurm.compatibility import read_commands_release
from slurmwrap.slurm.scontrol_parser import parse_release
from slurmwrap.store.database import Database
from slurmwrap.store.reconciler_host import VALID_S, read_reconciler_host
from slurmwrap.store.spool_reader import PlainSpool, SealedSpool

NONE, ALL = "none", "all"
SETTLE_S = 30.0
# Where a configless slurmd keeps slurm.conf: in its SlurmdSpoolDir, and a link to it (configless_slurm.html of Slurm).
CACHE, RUN_CONF = "conf-cache", Path("/run/slurm/conf")
RESTART = (
    "restart slurmctld once (systemctl restart slurmctld): before 23.11 it accepts an EpilogSlurmctld only if one was "
    "set when it started. Jobs continue to run meanwhile. Until then, only array ids and names are not recorded"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallContext:
    """The system, manifest, Slurm and console that a command of `slurmwrap hooks` works with."""

    system: System
    manifest: Manifest | None
    slurm: SlurmCommands
    console: Console


def context(
    root: Path, manifest_file: Path, *, reconfigure: bool = True, systemd: bool = True, slurm_conf: Path | None = None
) -> InstallContext:
    """Return the context of a command. Raise SlurmwrapError when the manifest cannot be read."""
    console = Console.of_terminal("slurmwrap")
    tree = FileTree(root=root, trusted=frozenset({0, os.geteuid()}))
    manifest = read_manifest(tree, manifest_file)
    named = slurm_conf or (manifest.settings.get("slurm_conf") if manifest else None)
    if named and root == Path("/"):
        # Slurm's commands must address the same cluster.
        os.environ["SLURM_CONF"] = str(named)
    system = System(tree=tree, manifest_file=manifest_file, reconfigure=reconfigure, systemd=systemd, say=console.say)
    commands = SlurmCommands(dict(os.environ), timeout_s=30.0)
    return InstallContext(system=system, manifest=manifest, slurm=commands, console=console)


def make(
    context: InstallContext, asked: Mapping[str, Any], shared: str, slurm_conf: Path | None, release: str
) -> tuple[InstallContext, InstallationPlan]:
    """Return the plan, and the context with SlurmUser added to the trusted uids, who owns the site's directories."""
    conf = _conf(context, slurm_conf)
    before = context.manifest.settings if context.manifest else {}
    edit = before.get("edit", True) if asked.get("edit") is None else bool(asked["edit"])
    settings = read_conf(context.system.tree, conf, context.manifest, edit=edit)
    from_system = read_system_settings(settings, context.system.tree, conf)
    defaults = {"config": str(find_site_file(os.environ)), "command": _command(), "munge": shutil.which("munge")}
    asked = {**asked, "slurm_bin": _slurm_bin()} if context.system.alive else asked
    wanted = resolve_install_target(asked, before, {**defaults, **from_system}, _config(context), shared)
    tree = replace(
        context.system.tree,
        trusted=context.system.tree.trusted | {find_account(context.system.tree, wanted.slurm_user).uid},
    )
    context = replace(context, system=replace(context.system, tree=tree))
    found = (tree.root / wanted.command.lstrip("/")).exists()
    here, of = context.system.here, _release(release)
    plan = make_plan(wanted, tree, context.manifest, of, command_found=found, here=here)
    other = find_other_reconciler(context.system, wanted.published, wanted.slurm_user) if wanted.units else ""
    if other:
        text = f"The reconciler of this site runs on {other}: the one of this host would refuse to start."
        plan = replace(plan, remarks=(*plan.remarks, f"{text} Stop it there first."))
    return context, plan


def find_other_reconciler(system: System, published: str, slurm_user: str) -> str:
    """Return the other host on which the site's reconciler runs, as on a second controller; "" when there is none."""
    if not system.alive:
        return ""
    host, at = read_reconciler_host(Path(published), {0, find_account(system.tree, slurm_user).uid})
    elsewhere = host and list_other_controllers((host,), system.here) and abs(time.time() - at) < VALID_S
    return host if elsewhere else ""


def _conf(context: InstallContext, named: Path | None) -> Path:
    """Return the path of slurm.conf. Raise UsageError when none is found, or only a configless node's copy of it."""
    path = _find_conf(context, named)
    if context.system.tree.real(path).parent.name == CACHE or path.parent == RUN_CONF:
        raise UsageError(
            f"{path} is the copy that Slurm keeps on a configless node",
            hint="Run this on the controller, whose slurm.conf Slurm sends to the nodes: `scontrol show config | grep "
            "SLURM_CONF` names it.",
        )
    return path


def _find_conf(context: InstallContext, named: Path | None) -> Path:
    if named is not None:
        return named
    if context.manifest is not None:
        return Path(str(context.manifest.settings["slurm_conf"]))
    places = [*([os.environ["SLURM_CONF"]] if os.environ.get("SLURM_CONF") else []), *CONF_PLACES]
    for place in places:
        if context.system.tree.read(Path(place)) is not None:
            return Path(place)
    try:
        reported = context.slurm.config().get("SLURM_CONF", "") if context.system.alive else ""
    except SlurmError:
        reported = ""
    if not reported:
        raise UsageError("no slurm.conf was found", hint="Name it: --slurm-conf PATH")
    return Path(reported)


def _config(context: InstallContext) -> Config:
    """Return the site's configuration on the running system.

    An image has none of slurmwrap yet: return the defaults.
    """
    if not context.system.alive:
        return Config()
    try:
        return load(os.environ)
    except ConfigError as error:
        raise ConfigError(str(error), hint=error.hint or "Correct it first: the services would not start.") from error


def _command() -> str:
    next_to_python = Path(sys.executable).with_name("slurmwrap")
    return shutil.which("slurmwrap") or str(next_to_python if next_to_python.exists() else "/usr/bin/slurmwrap")


def _slurm_bin() -> str:
    """Return the directory of Slurm's commands, as /opt/slurm/bin; "" when it is in the PATH of systemd's services."""
    folder = str(Path(shutil.which("scontrol") or "/usr/bin/scontrol").parent)
    return "" if folder in SERVICE_PATH else folder


def _release(named: str) -> tuple[int, int]:
    found = parse_release(named or read_commands_release(os.environ))
    if found is None:
        raise UsageError("Slurm's release is not known here", hint="Name it: --slurm-release 24.11")
    return found


def describe_steps(
    plan: InstallationPlan, context: InstallContext, names: Sequence[str], *, by_hand: bool, test: bool
) -> tuple[str, ...]:
    """Return the descriptions of the steps of the installation, in their order."""
    found = [f"{context.system.manifest_file}: records what will be done before it is done"]
    found.append("directories and files on this machine")
    if names:
        found.append(f"the files marked * to {hostlist.fold(names)}, by one short job of root on each")
    elif context.system.alive and not by_hand:
        found.append("the nodes have the files marked * already")
    else:
        found.append("not done: you bring the files marked * to the nodes; `slurmwrap hooks bundle` packs them")
    changed = [str(one.path) for one in plan.changes if one.before != one.after]
    if changed and not plan.wanted.edit:
        found.append(f"not done: you bring these lines to {', '.join(changed)}, then run `scontrol reconfigure`")
    elif changed:
        found.append(", ".join(changed))
        automatic = context.system.reconfigure and context.system.alive
        found.append("scontrol reconfigure" if automatic else "not done: run `scontrol reconfigure` yourself")
    if plan.restart and changed:
        found.append(f"not done: {RESTART}")
    if plan.enable and context.system.systemd_runs:
        found.append(f"systemctl enable, and restart: {' '.join(plan.enable)}")
    elif plan.enable:
        found.append(f"not done, systemd does not run here: systemctl enable --now {' '.join(plan.enable)}")
    if test and not lacks_conf_lines(plan):
        found.append("a test job on one node of each partition; the observations of its hooks must be accepted")
    return tuple(found)


def lacks_conf_lines(plan: InstallationPlan) -> bool:
    """Return whether slurm.conf lacks lines that an administrator has to add (--no-edit)."""
    return not plan.wanted.edit and any(one.before != one.after for one in plan.changes)


def make_node_payload(plan: InstallationPlan) -> NodePayload:
    """Return the files that every node needs."""
    files = tuple((item.path, item.mode, item.content) for item in plan.node_items)
    return NodePayload(files=files, python=plan.wanted.python)


def make_controller_payload(plan: InstallationPlan, context: InstallContext) -> NodePayload:
    """Return what a backup controller needs: the nodes' files, the configuration, EpilogSlurmctld's directory."""
    wanted, nodes = plan.wanted, make_node_payload(plan)
    there = context.system.tree.read(Path(wanted.config))
    content = there.content if there else make_config_text(wanted).encode()
    state = Path(wanted.state_dir)
    folders = tuple((path, 0o700, wanted.slurm_user) for path in (state, state / "controller"))
    return replace(nodes, files=(*nodes.files, (Path(wanted.config), 0o644, content)), folders=folders)


def target_nodes(context: InstallContext, asked: str, plan: InstallationPlan) -> tuple[str, ...]:
    """Return the nodes to which the files are sent.

    `asked`: NONE, ALL, a host list, or "" for the nodes that do not have exactly these files yet.
    """
    if asked == NONE or not context.system.alive:
        return ()
    names = tuple(node.name for node in all_nodes(context))
    if asked == ALL:
        return names
    if asked:
        return hostlist.expand(asked)
    mark = digest(make_bundle(make_node_payload(plan)))
    known = context.manifest.nodes if context.manifest else {}
    return tuple(name for name in names if known.get(name) != mark)


def all_nodes(context: InstallContext) -> tuple[Node, ...]:
    """Return all nodes of this cluster. Raise SlurmError when slurmctld does not answer."""
    return tuple(context.slurm.snapshot().nodes)


def install(
    context: InstallContext, plan: InstallationPlan, names: Sequence[str], patience_s: float, skip: Iterable[str]
) -> Manifest:
    """Carry out the plan, except for the test job.

    Slurm's configuration is not changed before every node has the files. Raise SlurmwrapError with the step that
    failed.
    """
    if context.system.alive and os.geteuid() != 0:
        raise SlurmwrapError(
            "only root can install hooks", hint="Run it with sudo. `slurmwrap hooks plan` needs no root."
        )
    manifest = prepare(plan, context.system, context.manifest)
    if names:
        manifest = _send(context, plan, names, patience_s, frozenset(skip), manifest)
    unfinished = context.manifest is not None and context.manifest.state != INSTALLED
    return activate_installation(plan, context.system, manifest, unfinished=unfinished)


def _send(
    context: InstallContext,
    plan: InstallationPlan,
    names: Sequence[str],
    patience_s: float,
    skip: frozenset[str],
    manifest: Manifest,
) -> Manifest:
    payload = make_node_payload(plan)
    context.console.say(f"sending {len(make_bundle(payload)) >> 10} KiB to {hostlist.fold(names)}")
    sent = send(
        [name for name in names if name not in skip], all_nodes(context), payload, context.slurm, SystemClock(),
        patience_s=patience_s,
    )  # fmt: skip
    mark = digest(make_bundle(payload))
    manifest = replace(manifest, nodes={**manifest.nodes, **{one.node: mark for one in sent if not one.reason}})
    write_manifest(context.system.tree, manifest, context.system.manifest_file)
    failed = group_by_reason(sent)
    if failed:
        reasons = "; ".join(f"{hostlist.fold(nodes)}: {reason}" for reason, nodes in failed)
        left = hostlist.fold([name for _, nodes in failed for name in nodes])
        raise SlurmwrapError(
            f"not on every node: {reasons}",
            hint="slurm.conf was not touched: a node without the files is drained at its first job. Install again "
            "when they are free, bring the files there yourself (`slurmwrap hooks bundle`), or leave out: "
            f"--skip {left}",
        )
    context.console.say(f"{len(sent)} nodes have the files")
    return manifest


def test_jobs(
    context: InstallContext, plan: InstallationPlan, names: Sequence[str], user: str, patience_s: float
) -> tuple[HookTestResult, ...]:
    """Run a small job on each node and wait until the observations of its hooks have been accepted."""
    nodes, wanted = wait_for_nodes(context), plan.wanted
    trusted = frozenset({0, find_account(context.system.tree, wanted.slurm_user).uid})
    addresses = {node.name: node.address for node in nodes}
    sealed = SealedSpool(wanted.spool, wanted.munge_socket, lambda: addresses, trusted, wanted.cluster)
    controller = PlainSpool(Path(wanted.state_dir) / "controller", trusted)

    def spooled() -> list[SpoolEntry]:
        return [*sealed.collect(100_000), *controller.collect(100_000)]

    def heard(job_id: int) -> list[Observation]:
        found = [one.item for one in spooled() if isinstance(one.item, Observation)]
        return [*(one for one in found if one.job_id == job_id), *_stored(wanted.state_dir, wanted.cluster, job_id)]

    return run_test_jobs(
        tuple(names) or select_representative_nodes(nodes), nodes, context.slurm, heard, spooled, SystemClock(),
        user=user,
        patience_s=patience_s,
    )  # fmt: skip


def _unsettled(node: Node) -> bool:
    """Return whether the node has not registered yet with a slurmctld that was just started."""
    return node.state == "UNKNOWN" or "NOT_RESPONDING" in node.flags


def wait_for_nodes(context: InstallContext, names: Collection[str] = ()) -> tuple[Node, ...]:
    """Wait up to SETTLE_S for nodes to register with slurmctld, and return all nodes.

    Since 23.11 `scontrol reconfigure` starts a new slurmctld process, and nodes respond some seconds later. `names`:
    the nodes to wait for; () for all.
    """
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
    """Return the observations that the reconciler has already moved from the spool to its database; () without one."""
    path = Path(state_dir) / "site.db"
    if not path.exists():
        return ()
    try:
        with Database.open(path, readonly=True) as store:
            return store.observations(cluster, job_id)
    except StoreError:
        return ()
