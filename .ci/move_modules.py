"""Move modules of the checkout and rewrite every reference to them: `.venv/bin/python .ci/move_modules.py MOVES`.

MOVES is a file of lines "OLD NEW", paths from the root of the checkout; a folder stands for all in it, `#` begins a
comment. Imports are rewritten by the syntax tree. Where a module's base name changes, the code that imports it is
rewritten by its tokens. Dotted names and paths in other text (documentation, comments, configuration) are replaced as
text. What cannot be decided is printed. Afterwards run `make format` and `make lint`, and read the diff.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PACKAGE = "slurmwrap"
TEXT = {".py", ".md", ".toml", ".sh", ".yml", ".yaml", ".j2", ".cfg", ".txt", ".in", ""}
UNCHANGED = ("CHANGELOG.md", "LICENSE", ".ci/moves/", "tests/data/")


@dataclass(frozen=True, slots=True)
class Moves:
    """`files`: path -> new path. `folders`: the folders that moved whole. `modules`: dotted name -> new dotted name."""

    files: Mapping[str, str]
    folders: Mapping[str, str]
    modules: Mapping[str, str]


def list_tracked() -> list[str]:
    """The files of git's index that are there."""
    out = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    return [name for name in out.split("\0") if name and Path(name).exists()]


def name_module(path: str) -> str:
    """The dotted name of a file: a/b/__init__.py is a.b."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_moves(lines: Iterable[str], tracked: Iterable[str]) -> Moves:
    """The table of moves, folders resolved into their files."""
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for line in lines:
        if words := line.split("#")[0].split():
            old, new = (word.rstrip("/") for word in words)
            if Path(old).is_dir():
                folders[old] = new
                files.update({name: new + name[len(old) :] for name in tracked if name.startswith(f"{old}/")})
            else:
                files[old] = new
    for old, new in files.items():
        if old.endswith("/__init__.py"):
            folders[old.rpartition("/")[0]] = new.rpartition("/")[0]
    ours = {old: new for old, new in files.items() if old.startswith(f"{PACKAGE}/") and old.endswith(".py")}
    return Moves(files, folders, {name_module(old): name_module(new) for old, new in ours.items()})


def rewrite_imports(text: str, path: str, moves: Moves, modules: set[str]) -> tuple[str, list[str]]:
    """`text` of the file at `path` with its imports of moved modules rewritten, and what a person must look at.

    `modules`: the dotted names of all modules before the move.
    """
    tree = ast.parse(text)
    new_path = moves.files.get(path, path)
    package, new_package = (
        name_module(one) if one.endswith("__init__.py") else name_module(one).rpartition(".")[0]
        for one in (path, new_path)
    )
    edits: list[tuple[ast.ImportFrom, list[tuple[str, list[str]]]]] = []
    renames: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
        module = ".".join(filter(None, (base, node.module)))
        if module.split(".")[0] != PACKAGE:
            continue
        groups: dict[str, list[str]] = {}
        for alias in node.names:
            full = f"{module}.{alias.name}"
            parent, name = moves.modules.get(module, module), alias.name
            if full in modules:
                parent, _, name = moves.modules.get(full, full).rpartition(".")
                if name != alias.name and not alias.asname:
                    renames[alias.name] = name
            if node.level and f"{parent}.".startswith(f"{new_package}."):
                parent = f".{parent[len(new_package) + 1 :]}"
            redundant = alias.asname == name != alias.name  # and "X as X" is meant: X is offered here too
            alias_text = f" as {alias.asname}" if alias.asname and not redundant else ""
            groups.setdefault(parent, []).append(name + alias_text)
        before = "." * node.level + (node.module or "")
        kept = {before: [a.name + (f" as {a.asname}" if a.asname else "") for a in node.names]}
        if groups != kept:
            edits.append((node, list(groups.items())))
    notes = []
    taken = _names_of(tree)
    for old, new in list(renames.items()):
        if old in _stored_in(tree) or new in taken:
            notes.append(f"{new_path}: imports {new} as {old}, for {new if new in taken else old} means something else")
            del renames[old]
            for _, statements in edits:
                for _, words in statements:
                    words[:] = [f"{new} as {old}" if word == new else word for word in words]
    lines = text.splitlines(keepends=True)
    for node, statements in sorted(edits, key=lambda edit: -edit[0].lineno):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        written = [f"from {parent} import {', '.join(words)}" for parent, words in statements]
        lines[first : last + 1] = [head + f"\n{' ' * node.col_offset}".join(written) + tail]
    return rename_names("".join(lines), renames), notes


def _names_of(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | _stored_in(tree)


def _stored_in(tree: ast.AST) -> set[str]:
    """Names that the file gives to something of its own."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    found |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return found | {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def rename_names(text: str, renames: Mapping[str, str]) -> str:
    """`text` with these names replaced: not attributes, keywords of calls and import statements; also in f-strings."""
    if not renames:
        return text
    lines = text.splitlines(keepends=True)
    inside = re.compile(r"(?<=\{)(" + "|".join(map(re.escape, renames)) + r")(?=[.(\[])")
    previous, in_import = "\n", False
    edits: list[tuple[int, int, str, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        (row, column), found = token.start, token.string
        if token.type == tokenize.NAME:
            in_import = in_import or (found in ("import", "from") and not previous.strip())
            keyword = re.match(r"\s*=(?!=)", lines[row - 1][column + len(found) :])
            if found in renames and not in_import and previous != "." and not keyword:
                edits.append((row, column, found, renames[found]))
        elif token.type == tokenize.STRING and "f" in found.partition('"')[0].partition("'")[0].lower():
            if token.start[0] == token.end[0]:
                edits.append((row, column, found, inside.sub(lambda match: renames[match[1]], found)))
        elif token.type == tokenize.NEWLINE:
            in_import = False
        if token.type != tokenize.COMMENT:
            previous = found
    for row, column, old, new in reversed(edits):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + new + line[column + len(old) :]
    return "".join(lines)


def list_replacements(moves: Moves) -> dict[str, str]:
    """Paths as texts name them: from the root or from the package, with and without .py, folders with their slash."""
    found = {**moves.files, **moves.folders}
    folders = {f"{old}/": f"{new}/" for old, new in moves.folders.items()}
    for old, new in (*moves.files.items(), *folders.items()):
        short, short_new = old.removeprefix(f"{PACKAGE}/"), new.removeprefix(f"{PACKAGE}/")
        if "/" in short:
            found[short] = short_new
    files = [(old, new) for old, new in found.items() if old.endswith(".py")]
    return {**found, **{old.removesuffix(".py"): new.removesuffix(".py") for old, new in files}}


def list_test_modules(moves: Moves) -> dict[str, str]:
    """Base names of moved tests: tests import each other by these (pythonpath in pyproject.toml)."""
    names = [(Path(old).stem, Path(new).stem) for old, new in moves.files.items() if old.endswith(".py")]
    return {old: new for old, new in names if old != new and old.startswith("test_")}


def compile_any(words: Iterable[str], before: str, after: str) -> re.Pattern[str]:
    """An expression for any of `words`, the longest first."""
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(f"(?<!{before})({'|'.join(map(re.escape, longest_first))})(?!{after})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("moves", type=Path)
    tracked = list_tracked()
    moves = read_moves(parser.parse_args().moves.read_text(encoding="utf-8").splitlines(), tracked)
    modules = {name_module(name) for name in tracked if name.startswith(f"{PACKAGE}/") and name.endswith(".py")}
    paths = list_replacements(moves)
    dotted = compile_any(moves.modules, r"[\w.]", r"[\w(]") if moves.modules else None
    slashed = compile_any(paths, r"[\w/.-]", r"[\w-]")
    linked = compile_any({f"../{old}": "" for old in paths}, r"[\w-]", r"[\w-]")  # a link from one page to a file
    tests = list_test_modules(moves)
    helped = compile_any(tests, r"[\w.]", r"\w")
    for name in tracked:
        path = Path(name)
        if name.startswith(UNCHANGED) or path.suffix not in TEXT or path.is_symlink():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        after, notes = text, []
        if path.suffix == ".py" and (PACKAGE in text or name in moves.files):
            after, notes = rewrite_imports(text, name, moves, modules)
        if dotted:
            after = dotted.sub(lambda match: moves.modules[match[1]], after)
        after = slashed.sub(lambda match: paths[match[1]], after)
        after = linked.sub(lambda match: "../" + paths[match[1][3:]], after)
        if name.startswith("tests/") and tests:
            imports = re.compile(r"^\s*(?:from|import) .*", re.MULTILINE)
            after = imports.sub(lambda line: helped.sub(lambda match: tests[match[1]], line[0]), after)
        if after != text:
            path.write_text(after, encoding="utf-8")
        print(*notes, sep="\n", end="\n" if notes else "")
    for old, new in moves.files.items():
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", "-k", old, new], check=True)


if __name__ == "__main__":
    main()
