"""Remove an installation (adapter). slurm.conf is restored first, so that it never names a file that was removed."""

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
from slurmwrap.install.install_workflow import ALL, NONE, InstallContext, all_nodes, wait_for_nodes
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
# Kinds of files that nodes have too.
NODE_KINDS = ("hook", "copy", "filter")


@dataclass(frozen=True, slots=True, kw_only=True)
class UninstallResult:
    """What an uninstallation does.

    `changed`: files that were changed since the installation; they stay and are listed.
    """

    changes: tuple[FileChange, ...]
    files: tuple[Path, ...]
    changed: tuple[Path, ...]
    directories: tuple[Path, ...]  # children first
    # The directories of `directories` that contain data.
    data: tuple[Path, ...]


def plan_uninstallation(manifest: Manifest, tree: FileTree) -> UninstallResult:
    """Return what an uninstallation would do.

    Raise SlurmwrapError when slurmwrap's lines in slurm.conf cannot be distinguished from others any more.
    """
    unchanged, changed = list[Path](), list[Path]()
    for one in manifest.files:
        path = Path(one.path)
        there = tree.read(path)
        if there is not None:
            same = digest(there.content) in one.digests and not tree.is_link(path)
            (unchanged if same else changed).append(path)
    data = {str(manifest.settings.get(key, "")) for key in _DATA}
    data |= {f"{manifest.settings.get('state_dir', '')}/{name}" for name in ("controller", "reports")}
    directories = tuple(Path(path) for path in reversed(manifest.directories))
    return UninstallResult(
        changes=tuple(filter(None, (_change(one, tree) for one in reversed(manifest.edits)))),
        files=tuple(unchanged),
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
            reverted(text, known.edit)  # raises SlurmwrapError with the cause
        # The file was not edited yet, or the lines were removed by hand.
        return None
    base = reverted(text, known.edit, newline_at_end=known.newline_at_end)
    return FileChange(path=path, found=found, base=base, after=base, edit=known.edit)


def restore_conf(taking: UninstallResult, manifest: Manifest, system: System) -> Manifest:
    """Restore the site's configuration and reconfigure Slurm; after that no hook of slurmwrap is started."""
    if taking.changes and not manifest.settings.get("edit", True):
        raise SlurmwrapError(
            f"{taking.changes[0].path} still has slurmwrap's lines, and slurmwrap does not edit it (--no-edit)",
            hint="Remove them, run `scontrol reconfigure`, then run this command again.",
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


def remove_installation(
    taking: UninstallResult, manifest: Manifest, system: System, *, purge: bool, behind: Collection[str] = ()
) -> tuple[Path, ...]:
    """Remove units, files, directories and manifest.

    Return what stays: changed files and directories that are not empty.
    `behind`: nodes that still have their files. `purge`: remove the data too.
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
    """Clear what systemd keeps of removed units: otherwise a failed one would stay in `systemctl --failed`."""
    run_systemctl(["daemon-reload"], must=False)
    services = [Path(one.path).name for one in manifest.files if one.kind == "unit" and one.path.endswith(".service")]
    run_systemctl(["reset-failed", *services], must=False)
    for stamp in systemd_units.STAMPS:
        system.tree.remove(stamp)


def _empty(path: Path, tree: FileTree) -> None:
    """Empty a directory. One that cannot be emptied stays; the caller lists it."""
    with suppress(SlurmwrapError):
        tree.empty(path)


def _remains(manifest: Manifest, left: Collection[Path], behind: Collection[str]) -> Manifest:
    """Return the manifest for a later `uninstall`: data for --purge, and files on nodes that were not available."""
    files = tuple(one for one in manifest.files if one.kind in NODE_KINDS) if behind else ()
    directories = tuple(str(path) for path in reversed(tuple(left)))
    nodes = dict.fromkeys(behind, "")
    return replace(manifest, state=REMOVED, directories=directories, files=files, edits=(), units=(), nodes=nodes)


# The following checks are made before `hooks uninstall` removes a file.
def refuse_hooks_in_force(context: InstallContext) -> None:
    """Raise SlurmwrapError while slurmctld's configuration names slurmwrap's hooks: a missing hook drains the node."""
    if context.manifest is None or not context.system.alive:
        return
    try:
        in_force = context.slurm.config()
    except SlurmError:
        # Without slurmctld no hook is started, and when it starts it reads slurm.conf.
        return
    directory = f"{context.manifest.settings['directory']}/"
    named = [f"{key}={value}" for key, value in in_force.items() if key in PROGRAMS and directory in value]
    if named:
        raise SlurmwrapError(
            f"slurmctld still has {', '.join(named)} in force: no file was removed",
            hint="Run `scontrol reconfigure`, then this command again.",
        )


def refuse_named(sent: Iterable[NodeResult]) -> None:
    """Raise SlurmwrapError while a node's own slurm.conf names slurmwrap's hooks: it may share this machine's disk."""
    names = [one.node for one in sent if one.reason == STILL_NAMED]
    if names:
        raise SlurmwrapError(
            f"{hostlist.fold(names)}: a slurm.conf of its own names the hooks: nothing was removed on this machine",
            hint="Copy the restored slurm.conf there, run `scontrol reconfigure`, then this command again.",
        )


def left_behind(context: InstallContext) -> str:
    """Return a sentence about the effect of files that stay on a node."""
    copies = [one.path for one in context.manifest.files if one.kind == "copy"] if context.manifest else []
    # These files still match the site's own pattern in slurm.conf.
    if copies:
        return f"Slurm still runs {', '.join(copies)} there, which records and exits 0"
    return "Nothing runs them any more"


def remove_from_nodes(context: InstallContext, asked: str, patience_s: float) -> tuple[NodeResult, ...]:
    """Remove the nodes' files by a job on each node, and return one result per node.

    No file is removed as long as the slurm.conf of one node names the hooks, since nodes may share a disk.
    """
    manifest = context.manifest
    if manifest is None or asked == NONE or not context.system.alive:
        return ()
    names = hostlist.expand(asked) if asked not in ("", ALL) else tuple(manifest.nodes)
    kinds = [one for one in manifest.files if one.kind in NODE_KINDS]
    files = tuple((Path(one.path), 0o644, b"") for one in kinds)
    if not names or not files:
        return ()
    payload = NodePayload(files=files, python=str(manifest.settings["python"]))
    nodes = wait_for_nodes(context, names) or all_nodes(context)
    clock = SystemClock()
    asked_first = send(names, nodes, payload, context.slurm, clock, action="free", patience_s=patience_s)
    free = [one.node for one in asked_first if not one.reason]
    if any(one.reason == STILL_NAMED for one in asked_first):
        return asked_first
    sent = send(free, nodes, payload, context.slurm, clock, action="take", patience_s=patience_s)
    return (*sent, *(one for one in asked_first if one.reason))
