"""Edge: does what a plan says, in an order in which a crash at any point leaves a working cluster.

slurm.conf names our files only after they lie on every node that shall run them; until then nothing of Slurm has
changed. Before anything is written the manifest says what will be: a second `install` goes on, `uninstall` takes back.
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
# slurmctld answers when it is done, on a large cluster that has jobs after a minute and more
_RECONFIGURE_S = 300.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Which running services are reloaded for the change. In an image (`tree.root` not "/") nothing is."""

    tree: FileTree
    manifest_file: Path = FILE
    reconfigure: bool = True
    systemd: bool = True
    say: Say = lambda text: None

    @property
    def alive(self) -> bool:
        """Whether it is the system that we run in."""
        return self.tree.root == Path("/")

    @property
    def here(self) -> str:
        """This machine's name; "" for an image."""
        return os.uname().nodename if self.alive else ""

    @property
    def systemd_runs(self) -> bool:
        """Whether systemctl would find someone."""
        return self.systemd and self.alive and _SYSTEMD_RUNS.is_dir()


def prepare(plan: InstallationPlan, system: System, before: Manifest | None) -> Manifest:
    """Everything but Slurm's configuration: manifest, directories, files here. Returns what is now written down."""
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


def switch_on(plan: InstallationPlan, system: System, manifest: Manifest, *, unfinished: bool) -> Manifest:
    """slurm.conf, slurmctld, systemd; then the files of an earlier release that no longer belong.

    `unfinished`: an earlier attempt may have edited slurm.conf and not come to reconfigure Slurm.
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
    """One of the site's files. SlurmwrapError where it is not any more what the plan was made of: minutes may pass
    between, and no one's edit may be lost."""
    now = system.tree.read(change.path)
    if now is None or now.content != change.found.content:
        raise SlurmwrapError(
            f"{change.path} was changed by somebody while this was at work",
            hint="Nothing was done to it. Do the same again.",
        )
    system.tree.write(change.path, replace(change.found, content=change.after.encode("latin-1")))


def _keep_present_content(written: Written, plan: InstallationPlan) -> Written:
    """Only what lies there now: an older content is no one's business any more."""
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
    """`scontrol reconfigure`, which makes slurmctld and every slurmd read slurm.conf again."""
    if not system.alive or not system.reconfigure:
        return
    told = run(["scontrol", "reconfigure"], timeout_s=_RECONFIGURE_S)
    if not told.ok:
        raise SlurmwrapError(
            f"scontrol reconfigure: {told.stderr.decode('utf-8', 'replace').strip() or 'no answer'}",
            hint="slurm.conf is written. Run `scontrol reconfigure` when slurmctld answers, then this again.",
        )
    system.say("slurmctld and the nodes have read slurm.conf again")


def _enable(plan: InstallationPlan, system: System) -> tuple[str, ...]:
    if not plan.enable or not system.systemd_runs:
        return ()
    run_systemctl(["daemon-reload"])
    run_systemctl(["enable", *plan.enable])
    # What ran before is of the release, and of the units, before.
    run_systemctl(["restart", *plan.enable])
    system.say(f"started {', '.join(plan.enable)}")
    return plan.enable


def run_systemctl(arguments: Sequence[str], *, must: bool = True) -> None:
    """SlurmwrapError with systemd's own words when it `must` work."""
    told = run(["systemctl", *arguments], timeout_s=_PATIENCE_S)
    if must and not told.ok:
        text = told.stderr.decode("utf-8", "replace").strip()
        raise SlurmwrapError(
            f"systemctl {' '.join(arguments)}: {text}", hint="The files are in place; see journalctl -xe."
        )


def restore_labels(paths: Sequence[Path], system: System) -> None:
    """SELinux's labels as the system's policy wants them, where there is SELinux."""
    if system.alive and paths and os.path.exists("/sys/fs/selinux/enforce"):  # noqa: PTH110 - a flag of the kernel's
        run(["restorecon", "-F", *map(str, paths)], timeout_s=_PATIENCE_S)
