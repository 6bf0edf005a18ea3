"""The Python interpreters of this machine, for code that runs in the user's own Python."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def find_pythons() -> list[str]:
    """One Python of each version 3.6 to 3.14 on this machine: from PATH, or below pyenv's root."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {f"3.{minor}": shutil.which(f"python3.{minor}") for minor in range(6, 15)}
    for path in sorted(root.glob("3.*/bin/python")):
        found[".".join(path.parent.parent.name.split(".")[:2])] = str(path)
    return [path for path in found.values() if path]
