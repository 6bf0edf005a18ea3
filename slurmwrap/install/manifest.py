"""The manifest of an installation, by which it can be removed: written before each step, kept until all is removed.

A JSON file that only root can read. It has the digest of every file written and the original bytes of every file
edited.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from slurmwrap.errors import SlurmwrapError
from slurmwrap.fast_dataclasses import asdict, dataclass, field, replace
from slurmwrap.install.safe_files import FileTree, FoundFile
from slurmwrap.install.slurm_conf import Edit

VERSION = 1
FILE = Path("/var/lib/slurmwrap-install/manifest.json")
INSTALLING, INSTALLED, REMOVING = "installing", "installed", "removing"
# Removed, except for data or for files on nodes that were not available; a later `uninstall` removes these.
REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file of slurmwrap. `digests`: SHA-256 of every content that was ever written or planned for it."""

    path: str
    # "hook", "copy" (in a directory of the site, on nodes too), "unit", "config", "filter"
    kind: str
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """A file of the site that was edited. `original`: its bytes before the edit."""

    edit: Edit
    original: bytes
    newline_at_end: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The record of an installation.

    `settings`: the InstallTarget, so that an upgrade needs no options. `nodes`: name -> digest of the files sent there.
    """

    state: str = INSTALLING
    release: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    # Directories that the installation created, parents first.
    directories: tuple[str, ...] = ()
    files: tuple[Written, ...] = ()
    edits: tuple[Edited, ...] = ()
    units: tuple[str, ...] = ()  # units that the installation enabled
    nodes: dict[str, str] = field(default_factory=dict)

    def digests_of(self, path: Path) -> tuple[str, ...]:
        """Return the digests of a file; () when it is not slurmwrap's."""
        return next((one.digests for one in self.files if one.path == str(path)), ())

    def edit_of(self, path: Path) -> Edited | None:
        """Return the edit of a file; None when it was not edited."""
        return next((one for one in self.edits if one.edit.file == str(path)), None)


def digest(content: bytes) -> str:
    """Return the SHA-256 digest in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def read_manifest(tree: FileTree, file: Path = FILE) -> Manifest | None:
    """Return the manifest; None when nothing is installed. Raise SlurmwrapError when it is damaged or newer."""
    found = tree.read(file)
    if found is None:
        return None
    try:
        return _from_json(json.loads(found.content))
    except (ValueError, KeyError, TypeError) as error:
        raise SlurmwrapError(
            f"{file} cannot be read: {error}", hint="It was written by a newer slurmwrap, or damaged: nothing was done."
        ) from error


def write_manifest(tree: FileTree, manifest: Manifest, file: Path = FILE) -> None:
    """Replace the manifest atomically. Only root can enter its directory, because it determines what root removes."""
    if tree.directory(file.parent) is None:
        # A bare image may lack even /var.
        for parent in reversed(file.parent.parents):
            if tree.directory(parent) is None:
                tree.make_directory(parent, 0o755, 0, 0)
        tree.make_directory(file.parent, 0o700, 0, 0)
    content = json.dumps(_to_json_dict(manifest), indent=1).encode() + b"\n"
    tree.write(file, FoundFile(content=content, mode=0o600, uid=0, gid=0))


def remove_manifest(tree: FileTree, file: Path = FILE) -> None:
    """Remove the manifest and its directory; the last step of an uninstallation."""
    tree.remove(file)
    tree.remove_directory(file.parent)


def join_manifests(old: Manifest | None, new: Manifest) -> Manifest:
    """Return `new` with the directories that `old` created and all contents that may be at each path."""
    old = old if old is not None else Manifest()
    before = {one.path: one for one in old.files}
    files = [_join_written(before.pop(one.path, one), one) for one in new.files] + list(before.values())
    made = tuple(dict.fromkeys((*old.directories, *new.directories)))
    in_order = tuple(sorted(files, key=lambda one: one.path))
    return replace(new, directories=made, files=in_order, nodes={**old.nodes, **new.nodes})


def _join_written(old: Written, new: Written) -> Written:
    return replace(new, digests=tuple(dict.fromkeys((*old.digests, *new.digests))))


def _to_json_dict(manifest: Manifest) -> dict[str, Any]:
    plain = {**asdict(manifest), "version": VERSION}
    plain["edits"] = [
        {**asdict(one), "original": base64.b64encode(one.original).decode("ascii")} for one in manifest.edits
    ]
    return plain


def _from_json(plain: dict[str, Any]) -> Manifest:
    if plain.pop("version") != VERSION:
        raise ValueError("it has another version")
    files = tuple(Written(**{**one, "digests": tuple(one["digests"])}) for one in plain["files"])
    texts = {name: tuple(plain[name]) for name in ("directories", "units")}
    return Manifest(**{**plain, **texts, "files": files, "edits": tuple(map(_parse_edited, plain["edits"]))})


def _parse_edited(plain: dict[str, Any]) -> Edited:
    edit = plain["edit"]
    swaps = tuple((old, new) for old, new in edit["swaps"])
    return Edited(
        edit=Edit(**{**edit, "swaps": swaps, "block": tuple(edit["block"])}),
        original=base64.b64decode(plain["original"], validate=True),
        newline_at_end=bool(plain["newline_at_end"]),
    )
