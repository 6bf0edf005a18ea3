"""Check whether an installation is still complete and in force. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from slurmwrap.console import Console
from slurmwrap.errors import SlurmwrapError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.host.run_command import run
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.install import systemd_units
from slurmwrap.install.apply_plan import System
from slurmwrap.install.compose_hooks import select_node_lines
from slurmwrap.install.copy_to_nodes import NOT_SEEN, NodePayload, NodeResult, group_by_reason, send
from slurmwrap.install.hook_versions import OTHER_RELEASE_HINT, explain_other_release
from slurmwrap.install.install_target import InstallTarget, find_account
from slurmwrap.install.install_workflow import (
    ALL,
    NONE,
    InstallContext,
    all_nodes,
    find_other_reconciler,
    wait_for_nodes,
)
from slurmwrap.install.manifest import INSTALLED, REMOVED, Manifest, digest
from slurmwrap.install.plan_installation import InstallationPlan, read_configuration
from slurmwrap.install.slurm_conf import Edit, holds, list_other_controllers
from slurmwrap.model import hostlist

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationCheck:
    """The result of one check. `hint`: how to fix it."""

    what: str
    state: str
    text: str
    hint: str = ""


def check(manifest: Manifest, system: System, slurm: Callable[[], Mapping[str, str]]) -> tuple[InstallationCheck, ...]:
    """Return the results of all checks.

    `slurm()` returns the configuration in force (`scontrol show config`); it is called only on a running system.
    """
    if manifest.state == REMOVED:
        return (_check_removed(manifest),)
    looks = [
        _check_whole(manifest),
        *_check_files(manifest, system),
        *_check_release(manifest, system),
        *_check_edits(manifest, system),
        *_check_directories(manifest, system),
    ]
    if system.alive:
        looks += _check_in_force(manifest, slurm, system.here)
        looks += _check_reconciler_host(manifest, system)
        looks += _check_units(manifest, system)
    return tuple(looks)


def _check_whole(manifest: Manifest) -> InstallationCheck:
    if manifest.state == INSTALLED:
        return InstallationCheck(what="installation", state=OK, text=f"slurmwrap {manifest.release}")
    hint = "`slurmwrap hooks install` continues, `slurmwrap hooks uninstall` reverts."
    return InstallationCheck(what="installation", state=FAIL, text=f"was interrupted while {manifest.state}", hint=hint)


def _check_removed(manifest: Manifest) -> InstallationCheck:
    left = [*manifest.directories[-3:], *([f"files on {len(manifest.nodes)} nodes"] if manifest.nodes else [])]
    hint = "`slurmwrap hooks uninstall` tries the nodes again, --purge removes the data too; `install` starts anew."
    return InstallationCheck(
        what="installation", state=FAIL, text=f"was taken back; left: {', '.join(left)}", hint=hint
    )


def _check_files(manifest: Manifest, system: System) -> list[InstallationCheck]:
    wrong = []
    for one in manifest.files:
        found = system.tree.read(Path(one.path))
        if found is None:
            wrong.append(_make_failed_check(one.path, "is gone"))
        elif digest(found.content) not in one.digests and one.kind != "config":
            wrong.append(_make_failed_check(one.path, "was changed"))
        elif found.uid != 0 or found.mode & 0o022:
            wrong.append(_make_failed_check(one.path, f"is uid {found.uid}'s with mode {found.mode:04o}"))
    return wrong or [InstallationCheck(what="files", state=OK, text=f"{len(manifest.files)} as they were written")]


def _check_release(manifest: Manifest, system: System) -> list[InstallationCheck]:
    """Compare the installed hooks with those of the slurmwrap that runs now, as after an upgrade of its package."""
    directory = Path(str(manifest.settings["directory"]))
    zipapp, settings = (system.tree.read(directory / name) for name in ("node_hooks.pyz", "hooks.json"))
    text = explain_other_release(zipapp.content, settings.content) if zipapp and settings else ""
    return [InstallationCheck(what="hooks", state=WARN, text=text, hint=OTHER_RELEASE_HINT)] if text else []


def _make_failed_check(path: str, what: str) -> InstallationCheck:
    return InstallationCheck(
        what="files", state=FAIL, text=f"{path} {what}", hint="`slurmwrap hooks install` writes it again."
    )


def _check_edits(manifest: Manifest, system: System) -> list[InstallationCheck]:
    found = []
    for one in manifest.edits:
        there = system.tree.read(Path(one.edit.file))
        if there is None or not holds(there.content.decode("latin-1"), one.edit):
            hint = "`slurmwrap hooks plan` shows what belongs there, `slurmwrap hooks install` writes it."
            found.append(
                InstallationCheck(what="slurm.conf", state=FAIL, text=f"{one.edit.file} lacks our lines", hint=hint)
            )
    names = ", ".join(one.edit.file for one in manifest.edits)
    return found or [InstallationCheck(what="slurm.conf", state=OK, text=names)]


def _check_directories(manifest: Manifest, system: System) -> list[InstallationCheck]:
    settings, found = manifest.settings, []
    slurm = find_account(system.tree, str(settings["slurm_user"]))
    wanted = {str(settings["spool"]): 0o1733, str(settings["published"]): 0o755, str(settings["state_dir"]): 0o700}
    for path, mode in wanted.items():
        try:
            there = system.tree.directory(Path(path))
        except SlurmwrapError as error:
            found.append(InstallationCheck(what="directories", state=FAIL, text=str(error), hint=error.hint))
            continue
        if there is None or (there.st_mode & 0o7777, there.st_uid) != (mode, slurm.uid):
            fix = f"install -d -m {mode:04o} -o {slurm.name} {path}"
            found.append(
                InstallationCheck(what="directories", state=FAIL, text=f"{path} has a wrong owner or mode", hint=fix)
            )
    return found or [InstallationCheck(what="directories", state=OK, text=", ".join(wanted))]


def _check_in_force(manifest: Manifest, slurm: Callable[[], Mapping[str, str]], here: str) -> list[InstallationCheck]:
    """Whether slurmctld has read the lines."""
    try:
        in_force = slurm()
    except SlurmwrapError as error:
        return [InstallationCheck(what="slurmctld", state=FAIL, text=str(error), hint=error.hint)]
    missing = [line for one in manifest.edits for line in _list_lines(one.edit) if not _is_in_force(line, in_force)]
    if missing:
        hint = "Run `scontrol reconfigure`."
        return [
            InstallationCheck(what="slurmctld", state=FAIL, text=f"has not in force: {', '.join(missing)}", hint=hint)
        ]
    return [
        InstallationCheck(what="slurmctld", state=OK, text="has all lines in force"),
        *_check_controllers(in_force, here),
    ]


def _check_controllers(in_force: Mapping[str, str], here: str) -> list[InstallationCheck]:
    """Name the other controllers, which cannot be checked from this machine."""
    hosts = [name.partition("(")[0] for name in in_force.get("SlurmctldHost", "").split(",")]
    names = list_other_controllers(hosts, here)
    if not names:
        return []
    hint = "What belongs there: `slurmwrap hooks bundle --controller FILE.tar.gz`; there `tar -C / -dzf` compares."
    return [InstallationCheck(what="controllers", state=OK, text=f"not looked at: {', '.join(names)}", hint=hint)]


def _check_reconciler_host(manifest: Manifest, system: System) -> list[InstallationCheck]:
    """Warn when the site's reconciler runs on another host, as on a second controller."""
    host = find_other_reconciler(system, str(manifest.settings["published"]), str(manifest.settings["slurm_user"]))
    if not host:
        return []
    text = f"the reconciler runs on {host}, not on this host"
    hint = "One host runs it, whichever controller is active (docs/install.md): disable the services on the other one."
    return [InstallationCheck(what="controllers", state=WARN, text=text, hint=hint)]


def _list_lines(edit: Edit) -> tuple[str, ...]:
    """Return the lines `Key=value` that the edit adds."""
    return (*edit.block, *(new for _, new in edit.swaps if not new.startswith("#")))


def _is_in_force(line: str, in_force: Mapping[str, str]) -> bool:
    """Return whether slurmctld reports the setting of `line`. Releases spell lists and times differently."""
    key, _, value = line.partition("=")
    values = [text for name, text in in_force.items() if name.lower() == key.strip().lower()]
    words = {word.strip().lower() for text in values for word in text.replace(" sec", "").split(",")}
    return {word.strip().lower() for word in value.split("#")[0].split(",")} <= words


def _check_units(manifest: Manifest, system: System) -> list[InstallationCheck]:
    if not any(one.kind == "unit" for one in manifest.files):
        return [InstallationCheck(what="systemd", state=OK, text="not used")]
    if not system.systemd_runs:
        hint = "Run `slurmwrap reconcile --watch` as SlurmUser by other means; docs/install.md says how."
        return [InstallationCheck(what="systemd", state=WARN, text="does not run here: no unit is active", hint=hint)]
    asleep = [unit for unit in manifest.units if not run(["systemctl", "is-active", "-q", unit], timeout_s=10).ok]
    if asleep or not manifest.units:
        hint = f"systemctl enable --now {' '.join(asleep or systemd_units.ENABLED)}"
        return [
            InstallationCheck(what="systemd", state=FAIL, text=f"not active: {', '.join(asleep) or 'none'}", hint=hint)
        ]
    if _list_outdated_units(manifest, system):
        hint = "systemd lets services write only to the old ones: `slurmwrap hooks install` writes the units again."
        units = ", ".join(_list_outdated_units(manifest, system))
        text = f"{units}: {manifest.settings['config']} now names other directories"
        return [InstallationCheck(what="systemd", state=WARN, text=text, hint=hint)]
    return [InstallationCheck(what="systemd", state=OK, text=", ".join(manifest.units))]


def _list_outdated_units(manifest: Manifest, system: System) -> list[str]:
    """Return the units that would differ with the site's present configuration, as after setting a report directory."""
    wanted = InstallTarget(**manifest.settings)
    now = systemd_units.rendered(wanted, read_configuration(wanted, system.tree))
    found = ((name, system.tree.read(Path(wanted.units) / name)) for name, _ in now)
    there = {name: one.content for name, one in found if one is not None}
    return [name for name, text in now if name in there and there[name] != text.encode()]


# The following functions find nodes whose slurm.conf does not name the hooks, as a local copy may not.
LOOK_S = 60.0
TO_NODES = "Copy slurm.conf there, run `scontrol reconfigure`, then: slurmwrap hooks check --nodes all"


def check_conf_on_nodes(
    context: InstallContext, manifest: Manifest, names: Sequence[str], patience_s: float
) -> tuple[NodeResult, ...]:
    """Run a job on each node that checks whether its slurmd's slurm.conf names the hooks.

    Return one result per node.
    """
    lines = select_node_lines(one.edit for one in manifest.edits)
    if not names or not lines or not context.system.alive:
        return ()
    payload = NodePayload(files=(), python=str(manifest.settings["python"]), named=lines)
    nodes = wait_for_nodes(context)
    return send(names, nodes, payload, context.slurm, SystemClock(), action="look", patience_s=patience_s)


def select_nodes_to_check(plan: InstallationPlan, manifest: Manifest, names: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes to check after an installation.

    If slurm.conf was edited these are all nodes that have the files, otherwise those to which files were sent now.
    """
    edited = any(one.before != one.after for one in plan.changes)
    return tuple(manifest.nodes) if edited else tuple(name for name in names if name in manifest.nodes)


def check_nodes(context: InstallContext, asked: str, patience_s: float) -> tuple[InstallationCheck, ...]:
    """Return the checks of `hooks check --nodes`."""
    manifest = context.manifest
    if manifest is None or asked in ("", NONE) or not context.system.alive:
        return ()
    names = tuple(node.name for node in all_nodes(context)) if asked == ALL else hostlist.expand(asked)
    looked = check_conf_on_nodes(context, manifest, names, patience_s)
    found = [_node_held(reason, nodes) for reason, nodes in group_by_reason(looked)]
    seen = [one.node for one in looked if not one.reason]
    return (
        *([InstallationCheck(what="nodes", state=OK, text=f"{hostlist.fold(seen)}: read the lines")] if seen else []),
        *found,
    )


def _node_held(reason: str, names: Sequence[str]) -> InstallationCheck:
    text = f"{hostlist.fold(names)}: {reason}"
    if reason in NOT_SEEN:
        return InstallationCheck(what="nodes", state=FAIL, text=text, hint=TO_NODES)
    return InstallationCheck(what="nodes", state=WARN, text=f"unknown for {text}")


def print_node_checks(looked: Collection[NodeResult], console: Console) -> None:
    """Print one line per reason, with what has to be done."""
    seen = len([one for one in looked if not one.reason])
    if seen:
        console.say(f"{seen} nodes read the new lines")
    for reason, names in group_by_reason(looked):
        if reason in NOT_SEEN:
            console.say(f"no hook of slurmwrap runs on {hostlist.fold(names)}: {reason}. {TO_NODES}")
        else:
            console.say(f"unknown for {hostlist.fold(names)}: {reason}")
