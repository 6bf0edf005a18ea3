"""Make the plan of an installation: the directories, files, edits and units that would change. Reads only."""

from __future__ import annotations

import fnmatch
import json
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slurmwrap.errors import SlurmwrapError
from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.host.hook_archive import Chained, render_hook_files
from slurmwrap.install import slurm_conf, systemd_units
from slurmwrap.install.compose_hooks import Composition, compose
from slurmwrap.install.install_target import InstallTarget, SystemAccount, find_account
from slurmwrap.install.manifest import Edited, Manifest, digest
from slurmwrap.install.safe_files import FileTree, FoundFile
from slurmwrap.install.slurm_conf import (
    BEGIN,
    KEPT,
    Edit,
    SlurmConfSetting,
    applied,
    holds,
    reverted,
    settings_of,
    stripped,
)
from slurmwrap.package_files import shipped


def has_spank_plugins(tree: FileTree, file: Path) -> bool:
    """Return whether the site has SPANK plugins, according to plugstack.conf (spank(7)).

    SPANK plugins may have a prolog and an epilog, to which Slurm applies the timeout of the hooks. A plugin that is
    named counts, and a file that is included and exists. Debian's plugstack.conf includes an empty directory.
    """
    found = tree.read(file)
    lines = found.content.decode("latin-1").splitlines() if found else []
    return any(_names_one(line.partition("#")[0].split(), tree, file) for line in lines)


def _names_one(words: list[str], tree: FileTree, file: Path) -> bool:
    if len(words) > 1 and words[0] == "include":
        # An absolute path is not joined to the directory.
        pattern = file.parent / words[1]
        return any(fnmatch.fnmatchcase(name, pattern.name) for name in tree.names(pattern.parent))
    return bool(words)


NEW, SAME, UPGRADE, CONFLICT = "new", "same", "upgrade", "conflict"
_HEADER = "# The site's configuration of slurmwrap. `slurmwrap config show` explains every key.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledDirectory:
    """A directory that the installation needs."""

    path: Path
    uid: int
    gid: int
    mode: int
    owner: str
    state: str = NEW  # NEW, SAME or CONFLICT
    text: str = ""  # what is wrong
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A file to be written, owned by root. `on_nodes`: every node needs it too."""

    path: Path
    kind: str
    content: bytes = field(repr=False)
    mode: int = 0o644
    state: str = NEW
    text: str = ""
    on_nodes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file of the site that is edited.

    `base`: its text without slurmwrap's lines; `after`: its text after the edit.
    """

    # With symbolic links resolved.
    path: Path
    found: FoundFile = field(repr=False)
    base: str = field(repr=False)
    after: str = field(repr=False)
    edit: Edit

    @property
    def before(self) -> str:
        """The present text of the file."""
        return self.found.content.decode("latin-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationPlan:
    """Everything that the installation would do. If there are `conflicts`, it does nothing."""

    wanted: InstallTarget
    release: tuple[int, int]
    places: tuple[InstalledDirectory, ...]
    items: tuple[Item, ...]
    changes: tuple[FileChange, ...]
    enable: tuple[str, ...]
    conflicts: tuple[str, ...]
    remarks: tuple[str, ...]
    restart: bool = False  # slurmctld must be restarted before EpilogSlurmctld runs
    controllers: tuple[str, ...] = ()  # other hosts of slurmctld, on which nothing is changed
    stale: tuple[str, ...] = ()  # files of an earlier installation that are no longer needed

    @property
    def node_items(self) -> tuple[Item, ...]:
        """The files that every node needs."""
        return tuple(item for item in self.items if item.on_nodes)

    @property
    def nothing_to_do(self) -> bool:
        """Whether everything is installed already."""
        settled = {place.state for place in self.places} | {item.state for item in self.items} == {SAME}
        return settled and all(one.before == one.after for one in self.changes) and not self.stale


def read_conf(
    tree: FileTree, path: Path, manifest: Manifest | None, *, edit: bool = True
) -> tuple[SlurmConfSetting, ...]:
    """Return the settings of slurm.conf and the files that it includes, without slurmwrap's own lines.

    With `edit` False, an administrator added slurmwrap's lines by request. They are recognized although no manifest has
    them.
    """
    return settings_of(str(tree.real(path)), lambda name: _read_base(tree, Path(name), manifest, edit=edit)[0])


def make_plan(
    target: InstallTarget,
    tree: FileTree,
    manifest: Manifest | None,
    release: tuple[int, int],
    *,
    command_found: bool = True,
    here: str = "",
) -> InstallationPlan:
    """Return the plan. `here`: this machine's name; "" for an image. Raise SlurmwrapError when files cannot be read."""
    main = tree.real(Path(target.slurm_conf))
    settings = read_conf(tree, main, manifest, edit=target.edit)
    together = compose(
        settings, directory=Path(target.directory), release=release, main=str(main),
        names_in=_list_names(tree, settings, manifest), cli_filter=target.cli_filter == "on",
        spank=has_spank_plugins(tree, main.parent / "plugstack.conf"),
    )  # fmt: skip
    slurm = find_account(tree, target.slurm_user)
    places = tuple(_check_directory(place, tree) for place in _list_directories(target, slurm, tree))
    items = tuple(_judge_item(item, tree, manifest) for item in _list_items(target, together, tree, main))
    _reject_open_paths([item.path for item in items if item.on_nodes], tree)
    changes = tuple(_change(edit, tree, manifest, target) for edit in together.edits)
    wrong = [place.text for place in places if place.state == CONFLICT]
    wrong += [item.text for item in items if item.state == CONFLICT]
    conflicts = (*together.conflicts, *_remark_on_filter(target, manifest, main), *wrong)
    hosts = slurm_conf.list_controller_hosts(settings)
    remarks = [*together.remarks, *_remark_on_config(target, tree, items)]
    remarks += _remark_on_configless(settings, together.edits, str(main))
    remarks += [text for text in (slurm_conf.explain_no_controller(hosts, here),) if text]
    if not command_found and target.units:
        remarks.append(f"There is no {target.command} here; the services start it.")
    paths = {str(item.path) for item in items}
    old = manifest.files if manifest else ()
    stale = tuple(one.path for one in old if one.path not in paths and one.kind != "config")
    return InstallationPlan(
        wanted=target, release=release, places=places, items=items, changes=changes,
        enable=systemd_units.ENABLED if target.units else (), conflicts=conflicts, remarks=tuple(remarks), stale=stale,
        restart=together.restart, controllers=slurm_conf.list_other_controllers(hosts, here),
    )  # fmt: skip


def _reject_open_paths(paths: list[Path], tree: FileTree) -> None:
    """Raise SlurmwrapError when a user other than root, SlurmUser included, could replace a program that root runs."""
    strict = replace(tree, trusted=frozenset({0, os.geteuid()}))
    for folder in dict.fromkeys(path.parent for path in paths):
        # This opens and checks every directory of the path.
        strict.names(folder)


def _read_base(tree: FileTree, path: Path, manifest: Manifest | None, *, edit: bool) -> tuple[str, FoundFile]:
    """Return (a configuration file's text without slurmwrap's lines, the file as it is)."""
    found = tree.read(path)
    if found is None:
        raise SlurmwrapError(f"there is no {path}", hint="Name slurm.conf with --slurm-conf.")
    text = found.content.decode("latin-1")
    known = manifest.edit_of(path) if manifest else None
    if known is not None and holds(text, known.edit):
        return reverted(text, known.edit, newline_at_end=known.newline_at_end), found
    if not edit and (BEGIN in text or KEPT in text):
        return stripped(text), found
    if BEGIN in text:
        raise SlurmwrapError(
            f"{path} holds lines of slurmwrap that no installation here knows of",
            hint=f"Remove the lines from '{BEGIN[:17]}' to the next line that ends the block, and plan again.",
        )
    return text, found


def _list_names(
    tree: FileTree, settings: tuple[SlurmConfSetting, ...], manifest: Manifest | None
) -> tuple[tuple[str, str], ...]:
    own_paths = {one.path for one in manifest.files} if manifest else set()
    folders = {str(Path(one.value).parent) for one in settings if one.key.lower() in ("prolog", "epilog")}
    found = []
    for folder in sorted(folder for folder in folders if folder.startswith("/") and not set("*?[") & set(folder)):
        found += [(folder, name) for name in tree.names(Path(folder)) if f"{folder}/{name}" not in own_paths]
    return tuple(found)


def _list_directories(target: InstallTarget, slurm: SystemAccount, tree: FileTree) -> list[InstalledDirectory]:
    own: dict[str, Any] = {"uid": slurm.uid, "gid": slurm.gid, "owner": slurm.name}
    state = Path(target.state_dir)
    named = [
        InstalledDirectory(path=Path(target.spool), mode=0o1733, why="observations of hooks until read", **own),
        InstalledDirectory(path=Path(target.published), mode=0o755, why="what all users may read", **own),
        InstalledDirectory(path=state, mode=0o700, why="the site's database", **own),
        InstalledDirectory(path=state / "controller", mode=0o700, why="records of EpilogSlurmctld", **own),
        InstalledDirectory(path=state / "reports", mode=0o700, why="the night's reports", **own),
    ]
    roots = [Path(target.directory), Path(target.config).parent, *([Path(target.units)] if target.units else [])]
    named += [InstalledDirectory(path=path, uid=0, gid=0, owner="root", mode=0o755) for path in roots]
    return _add_parents(named, tree)


def _add_parents(named: list[InstalledDirectory], tree: FileTree) -> list[InstalledDirectory]:
    """Add the missing parent directories, owned by root, each once and before its children."""
    found: dict[Path, InstalledDirectory] = {}
    mine = {place.path: place for place in named}
    for place in named:
        for parent in reversed(place.path.parents):
            if parent not in found and parent not in mine and tree.directory(parent) is None:
                found[parent] = InstalledDirectory(path=parent, uid=0, gid=0, owner="root", mode=0o755)
        found[place.path] = place
    return list(found.values())


def _check_directory(place: InstalledDirectory, tree: FileTree) -> InstalledDirectory:
    """Return `place` with its state. An existing directory is never changed; wrong owner or mode is a conflict."""
    there = tree.directory(place.path)
    if there is None:
        return place
    mode = there.st_mode & 0o7777
    # For shared directories as /etc/systemd/system it is enough that no other user can write there.
    plain = place.uid == 0 and place.mode == 0o755
    wrong = mode & 0o022 or there.st_uid != 0 if plain else (mode, there.st_uid) != (place.mode, place.uid)
    if not wrong:
        return _set_state(place, SAME, "")
    fix = f"chown {place.owner} {place.path} && chmod {place.mode:04o} {place.path}"
    return _set_state(
        place,
        CONFLICT,
        f"{place.path} is uid {there.st_uid}'s with mode {mode:04o}; it has to be {place.owner}'s with "
        f"{place.mode:04o}: {fix}",
    )


def _set_state(place: InstalledDirectory, state: str, text: str) -> InstalledDirectory:
    return replace(place, state=state, text=text)


def _list_items(target: InstallTarget, together: Composition, tree: FileTree, main: Path) -> list[Item]:
    chains = tuple(Chained(name=one.name, first=one.first, site=one.site) for one in together.chains)
    hooks = render_hook_files(target.hooks, chains)
    items = [
        Item(path=Path(target.directory) / one.name, kind="hook", content=one.content, mode=one.mode, on_nodes=True)
        for one in hooks
    ]
    by_name = {one.name: one.content for one in hooks}
    items += [
        Item(path=path, kind="copy", content=by_name[hook], mode=0o755, on_nodes=True) for path, hook in together.copies
    ]
    config = Path(target.config)
    if tree.read(config) is None:
        items.append(Item(path=config, kind="config", content=make_config_text(target).encode()))
    if target.cli_filter != "off":
        text = (shipped("hooks") / "cli_filter.lua").read_bytes()
        items.append(Item(path=main.parent / "cli_filter.lua", kind="filter", content=text, on_nodes=True))
    if target.units:
        for name, unit in systemd_units.rendered(target, read_configuration(target, tree)):
            items.append(Item(path=Path(target.units) / name, kind="unit", content=unit.encode()))
    return items


def _judge_item(item: Item, tree: FileTree, manifest: Manifest | None) -> Item:
    there = tree.read(item.path)
    if there is None:
        return item
    own_digests = manifest.digests_of(item.path) if manifest else ()
    if there.content == item.content:
        return replace(item, state=SAME)
    if item.kind == "config":
        # The configuration belongs to the administrator, even if slurmwrap created it.
        return replace(item, state=SAME, content=there.content)
    if digest(there.content) in own_digests or (not own_digests and _is_adoptable(item, there.content)):
        return replace(item, state=UPGRADE)
    if own_digests:
        text = f"{item.path} was changed since slurmwrap wrote it: move it away and run the command again"
    elif item.kind == "filter":
        text = (
            f"{item.path} is there already and not slurmwrap's: add the code of {shipped('hooks') / 'cli_filter.lua'} "
            "to its slurm_cli_pre_submit, and install with --cli-filter off"
        )
    else:
        text = f"{item.path} is there already and not slurmwrap's: move it away, or choose another place"
    return replace(item, state=CONFLICT, text=text)


def _change(edit: Edit, tree: FileTree, manifest: Manifest | None, target: InstallTarget) -> FileChange:
    path = Path(edit.file)
    base, found = _read_base(tree, path, manifest, edit=target.edit)
    return FileChange(path=path, found=found, base=base, after=applied(base, edit), edit=edit)


def make_config_text(target: InstallTarget) -> str:
    """Return a new configuration file, whose [site] has the installation's settings; other keys have their defaults."""
    keys = {
        "spool": target.spool,
        "published": target.published,
        "state_dir": target.state_dir,
        "munge_socket": target.munge_socket,
        "slurm_user": target.slurm_user,
    }
    lines = [f"{key} = {_format_toml(value)}" for key, value in keys.items() if value]
    return f"{_HEADER}[site]\n" + "\n".join(lines) + "\n"


def _format_toml(text: str) -> str:
    # JSON strings are valid basic strings of TOML.
    return json.dumps(text)


def read_configuration(target: InstallTarget, tree: FileTree) -> dict[str, Any]:
    """Return the site's configuration file as a dict; {} when there is none or it is not valid TOML."""
    found = tree.read(Path(target.config))
    try:
        return tomllib.loads(found.content.decode("utf-8")) if found else {}
    except ValueError:
        return {}


def _remark_on_filter(target: InstallTarget, manifest: Manifest | None, main: Path) -> list[str]:
    """Return why `--cli-filter on` is not possible yet, if so.

    Slurm refuses every sbatch and srun on a host whose configuration names the plugin and that lacks its file (seen on
    22.05.8), and slurmwrap cannot write to login nodes.
    """
    if target.cli_filter not in ("off", "files", "on"):
        return [f"--cli-filter {target.cli_filter} is unknown: it is off, files or on"]
    laid = manifest is not None and any(one.kind == "filter" for one in manifest.files)
    if target.cli_filter != "on" or laid:
        return []
    return [
        f"--cli-filter on: Slurm refuses every sbatch and srun on a host without {main.parent / 'cli_filter.lua'}. "
        "First install with --cli-filter files, bring that file to every login node, then --cli-filter on"
    ]


def _remark_on_configless(settings: Iterable[SlurmConfSetting], edits: Iterable[Edit], main: str) -> tuple[str, ...]:
    """Return a remark for each included file that is edited and that configless nodes may not get."""
    parameters = [one.value.lower() for one in slurm_conf.named(settings, "SlurmctldParameters")]
    if not any("enable_configless" in value.split(",") for value in parameters):
        return ()
    return tuple(
        f"{edit.file}: Slurm sends it to configless nodes only if its Include line has no path and it is beside "
        f"slurm.conf. `slurmwrap hooks check --nodes all` shows whether the nodes have the lines."
        for edit in edits
        if edit.file != main
    )


def _is_adoptable(item: Item, there: bytes) -> bool:
    """Return whether a file in the hooks' directory is an older one of slurmwrap that no manifest lists."""
    signs = {"node_hooks.pyz": b"node_hooks/hook_main.py", "hooks.json": b'"node_state_dir"'}
    return item.kind == "hook" and signs.get(item.path.name, b"\n# slurmwrap: ") in there


def _remark_on_config(target: InstallTarget, tree: FileTree, items: tuple[Item, ...]) -> list[str]:
    """Return a remark with the keys that are missing or different in the site's own configuration file."""
    if any(item.kind == "config" and item.state == NEW for item in items):
        return []
    site = read_configuration(target, tree).get("site", {})
    needed = {"spool": target.spool, "published": target.published, "state_dir": target.state_dir}
    needed |= {"munge_socket": target.munge_socket} if target.munge_socket else {}
    missing = [
        f"{key} = {_format_toml(value)}"
        for key, value in needed.items()
        if not isinstance(site, dict) or site.get(key) != value
    ]
    if not missing:
        return []
    return [f"{target.config} is the site's own and stays. Its [site] needs: {'; '.join(missing)}"]


def list_edited(plan: InstallationPlan, manifest: Manifest | None) -> tuple[Edited, ...]:
    """Return the edits as the manifest records them."""
    return tuple(
        Edited(edit=one.edit, original=one.base.encode("latin-1"), newline_at_end=one.base.endswith("\n"))
        for one in plan.changes
    )
