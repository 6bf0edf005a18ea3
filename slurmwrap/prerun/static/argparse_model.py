"""Read which options a program takes from the text of its add_argument calls: a ProgramImports becomes a Parser. Pure.

The result is None, or not `certain`, whenever the text leaves a doubt: options made in a loop, parsers passed to
packages, parse_known_args, subclasses, other libraries. The rules are those of argparse's documentation, Python 3.8 to
3.14.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.prerun.static.imported_files import ProgramFile, ProgramImports, is_main_test

# Names of libraries and methods that add options or parse in another way.
_UNSUPPORTED = (
    b"parse_known_args",
    b"parse_known_intermixed_args",
    b"parse_intermixed_args",
    b"configargparse",
    b"jsonargparse",
    b"simple_parsing",
    b"HfArgumentParser",
    b"LightningCLI",
    b"add_argparse_args",
    b"from_argparse_args",
    b"prefix_chars",
    b"import fire",
    b"import tyro",
    b"import click",
    b"import typer",
    b"import hydra",
    b"absl",
    b"conflict_handler",
)
_HARMLESS_CALLS = frozenset({"print", "isinstance", "autocomplete", "type", "id", "len", "ArgumentParser", "ArgParser"})
_DEEPSPEED = ("--deepspeed", "--deepspeed_config", "--deepscale", "--deepscale_config", "--deepspeed_mpi")
_ACTIONS_WITHOUT_VALUE = frozenset(
    {"store_true", "store_false", "store_const", "append_const", "count", "help", "version"}
)
_KNOWN_ACTIONS = _ACTIONS_WITHOUT_VALUE | {"store", "append", "extend"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgparseOption:
    """One add_argument call."""

    # Empty for a positional argument.
    flags: tuple[str, ...]
    name: str
    # "?" for a class.
    action: str = "store"
    # "unknown" if it is not a constant.
    nargs: str | int | None = None
    # The source text of `type=`.
    type: str = ""
    choices: tuple[object, ...] | None = None
    required: bool = False
    # It is added whenever its function runs.
    sure: bool = True
    # It is added by the function that also parses the command line.
    home: bool = False
    where: str = ""

    @property
    def takes_value(self) -> bool:
        """Whether one or more words follow it as its value."""
        return self.action not in _ACTIONS_WITHOUT_VALUE and self.action != "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """All options that the program may take."""

    options: tuple[ArgparseOption, ...]
    abbreviations: bool
    subcommands: bool
    # It is known to parse the whole command line, and no option is added elsewhere.
    certain: bool

    def by_flag(self) -> Mapping[str, tuple[ArgparseOption, ...]]:
        """Return each flag with its definitions. There are several if groups or subcommands repeat the flag."""
        found: dict[str, tuple[ArgparseOption, ...]] = {}
        for option in self.options:
            for flag in option.flags:
                found[flag] = (*found.get(flag, ()), option)
        return found


def read_parser(program: ProgramImports) -> Parser | None:
    """Return the parser of the command line; None if there is none or nothing certain is known about it."""
    files = [f for f in program.files if f.source.tree is not None]
    if not program.whole or len(files) != len(program.files) or any(f.source.mentions(*_UNSUPPORTED) for f in files):
        return None
    parses = [(f, call) for f in files for call in _list_parse_calls(f, f is program.files[0])]
    if len(parses) != 1 or _has_unread_module(program):
        return None
    reached, call = parses[0]
    local = {n.name for f in files for n in ast.walk(_get_tree(f)) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    if not _is_plain_parser(call, files, local) or any(not _are_parsers_kept_local(f, local, program) for f in files):
        return None
    home = _find_enclosing_nodes(_get_tree(reached), call)
    options = [option for f in files for option in _list_options(f, home if f is reached else frozenset())]
    if any(option is None for option in options):
        return None
    adds = [option for option in options if option is not None]
    if any(f.source.mentions(b"add_config_arguments") for f in files):
        adds += [ArgparseOption(flags=(flag,), name=flag, nargs="unknown", where="deepspeed") for flag in _DEEPSPEED]
    argv = any(f.source.mentions(b"argv") for f in files)
    return Parser(
        options=tuple(adds),
        abbreviations=not any(f.source.mentions(b"allow_abbrev") for f in files),
        subcommands=any(f.source.mentions(b"add_subparsers") for f in files),
        certain=reached.sure and not argv and not call.args and not call.keywords,
    )


def _get_tree(reached: ProgramFile) -> ast.Module:
    assert reached.source.tree is not None
    return reached.source.tree


def _has_unread_module(program: ProgramImports) -> bool:
    """Return whether a local module could not be read. It might add options."""
    return any(
        program.find(one.module, reached.folder).kind in ("opaque", "missing")
        for reached in program.files
        for one in reached.imports
        if not (one.module.startswith(".") and not reached.folder)
    )


def _list_parse_calls(reached: ProgramFile, is_entry: bool) -> Iterator[ast.Call]:
    """Yield the calls of parse_args, except those that run only if another file is the program."""
    skipped: set[int] = set()
    if not is_entry:
        for part in _get_tree(reached).body:
            if isinstance(part, ast.If) and is_main_test(part.test):
                skipped |= {id(child) for child in ast.walk(part)}
    for node in ast.walk(_get_tree(reached)):
        if isinstance(node, ast.Call) and id(node) not in skipped and _get_method_name(node) == "parse_args":
            yield node


def _get_method_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_plain_parser(call: ast.Call, files: Sequence[ProgramFile], local: set[str]) -> bool:
    """Return whether parse_args is called on an argparse.ArgumentParser made in the user's own files."""
    if not _has_plain_arguments(call) or not any(
        _is_plain_parser_call(node) for f in files for node in ast.walk(_get_tree(f))
    ):
        return False
    assert isinstance(call.func, ast.Attribute)
    parser_expression = call.func.value
    if isinstance(parser_expression, ast.Call):
        return _is_plain_parser_call(parser_expression) or _get_last_name(parser_expression.func) in local
    name = _get_last_name(parser_expression)
    # `args = args.parse_args()` assigns the result to the parser's own name, so this value is left out.
    values = [v for f in files for v in _list_assigned_values(_get_tree(f), name) if v is not call]
    return bool(values) and all(
        isinstance(v, ast.Call)
        and (_is_plain_parser_call(v) or _get_last_name(v.func) in local | {"add_config_arguments"})
        for v in values
    )


def _has_plain_arguments(call: ast.Call) -> bool:
    given = [*call.args, *(k.value for k in call.keywords)]
    return all(
        isinstance(a, (ast.Name, ast.Subscript)) or (isinstance(a, ast.Constant) and a.value is None) for a in given
    )


def _list_assigned_values(tree: ast.Module, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(_get_last_name(t) == name for t in targets):
            yield node.value


def _is_plain_parser_call(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("argparse.ArgumentParser", "ArgumentParser"):
        return False
    return not any(k.arg in (None, "fromfile_prefix_chars") for k in node.keywords)


def _get_last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _are_parsers_kept_local(reached: ProgramFile, local: set[str], program: ProgramImports) -> bool:
    """Return whether no parser of this file is passed to code that cannot be read, and none is subclassed."""
    tree = _get_tree(reached)
    names = _find_parser_names(tree)
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    known = local | _HARMLESS_CALLS | {"add_config_arguments"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(_get_last_name(b) == "ArgumentParser" for b in node.bases):
            return False
        if isinstance(node, ast.Attribute) and node.attr == "add_argument" and id(node) not in called:
            return False
        if not isinstance(node, ast.Call) or (
            _get_last_name(node.func) in known and not _is_package_call(node, reached, program)
        ):
            if isinstance(node, ast.Call) and _is_plain_parser_call(node) and not _has_own_parents(node, tree, local):
                return False
            continue
        if any(_get_last_name(a) in names for a in _list_passed_values(node)):
            return False
    return True


def _is_package_call(call: ast.Call, reached: ProgramFile, program: ProgramImports) -> bool:
    """Return whether the call is `package.add_args(parser)`, whatever the user's own functions are called."""
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    if (
        not isinstance(root, ast.Name)
        or root is call.func
        or _get_last_name(call.func) in _HARMLESS_CALLS | {"add_config_arguments"}
    ):
        return False
    for node in ast.walk(_get_tree(reached)):
        names = (
            [a.asname or a.name.split(".")[0] for a in node.names]
            if isinstance(node, (ast.Import, ast.ImportFrom))
            else []
        )
        if root.id in names:
            module = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else root.id
            return program.find(module, reached.folder).kind == "elsewhere"
    return False


def _has_own_parents(call: ast.Call, tree: ast.Module, local: set[str]) -> bool:
    """Return whether all parsers in `parents=[...]` are made in the user's own files."""
    given = next((k.value for k in call.keywords if k.arg == "parents"), None)
    if given is None:
        return True
    if not isinstance(given, (ast.List, ast.Tuple)):
        return False
    own = local | {_get_last_name(t) for n in ast.walk(tree) if isinstance(n, ast.Assign) for t in n.targets}
    return all(_get_last_name(e.func if isinstance(e, ast.Call) else e) in own for e in given.elts)


_GROUPS = ("add_argument_group", "add_mutually_exclusive_group")


def _find_parser_names(tree: ast.Module) -> set[str]:
    """Return the names of the parser and its groups in this file."""
    names = {"parser", "ap", "arg_parser", "argparser", "subparser", "subparsers"}
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Assign) else None
        parser_expression = isinstance(value, ast.Call) and (
            _is_plain_parser_call(value) or _get_last_name(value.func) in _GROUPS
        )
        if isinstance(node, ast.Assign) and parser_expression:
            names |= {_get_last_name(t) for t in node.targets}
    return names - {""}


def _list_passed_values(call: ast.Call) -> Iterator[ast.expr]:
    for value in (*call.args, *(k.value for k in call.keywords)):
        yield value.value if isinstance(value, ast.Starred) else value


def _find_enclosing_nodes(tree: ast.Module, call: ast.Call) -> frozenset[int]:
    """Return the nodes of the innermost function that contains `call`, or of the module without its functions."""
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    holding = [{id(child) for child in ast.walk(f)} for f in functions]
    around: list[set[int]] = [ids for ids in holding if id(call) in ids]
    if around:
        return frozenset(sorted(around, key=len)[0])
    return frozenset({id(n) for n in ast.walk(tree)}.difference(*holding))


def _list_options(reached: ProgramFile, home: frozenset[int]) -> Iterator[ArgparseOption | None]:
    """Yield the options. None stands for a call whose flags are known only when it runs."""
    loose = _find_nodes_in_branches(_get_tree(reached))
    for node in ast.walk(_get_tree(reached)):
        if (
            not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
            or node.func.attr != "add_argument"
        ):
            continue
        flags = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        by_name = {k.arg: k.value for k in node.keywords}
        if len(flags) != len(node.args) or None in by_name:
            yield None
            continue
        where = f"{reached.source.path}:{reached.source.line + node.lineno}"
        found = _make_option(tuple(flags), by_name, sure=id(node) not in loose, where=where)
        yield replace(found, home=id(node) in home)


def _find_nodes_in_branches(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        branches = isinstance(node, (ast.If, ast.For, ast.While, ast.Try, ast.IfExp, ast.Match))
        if branches and not (isinstance(node, ast.If) and is_main_test(node.test)):
            found |= {id(child) for child in ast.walk(node)}
    return found


def _make_option(
    flags: tuple[str, ...], by_name: Mapping[str | None, ast.expr], *, sure: bool, where: str
) -> ArgparseOption:
    long = next((f for f in flags if f.startswith("--")), flags[0] if flags else "")
    action = _get_constant(by_name.get("action"), "store")
    named = str(action) if isinstance(action, str) and action in _KNOWN_ACTIONS else "?"
    if "action" in by_name and _get_last_name(by_name["action"]) == "BooleanOptionalAction":
        flags = (*flags, *(f"--no-{f[2:]}" for f in flags if f.startswith("--")))
        named = "store_true"
    nargs = _get_constant(by_name.get("nargs"), None)
    return ArgparseOption(
        flags=tuple(f for f in flags if f.startswith("-")),
        name=long or str(_get_constant(by_name.get("dest"), "?")),
        action=named,
        nargs=nargs if nargs is None or isinstance(nargs, (int, str)) else "unknown",
        type=ast.unparse(by_name["type"]) if "type" in by_name else "",
        choices=_get_choices(by_name.get("choices")),
        required=_get_constant(by_name.get("required"), False) is True,
        sure=sure,
        where=where,
    )


def _get_constant(node: ast.expr | None, default: object) -> object:
    if node is None:
        return default
    return node.value if isinstance(node, ast.Constant) else object()


def _get_choices(node: ast.expr | None) -> tuple[object, ...] | None:
    if not isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return None
    values = [e.value for e in node.elts if isinstance(e, ast.Constant)]
    return tuple(values) if len(values) == len(node.elts) else None
