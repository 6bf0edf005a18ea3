"""Edge: takes an installation back. slurm.conf first, so that nothing names a file that is about to go."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from slurmwrap.errors import SlurmError, SlurmwrapError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.install import systemd_units
from slurmwrap.install.apply_plan import System, reconfigure_slurm, run_systemctl, write_change
from slurmwrap.install.compose_hooks import PROGRAMS
from slurmwrap.install.copy_to_nodes import STILL_NAMED, NodePayload, NodeResult, send
from slurmwrap.install.install_workflow import ALL, NONE, InstallContext, all_nodes, settled_nodes
from slurmwrap.install.manifest import (
    REMOVED,
    REMOVING,
    Edited,
    Manifest,
    digest,
    remove_manifest,
    write_manifest,
)
from slurmwrap.install.plan_installation import FileChange
from slurmwrap.install.safe_files import FileTree
from slurmwrap.install.slurm_conf import BEGIN, holds, reverted
from slurmwrap.model import hostlist

_DATA = ("spool", "published", "state_dir")
# Of the files: those that lie on nodes too.
NODE_KINDS = ("hook", "copy", "filter")


@dataclass(frozen=True, slots=True, kw_only=True)
class UninstallResult:
    """What taking back does. `changed`: files that someone changed since; they stay, and are named."""

    changes: tuple[FileChange, ...]
    files: tuple[Path, ...]
    changed: tuple[Path, ...]
    directories: tuple[Path, ...]  # children first
    # Of the directories: those that hold what was found.
    data: tuple[Path, ...]


def make_taking(manifest: Manifest, tree: FileTree) -> UninstallResult:
    """SlurmwrapError where our lines in slurm.conf cannot be distinguished from others any more."""
    ours, changed = list[Path](), list[Path]()
    for one in manifest.files:
        path = Path(one.path)
        there = tree.read(path)
        if there is not None:
            same = digest(there.content) in one.digests and not tree.is_link(path)
            (ours if same else changed).append(path)
    data = {str(manifest.settings.get(key, "")) for key in _DATA}
    data |= {f"{manifest.settings.get('state_dir', '')}/{name}" for name in ("controller", "reports")}
    directories = tuple(Path(path) for path in reversed(manifest.directories))
    return UninstallResult(
        changes=tuple(filter(None, (_change(one, tree) for one in reversed(manifest.edits)))),
        files=tuple(ours),
        changed=tuple(changed),
        directories=directories,
        data=tuple(path for path in directories if str(path) in data),
    )


def _change(known: Edited, tree: FileTree) -> FileChange | None:
    path = Path(known.edit.file)
    found = tree.read(path)
    if found is None:
        return None
    text = found.content.decode("latin-1")
    if not holds(text, known.edit):
        if BEGIN in text or any(new in text.split("\n") for _, new in known.edit.swaps):
            reverted(text, known.edit)  # says what is wrong
        # Not edited yet, or taken out by hand.
        return None
    base = reverted(text, known.edit, newline_at_end=known.newline_at_end)
    return FileChange(path=path, found=found, base=base, after=base, edit=known.edit)


def restore_conf(taking: UninstallResult, manifest: Manifest, system: System) -> Manifest:
    """The site's configuration as it was; slurmctld and nodes read it again. After that no hook is started."""
    if taking.changes and not manifest.settings.get("edit", True):
        raise SlurmwrapError(
            f"{taking.changes[0].path} has slurmwrap's lines still, and is not edited by us (--no-edit)",
            hint="Take them out where that file is written, run `scontrol reconfigure`, then this again.",
        )
    # An earlier attempt may not have reconfigured Slurm.
    again = manifest.state == REMOVING
    manifest = replace(manifest, state=REMOVING)
    write_manifest(system.tree, manifest, system.manifest_file)
    for change in taking.changes:
        write_change(change, system)
        system.say(f"restored {change.path}")
    if taking.changes or again:
        reconfigure_slurm(system)
    return manifest


def take_away(
    taking: UninstallResult, manifest: Manifest, system: System, *, purge: bool, behind: Collection[str] = ()
) -> tuple[Path, ...]:
    """Units, files, directories, manifest. Returns what stays: changed files, directories with something in them.

    `behind`: nodes that have their files still.
    """
    if manifest.units and system.systemd_runs:
        run_systemctl(["disable", "--now", *manifest.units], must=False)
    for path in taking.files:
        system.tree.remove(path)
    for name in (*(one.path for one in manifest.files), *(one.edit.file for one in manifest.edits)):
        system.tree.remove_aside(Path(name))
    if manifest.units and system.systemd_runs:
        _forget(manifest, system)
    if purge:
        for path in taking.data:
            _empty(path, system.tree)
    left = tuple(path for path in taking.directories if not system.tree.remove_directory(path))
    if behind or set(left) & set(taking.data):
        write_manifest(system.tree, _remains(manifest, left, behind), system.manifest_file)
    else:
        remove_manifest(system.tree, system.manifest_file)
    return (*taking.changed, *left)


def _forget(manifest: Manifest, system: System) -> None:
    """What systemd itself keeps of units that are gone: a failed one would stay in `systemctl --failed`."""
    run_systemctl(["daemon-reload"], must=False)
    services = [Path(one.path).name for one in manifest.files if one.kind == "unit" and one.path.endswith(".service")]
    run_systemctl(["reset-failed", *services], must=False)
    for stamp in systemd_units.STAMPS:
        system.tree.remove(stamp)


def _empty(path: Path, tree: FileTree) -> None:
    """A directory that cannot be emptied stays, and is named."""
    with suppress(SlurmwrapError):
        tree.empty(path)


def _remains(manifest: Manifest, left: Collection[Path], behind: Collection[str]) -> Manifest:
    """What a later `uninstall --purge` may take as well, and one for nodes that come back."""
    files = tuple(one for one in manifest.files if one.kind in NODE_KINDS) if behind else ()
    directories = tuple(str(path) for path in reversed(tuple(left)))
    nodes = dict.fromkeys(behind, "")
    return replace(manifest, state=REMOVED, directories=directories, files=files, edits=(), units=(), nodes=nodes)


# What `hooks uninstall` asks of Slurm and of the nodes before a file goes.
def refuse_in_force(context: InstallContext) -> None:
    """SlurmwrapError while slurmctld still names hooks of slurmwrap's: a node whose hook's file is gone is drained."""
    if context.manifest is None or not context.system.alive:
        return
    try:
        told = context.slurm.config()
    except SlurmError:
        # Without slurmctld no hook is started, and when it starts it reads slurm.conf.
        return
    ours = f"{context.manifest.settings['directory']}/"
    named = [f"{key}={value}" for key, value in told.items() if key in PROGRAMS and ours in value]
    if named:
        raise SlurmwrapError(
            f"slurmctld still has {', '.join(named)} in force: no file was removed",
            hint="Run `scontrol reconfigure`, then this again.",
        )


def refuse_named(sent: Iterable[NodeResult]) -> None:
    """SlurmwrapError while a node's own slurm.conf names slurmwrap's hooks: it may share this disk, and lose them."""
    names = [one.node for one in sent if one.reason == STILL_NAMED]
    if names:
        raise SlurmwrapError(
            f"{hostlist.fold(names)}: a slurm.conf of its own names the hooks: nothing was removed on this machine",
            hint="Bring the restored slurm.conf there, run `scontrol reconfigure`, then this again.",
        )


def left_behind(context: InstallContext) -> str:
    """What files do that stay on a node."""
    copies = [one.path for one in context.manifest.files if one.kind == "copy"] if context.manifest else []
    # The site's own pattern in slurm.conf still names them.
    if copies:
        return f"Slurm still runs {', '.join(copies)} there, which records and exits 0"
    return "Nothing runs them any more"


def take_from_nodes(context: InstallContext, asked: str, patience_s: float) -> tuple[NodeResult, ...]:
    """Removes the nodes' files, by the same kind of job: none as long as one node's slurm.conf names them, since nodes
    may share a disk."""
    manifest = context.manifest
    if manifest is None or asked == NONE or not context.system.alive:
        return ()
    names = hostlist.expand(asked) if asked not in ("", ALL) else tuple(manifest.nodes)
    kinds = [one for one in manifest.files if one.kind in NODE_KINDS]
    files = tuple((Path(one.path), 0o644, b"") for one in kinds)
    if not names or not files:
        return ()
    shipment = NodePayload(files=files, python=str(manifest.settings["python"]))
    nodes = settled_nodes(context, names) or all_nodes(context)
    clock = SystemClock()
    asked_first = send(names, nodes, shipment, context.slurm, clock, action="free", patience_s=patience_s)
    free = [one.node for one in asked_first if not one.reason]
    if any(one.reason == STILL_NAMED for one in asked_first):
        return asked_first
    sent = send(free, nodes, shipment, context.slurm, clock, action="take", patience_s=patience_s)
    return (*sent, *(one for one in asked_first if one.reason))
