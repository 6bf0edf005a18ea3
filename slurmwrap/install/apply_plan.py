"""Carry out an installation plan, in an order in which a crash at any point leaves a working cluster (adapter).

slurm.conf names slurmwrap's files only after every node that will run them has them; before that, nothing of Slurm
changes. The manifest records the intended changes before they are made, so that a second `install` continues after an
interruption and `uninstall` can revert it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from slurmwrap import __version__
from slurmwrap.errors import SlurmwrapError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.host.run_command import run
from slurmwrap.install.manifest import (
    FILE,
    INSTALLED,
    INSTALLING,
    Manifest,
    Written,
    digest,
    join_manifests,
    write_manifest,
)
from slurmwrap.install.plan_installation import NEW, SAME, UPGRADE, FileChange, InstallationPlan, list_edited
from slurmwrap.install.safe_files import FileTree, FoundFile

_SYSTEMD_RUNS = Path("/run/systemd/system")  # sd_booted(3)
_PATIENCE_S = 60.0
# slurmctld answers when it has reconfigured, which takes more than a minute on a large cluster with jobs.
_RECONFIGURE_S = 300.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The system to install on, and which of its services are reloaded; in an image (`tree.root` not "/") none is."""

    tree: FileTree
    manifest_file: Path = FILE
    reconfigure: bool = True
    systemd: bool = True
    say: Say = lambda text: None

    @property
    def alive(self) -> bool:
        """Whether this is the running system."""
        return self.tree.root == Path("/")

    @property
    def here(self) -> str:
        """This machine's name; "" for an image."""
        return os.uname().nodename if self.alive else ""

    @property
    def systemd_runs(self) -> bool:
        """Whether systemd runs here and may be used."""
        return self.systemd and self.alive and _SYSTEMD_RUNS.is_dir()


def prepare(plan: InstallationPlan, system: System, before: Manifest | None) -> Manifest:
    """Write the manifest, and the directories and files on this machine, and return the manifest.

    Slurm's configuration is not changed. Raise SlurmwrapError when the plan has conflicts.
    """
    if plan.conflicts:
        raise SlurmwrapError("nothing was done: " + "; ".join(plan.conflicts), hint="`slurmwrap hooks plan` shows all.")
    manifest = join_manifests(before, _make_intended_manifest(plan, before))
    write_manifest(system.tree, manifest, system.manifest_file)
    for place in plan.places:
        if place.state == NEW:
            system.tree.make_directory(place.path, place.mode, place.uid, place.gid)
    for item in plan.items:
        if item.state in (NEW, UPGRADE):
            system.tree.write(item.path, FoundFile(content=item.content, mode=item.mode, uid=0, gid=0))
    restore_labels([item.path for item in plan.items], system)
    return manifest


def activate_installation(plan: InstallationPlan, system: System, manifest: Manifest, *, unfinished: bool) -> Manifest:
    """Edit slurm.conf, reconfigure Slurm, enable the units, and remove files of an earlier release.

    Return the manifest.
    `unfinished`: an earlier attempt may have edited slurm.conf without reconfiguring Slurm.
    """
    due = [change for change in plan.changes if change.before != change.after]
    if not plan.wanted.edit:
        for change in due:
            system.say(f"{change.path} is not edited: bring the lines that `slurmwrap hooks plan` shows there yourself")
    else:
        for change in due:
            write_change(change, system)
            system.say(f"edited {change.path}")
        if due or unfinished:
            reconfigure_slurm(system)
    enabled = _enable(plan, system)
    for path in plan.stale:
        system.tree.remove(Path(path))
    gone = set(plan.stale)
    files = tuple(_keep_present_content(one, plan) for one in manifest.files if one.path not in gone)
    manifest = replace(manifest, state=INSTALLED, files=files, units=enabled or manifest.units)
    write_manifest(system.tree, manifest, system.manifest_file)
    return manifest


def write_change(change: FileChange, system: System) -> None:
    """Write one of the site's files.

    Raise SlurmwrapError when the file has changed since the plan was made, which may be minutes ago: no edit may be
    lost.
    """
    now = system.tree.read(change.path)
    if now is None or now.content != change.found.content:
        raise SlurmwrapError(
            f"{change.path} was changed while the command was running",
            hint="The command did not change the file. Run it again.",
        )
    system.tree.write(change.path, replace(change.found, content=change.after.encode("latin-1")))


def _keep_present_content(written: Written, plan: InstallationPlan) -> Written:
    """Return the record with the digest of the present content alone; older contents no longer matter."""
    now = [digest(item.content) for item in plan.items if str(item.path) == written.path]
    return replace(written, digests=tuple(now)) if now else written


def _make_intended_manifest(plan: InstallationPlan, before: Manifest | None) -> Manifest:
    known = {one.path for one in before.files} if before else set()
    files = [item for item in plan.items if item.state != SAME or str(item.path) in known]
    return Manifest(
        state=INSTALLING,
        release=__version__,
        settings=plan.wanted.to_plain(),
        directories=tuple(str(place.path) for place in plan.places if place.state == NEW),
        files=tuple(Written(path=str(item.path), kind=item.kind, digests=(digest(item.content),)) for item in files),
        edits=list_edited(plan, before),
        units=before.units if before else (),
    )


def reconfigure_slurm(system: System) -> None:
    """Run `scontrol reconfigure`, which makes slurmctld and every slurmd read slurm.conf again."""
    if not system.alive or not system.reconfigure:
        return
    result = run(["scontrol", "reconfigure"], timeout_s=_RECONFIGURE_S)
    if not result.ok:
        raise SlurmwrapError(
            f"scontrol reconfigure: {result.stderr.decode('utf-8', 'replace').strip() or 'no answer'}",
            hint="slurm.conf was edited. Run `scontrol reconfigure` when slurmctld answers, then this command again.",
        )
    system.say("slurmctld and the nodes have read slurm.conf again")


def _enable(plan: InstallationPlan, system: System) -> tuple[str, ...]:
    if not plan.enable or not system.systemd_runs:
        return ()
    run_systemctl(["daemon-reload"])
    run_systemctl(["enable", *plan.enable])
    # Units that already run were started from the earlier release.
    run_systemctl(["restart", *plan.enable])
    system.say(f"started {', '.join(plan.enable)}")
    return plan.enable


def run_systemctl(arguments: Sequence[str], *, must: bool = True) -> None:
    """Run systemctl. If it fails and `must` is set, raise SlurmwrapError with systemd's own message."""
    result = run(["systemctl", *arguments], timeout_s=_PATIENCE_S)
    if must and not result.ok:
        text = result.stderr.decode("utf-8", "replace").strip()
        raise SlurmwrapError(
            f"systemctl {' '.join(arguments)}: {text}", hint="The files are in place; see journalctl -xe."
        )


def restore_labels(paths: Sequence[Path], system: System) -> None:
    """Set the SELinux labels of `paths` according to the system's policy, if SELinux is active."""
    if system.alive and paths and os.path.exists("/sys/fs/selinux/enforce"):  # noqa: PTH110 - a flag of the kernel
        run(["restorecon", "-F", *map(str, paths)], timeout_s=_PATIENCE_S)
