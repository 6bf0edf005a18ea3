"""Check command line options of programs that use click, typer, absl or Hydra, as far as their text shows them.

Pure but for Hydra's configuration file.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import find_nearest
from slurmwrap.prerun.static.imported_files import ProgramImports
from slurmwrap.prerun.static.shell_words import UNKNOWN, Guess
from slurmwrap.prerun.static.started_program import EntryPoint
from slurmwrap.prerun.static.word_tables import split_word_table

# Largest number of bytes that is read of a configuration file.
_MAX_BYTES = 1 << 18
_ABSL = split_word_table(
    """help helpfull helpshort helpxml v verbosity logger_levels logtostderr alsologtostderr log_dir stderrthreshold
    showprefixforinfo run_with_pdb pdb_post_mortem pdb run_with_profiling profile_file use_cprofile_for_profiling
    only_check_args flagfile undefok xml_output_file test_srcdir test_tmpdir test_random_seed"""
)


def check_other_libraries(program: ProgramImports, script: str) -> Iterator[Finding]:
    """Yield findings at the line of the batch script. Only the definitions in the entry file count."""
    source, entry = program.files[0].source, program.entry
    if source.tree is None:
        return
    if source.mentions(b"import click", b"from click"):
        yield from _find_unknown_options(
            _list_click_flags(source.tree), entry, script, certain=not source.mentions(b"argv", b"standalone_mode")
        )
    elif source.mentions(b"typer"):
        yield from _find_unknown_options(
            _list_typer_flags(source.tree), entry, script, certain=not source.mentions(b"argv")
        )
    elif source.mentions(b"absl"):
        yield from _find_unknown_options(_list_absl_flags(program), entry, script, certain=False)
    elif source.mentions(b"hydra"):
        yield from _check_hydra(source.tree, entry, script)


def _find_unknown_options(
    flags: frozenset[str] | None, entry: EntryPoint, script: str, *, certain: bool
) -> Iterator[Finding]:
    """Yield findings for long options that are not among `flags`. None: nothing is known, so there are none."""
    if flags is None:
        return
    for word in entry.argv:
        name = word.partition("=")[0]
        if word == "--":
            return
        if not word.startswith("--") or UNKNOWN in name or isinstance(word, Guess) or " " in name:
            continue
        if name in flags or name.replace("-", "_") in flags or name == "--help":
            continue
        near = find_nearest(name, flags)
        unsure = any(UNKNOWN in w for w in entry.argv)
        yield Finding(
            severity=Severity.ERROR if certain and entry.certain and not unsure else Severity.WARNING,
            message=f"{entry.path or 'the program'} does not take {name}",
            file=script,
            line=entry.line,
            fix=f"did you mean {near}?" if near else f"it takes {', '.join(sorted(flags)[:12])}",
            category="semantic_error",
        )


def _list_decorators(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, list[ast.Call], str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            calls = [d for d in node.decorator_list if isinstance(d, ast.Call)]
            yield node, calls, " ".join(ast.unparse(d) for d in node.decorator_list)


def _list_click_flags(tree: ast.Module) -> frozenset[str] | None:
    """Return the flags of the only command.

    None for groups, own parameter classes, and settings that let unknown options pass.
    """
    commands = [(calls, text) for _, calls, text in _list_decorators(tree) if re.search(r"\bcommand\b", text)]
    groups = any(re.search(r"\bgroup\b", text) for _, _, text in _list_decorators(tree))
    if len(commands) != 1 or groups:
        return None
    calls, text = commands[0]
    if re.search(r"ignore_unknown|allow_extra|context_settings|UNPROCESSED|cls=", text):
        return None
    if any(
        not re.search(r"\b(command|option|argument|version_option|help_option|pass_context)\b", ast.unparse(c.func))
        for c in calls
    ):
        return None
    flags: set[str] = set()
    for call in calls:
        named = ast.unparse(call.func)
        if named.endswith("version_option"):
            flags.add("--version")
        if not named.endswith("option"):
            continue
        for argument in call.args:
            if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                return None
            flags.update(part.strip() for part in argument.value.split("/") if part.strip().startswith("--"))
        if not call.args:
            return None
    plain = [
        d for node, _, text in _list_decorators(tree) for d in node.decorator_list if re.search(r"\bcommand\b", text)
    ]
    known = r"(click\.)?(command|option|argument|version_option|help_option|pass_context)\b"
    return frozenset(flags) if all(re.match(known, ast.unparse(d)) for d in plain) else None


def _list_typer_flags(tree: ast.Module) -> frozenset[str] | None:
    """Return the flags of the only command, from its parameters; None if there are several or any option passes."""
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    decorated = [n for n, _, text in _list_decorators(tree) if re.search(r"\.command\b|\.callback\b", text)]
    runs = [
        functions[n.args[0].id]
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "typer.run" and n.args and isinstance(n.args[0], ast.Name)
        if n.args[0].id in functions
    ]
    chosen = decorated + runs
    if len(chosen) != 1 or any("context_settings" in ast.unparse(d) for d in chosen[0].decorator_list):
        return None
    arguments = chosen[0].args
    if arguments.vararg or arguments.kwarg or len(chosen[0].decorator_list) > 1:
        return None
    flags = {"--install-completion", "--show-completion"}
    for argument in (*arguments.args, *arguments.kwonlyargs):
        text = ast.unparse(argument)
        name = argument.arg.replace("_", "-")
        flags |= {f"--{name}", f"--no-{name}"}
        flags |= set(re.findall(r"['\"/](--[\w-]+)", text))
    for default in (*arguments.defaults, *arguments.kw_defaults):
        if default is not None:
            flags |= set(re.findall(r"['\"/](--[\w-]+)", ast.unparse(default)))
    # Any other text in the file that looks like a flag may be one, through an alias of Annotated.
    return frozenset(flags | set(re.findall(r"['\"](--[\w-]+)['\"]", ast.unparse(tree))))


def _list_absl_flags(program: ProgramImports) -> frozenset[str] | None:
    names: set[str] = set()
    for reached in program.files:
        for node in ast.walk(reached.source.tree or ast.Module(body=[], type_ignores=[])):
            if isinstance(node, ast.Call) and re.search(r"\bDEFINE_\w+$", ast.unparse(node.func)):
                if "config" in ast.unparse(node.func) or not node.args or not isinstance(node.args[0], ast.Constant):
                    return None
                names.add(str(node.args[0].value))
    if not names:
        return None
    return frozenset(f"--{prefix}{name}" for name in names | _ABSL for prefix in ("", "no"))


def _check_hydra(tree: ast.Module, entry: EntryPoint, script: str) -> Iterator[Finding]:
    """Check that the primary configuration file exists, and that overrides name keys that it has."""
    mains = [
        c for _, calls, _ in _list_decorators(tree) for c in calls if ast.unparse(c.func) in ("hydra.main", "main")
    ]
    if len(mains) != 1 or entry.path == "" or any(w in _HYDRA_OWN or w.startswith("--config") for w in entry.argv):
        return
    given = {k.arg: k.value.value for k in mains[0].keywords if isinstance(k.value, ast.Constant)}
    folder, name = given.get("config_path"), given.get("config_name")
    if not isinstance(folder, str) or not isinstance(name, str) or folder.startswith("pkg:"):
        return
    base = os.path.normpath(os.path.join(os.path.dirname(entry.path), folder))  # noqa: PTH118, PTH120
    path = Path(base, name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    keys = _read_top_keys(path)
    if keys is None and not path.exists() and b"ConfigStore" not in ast.unparse(tree).encode():
        yield Finding(
            severity=Severity.ERROR if entry.certain and Path(base).is_dir() else Severity.WARNING,
            message=f"Hydra's configuration {path} does not exist",
            file=entry.path,
            line=mains[0].lineno,
            fix="correct config_path or config_name, which are relative to the program's own directory",
            category="incorrect_inputs",
        )
    if keys is None or "defaults" in keys:
        return
    for word in entry.argv:
        key = re.match(r"([A-Za-z_][\w-]*)[\w.@-]*=", word)
        if key and UNKNOWN not in word and key[1] not in keys and key[1] != "hydra" and not Path(base, key[1]).is_dir():
            near = find_nearest(key[1], keys)
            yield Finding(
                severity=Severity.ERROR
                if entry.certain and not any(UNKNOWN in w for w in entry.argv)
                else Severity.WARNING,
                message=f"Hydra: could not override {key[1]!r}: {path} has no such key",
                file=script,
                line=entry.line,
                fix=f"did you mean {near}?" if near else f"add it with +{word}, or correct the key",
                category="semantic_error",
            )


_HYDRA_OWN = (
    "-m",
    "--multirun",
    "-cn",
    "-cp",
    "-cd",
    "--cfg",
    "--info",
    "--help",
    "--hydra-help",
    "--experimental-rerun",
)


def _read_top_keys(path: Path) -> Mapping[str, int] | None:
    """Return the keys of a plain YAML mapping with their lines; None if it does not exist or is not plain."""
    try:
        with path.open("rb") as stream:
            text = stream.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    keys: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line[0] in " #\t-%}]" or line.startswith(("---", "...")):
            continue
        found = re.match(r"['\"]?([\w.-]+)['\"]?\s*:(\s|$)", line)
        if not found:
            return None
        keys[found[1]] = number
    return keys or None
