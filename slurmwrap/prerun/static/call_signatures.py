"""Compare calls with the functions and classes defined in the user's own files: wrong arguments. Pure."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.static.imported_files import ProgramFile, ProgramImports
from slurmwrap.prerun.static.python_source import count_bindings, list_names_bound_by
from slurmwrap.prerun.static.word_tables import split_word_table

# Base classes whose __init__ is called with exactly the arguments that are given.
_PLAIN_BASES = split_word_table(
    """object nn.Module torch.nn.Module Module Dataset torch.utils.data.Dataset data.Dataset IterableDataset
    torch.utils.data.IterableDataset pl.LightningModule L.LightningModule LightningModule"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSignature:
    """The parameters of a definition, without `self`."""

    # Parameters that can be given by position.
    positional: tuple[str, ...]
    only_positional: int
    # Number of positional parameters without a default.
    required: int
    # Keyword-only parameters.
    keywords: frozenset[str]
    required_keywords: frozenset[str]
    any_positional: bool
    any_keyword: bool
    where: str


def list_signatures(tree: ast.Module, path: str = "") -> Mapping[str, CallSignature]:
    """Return the functions and plain classes of the module that are bound once and not decorated."""
    times = count_bindings(tree)
    found: dict[str, CallSignature] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and times[node.name] == 1 and not node.decorator_list:
            found[node.name] = _make_signature(
                node.args, f"{path or 'line'}{':' if path else ' '}{node.lineno}", bound=False
            )
        elif isinstance(node, ast.ClassDef) and times[node.name] == 1 and (init := _find_constructor(node)):
            found[node.name] = _make_signature(
                init.args, f"{path or 'line'}{':' if path else ' '}{init.lineno}", bound=True
            )
    return found


def _find_constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    """Return __init__ if instances are created by it alone, else None."""
    if node.decorator_list or node.keywords or not all(ast.unparse(base) in _PLAIN_BASES for base in node.bases):
        return None
    names = [name for statement in node.body for name in list_names_bound_by(statement)]
    if "__new__" in names or names.count("__init__") != 1:
        return None
    init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    return init if init is not None and not init.decorator_list and init.args.args else None


def _make_signature(arguments: ast.arguments, where: str, *, bound: bool) -> CallSignature:
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)][1 if bound else 0 :]
    defaults = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return CallSignature(
        positional=tuple(names),
        only_positional=max(0, len(arguments.posonlyargs) - bound),
        required=max(0, len(names) - len(arguments.defaults)),
        keywords=frozenset(a.arg for a in arguments.kwonlyargs),
        required_keywords=frozenset(a.arg for a, default in defaults if default is None),
        any_positional=arguments.vararg is not None,
        any_keyword=arguments.kwarg is not None,
        where=where,
    )


def find_misfit(call: ast.Call, takes: CallSignature) -> str:
    """Return what is wrong with the call, in Python's own words; "" if nothing is wrong or it cannot be known."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return ""
    given = {k.arg for k in call.keywords if k.arg}
    named = set(takes.positional[takes.only_positional :])
    if not takes.any_keyword and (unknown := sorted(given - named - takes.keywords)):
        return f"got an unexpected keyword argument {unknown[0]!r}"
    if len(call.args) > len(takes.positional) and not takes.any_positional:
        count = len(takes.positional)
        return f"takes {count} positional argument{'s' * (count != 1)} but {len(call.args)} are given"
    if twice := sorted(given & set(takes.positional[takes.only_positional : len(call.args)])):
        return f"got multiple values for argument {twice[0]!r}"
    left_out = [n for n in takes.positional[len(call.args) : takes.required] if n not in given]
    left_out += sorted(takes.required_keywords - given)
    return f"missing required argument {left_out[0]!r}" if left_out else ""


def list_imported_signatures(reached: ProgramFile, program: ProgramImports) -> Mapping[str, CallSignature]:
    """Return the functions of local modules that this file imports by name and binds nowhere else."""
    tree = reached.source.tree
    assert tree is not None
    found: dict[str, CallSignature] = {}
    times = count_bindings(tree)
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom):
            continue
        module = "." * node.level + (node.module or "")
        target = program.find(module, reached.folder)
        source = next((f.source for f in program.files if f.source.path == target.path and target.path), None)
        if source is None or source.tree is None or target.kind not in ("module", "package"):
            continue
        offered = list_signatures(source.tree, source.path)
        for alias in node.names:
            name = alias.asname or alias.name
            if alias.name in offered and times[name] == 1:
                found[name] = offered[alias.name]
    return found
