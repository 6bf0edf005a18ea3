"""Whether a site has SPANK plugins: they may have a prolog and an epilog, to which Slurm applies the hooks' timeout."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from slurmwrap.install.safe_files import FileTree


def plugins_there(tree: FileTree, file: Path) -> bool:
    """By plugstack.conf (spank(7)): a plugin named there, or a file that is included. Debian's own includes an empty
    directory."""
    found = tree.read(file)
    lines = found.content.decode("latin-1").splitlines() if found else []
    return any(_names_one(line.partition("#")[0].split(), tree, file) for line in lines)


def _names_one(words: list[str], tree: FileTree, file: Path) -> bool:
    if len(words) > 1 and words[0] == "include":
        pattern = file.parent / words[1]  # a full path stays as it is
        return any(fnmatch.fnmatchcase(name, pattern.name) for name in tree.names(pattern.parent))
    return bool(words)
