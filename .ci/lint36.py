"""Lint folders that run under the user's or the node's own Python: Python 3.6 syntax, standard library only.

Usage: lint36.py FOLDER...  Prints one line per finding and exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

# Optional modules that the code imports in try/except, inside the user's program or to query the driver.
OPTIONAL = {"torch", "pynvml", "keras", "jax", "deepspeed", "sitecustomize", "slurmwrap_step"}


def imports_of(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def findings(path: Path, local: set[str]) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path), feature_version=(3, 6))
    except SyntaxError as error:
        return [f"{path}:{error.lineno}: not Python 3.6: {error.msg}"]
    foreign = imports_of(tree) - set(sys.stdlib_module_names) - OPTIONAL - local
    return [f"{path}: imports {name}, which is not in the standard library" for name in sorted(foreign)]


def main(folders: list[str]) -> int:
    found = []
    for folder in map(Path, folders):
        files = sorted(folder.rglob("*.py"))
        local = {file.stem for file in files} | {folder.name}
        found += [line for file in files for line in findings(file, local)]
    print("\n".join(found) if found else "Python 3.6 syntax and standard library: ok")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
