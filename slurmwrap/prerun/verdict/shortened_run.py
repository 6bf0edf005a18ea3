"""Decide whether a failure of a rehearsal may come from the shortened epochs rather than from the program. Pure.

A rehearsal ends loops and loaders after a few batches, so counts differ from those of the job: fewer predictions than
labels, a metric without one of the classes, a file that is only written every tenth epoch. A failure counts as the
job's own only if no count can cause it: a name, attribute, key or argument that does not exist anywhere, shapes inside
the model, a directory that no line creates.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from slurmwrap.model.trial_result import Rehearsal, TrialResult
from slurmwrap.prerun.verdict.python_traceback import TracebackSummary
from slurmwrap.prerun.verdict.single_gpu_limits import Read


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# Errors of a count or a condition, whose values depend on how many batches there were.
_COUNTING = frozenset(
    {
        *("ZeroDivisionError", "StopIteration", "StopAsyncIteration", "FloatingPointError", "StatisticsError"),
        *("AssertionError", "UndefinedMetricWarning", "NotFittedError", "EmptyDataError", "BrokenPipeError"),
        *("TimeoutError", "KeyboardInterrupt", "SystemExit", "EOFError", "OverflowError", "MemoryError"),
    }
)
# Errors that a program or library raises after looking at values. The types of values do not depend on counts.
_CHECKS = frozenset({"ValueError", "RuntimeError", "IndexError", "InvalidArgumentError", "Exception"})
_NAME_ERRORS = frozenset({"NameError", "UnboundLocalError"})
# Messages about the number of things.
_COUNT_MESSAGES = _any(
    r"\bempty\b|zero[- ](?:size|length|sized|dimensional)|non-?empty",
    r"\bno (?:data|samples|batches|items|elements|values|rows|runs?|logs?|metrics?)\b",
    r"at least (?:one|two|\d+)|only (?:one|1|\d+) (?:class|label|unique|sample|value)|one class|single class",
    r"\bclasses\b|inconsistent (?:numbers?|lengths?)",
    r"numbers? of (?:samples|classes|labels|elements|items|rows|predictions|batches)",
    r"n_samples|n_splits|n_components|perplexity|\bk must\b|must (?:all )?(?:be|have) (?:of )?(?:the )?same length",
    r"\blen(?:gth)?s?\b|not enough|too few|insufficient|fewer than|less than|greater than|larger than|exceeds?\b",
    r"(?:list|string|deque|pop) (?:assignment )?index out of range|pop from|out of bounds for (?:dimension|axis) 0",
    r"positional indexers? is out|need at least",
    r"expected more than 1 value|could not be broadcast|broadcast together|concatenat|stack expects|cannot reshape",
    r"shape '\[.*\]' is invalid for input of size|has no finite|\bnan\b|\binf(?:inity)?\b",
    r"not (?:been )?(?:fitted|converge)|all the input array dimensions|size of tensor a",
    r"\bnever\b|ran out of|exhausted|finished",
)
# Messages about the form of a tensor, which no count changes, although they name numbers.
_FORM_MESSAGES = _any(
    r"dimension out of range|values to unpack|\btuple index\b|too many indices|expected \w+ to be \w+, but"
)
# Messages about None, which a value may still be that the missing batches would have set.
_NONE_MESSAGES = re.compile(r"\bNone(?:Type)?\b")
_MISSING_NAME = re.compile(
    r"name '(?P<name>\w+)' is not defined|local variable '(?P<local>\w+)'|has no attribute '(?P<attribute>\w+)'"
)
_USAGE = _any(r"error: (?:unrecognized arguments|argument \S+|the following arguments are required)|no such option")
# Code of libraries that runs the model or its loss: what fails there depends on the data's shapes, not on counts.
_MODEL_FILES = re.compile(
    r"/torch/nn/|/torch/_(?:dynamo|inductor)|/keras/src/(?:layers|ops|losses)/|/flax/(?:linen|nnx)/|/transformers/models/"
)
_READS = _any(r"\bload\w*\(|\bopen\((?!.*['\"][wax]b?\+?['\"])|\bread\w*\(|\bimread\(|from_pretrained\(|restore")
_RESULT_FILES = _any(
    r"best|last|final|epoch|step|ckpt|checkpoint|model|weights|state|output|result|pred|log",
    r"\.(?:pth?|tar|bin|safetensors)$",
)


def find_shortening_doubt(result: TrialResult, found: TracebackSummary | None, category: str, read: Read) -> str:
    """Return why the failure may come from the rehearsal; "" if the job would meet it as well.

    `category`: the diagnosis. `read` returns the text of a source file that the traceback names.
    """
    rehearsal = result.rehearsal
    if rehearsal is None:
        return ""
    if rehearsal.refused:
        return f"the pre-run refused its connection to {rehearsal.refused[0]}"
    if result.signal is not None or category in ("cpu_oom", "core_dump", "invalid_memory_access"):
        return "the process died, perhaps of what the pre-run keeps in memory"
    if found is None:
        said = "\n".join(log.text[-4096:] for log in result.logs)
        return "" if _USAGE.search(said) else "a command failed that may need the results of a whole run"
    if found.kind in _COUNTING or found.kind.endswith("Warning"):
        return f"a {found.kind} may come from the few batches"
    return _doubt_error(found, rehearsal, read)


def _doubt_error(found: TracebackSummary, rehearsal: Rehearsal, read: Read) -> str:
    if found.kind in ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NotImplementedError"):
        return ""
    own = [frame for frame in found.frames if frame.own]
    sources = {path: tree for path in dict.fromkeys(f.file for f in own) if (tree := _parse(read(path))) is not None}
    if found.kind == "KeyError":
        return _doubt_key(found, sources)
    if found.kind == "FileNotFoundError":
        return _doubt_missing_file(found, rehearsal)
    if _NONE_MESSAGES.search(found.message):
        return _doubt_none(found, rehearsal, sources)
    missing = _MISSING_NAME.search(found.message)
    if found.kind in (*_NAME_ERRORS, "AttributeError") and missing is not None:
        name = next(filter(None, missing.groups()))
        is_set = _is_attribute_set if missing["attribute"] else _is_name_set_before
        return f"'{name}' may be set in a batch that was left out" if is_set(name, found, sources) else ""
    # Inside the model, sizes are those of a batch.
    if any(_MODEL_FILES.search(frame.file) for frame in found.frames):
        return "the batch is small" if re.search(r"expected more than 1 value", found.message, re.IGNORECASE) else ""
    if found.kind not in _CHECKS or _FORM_MESSAGES.search(found.message):
        return ""
    numbers = set(re.findall(r"(?<![\w.\-])\d+(?![\w.])", found.message))
    if _COUNT_MESSAGES.search(found.message) or len(numbers) > 1:
        return f"'{found.message[:80]}' may come from the few batches"
    return ""


def _parse(text: str | None) -> ast.Module | None:
    try:
        return None if text is None else ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _is_name_set_before(name: str, found: TracebackSummary, sources: Mapping[str, ast.Module]) -> bool:
    """Return whether an earlier line of the same function, or of the module, sets the name.

    A line that comes later would not have set it in the job's first pass through this place either.
    """
    tree = sources.get(found.own.file)
    if tree is None:
        return True
    scope = _find_scope(tree, found.own.line)
    if found.kind == "NameError":
        # A function is called after the whole module has run.
        return any(line < found.own.line or scope is not tree for line in _list_lines_that_set(name, tree))
    # The variables of a function are new in each call, so only a loop or a condition about a number can matter.
    blocks = [
        (node.lineno, node.end_lineno or 0)
        for node in _walk_scope(scope)
        if isinstance(node, ast.For | ast.While)
        or (isinstance(node, ast.If) and any(isinstance(one, ast.Compare | ast.BinOp) for one in ast.walk(node.test)))
    ]
    lines = [line for line in _list_lines_that_set(name, scope) if line < found.own.line]
    return any(first <= line <= last for line in lines for first, last in blocks)


def _list_lines_that_set(name: str, scope: ast.AST) -> list[int]:
    """Return the lines that bind the name in a function or module, without its nested functions and classes."""
    return [getattr(node, "lineno", 0) for node in _walk_scope(scope) if _get_bound_name(node) == name]


def _get_bound_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id if isinstance(node.ctx, ast.Store) else None
    if isinstance(node, ast.alias):
        return node.asname or node.name.partition(".")[0]
    return node.name if isinstance(node, (*_DEFINITIONS, ast.ExceptHandler)) else None


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SCOPES = (*_DEFINITIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _walk_scope(scope: ast.AST) -> Iterator[ast.AST]:
    todo: list[ast.AST] = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, _SCOPES):
            todo += ast.iter_child_nodes(node)


def _find_scope(tree: ast.Module, line: int) -> ast.AST:
    """Return the innermost function around a line, or the module."""
    scope: ast.AST = tree
    for node in ast.walk(tree):
        # ast.walk goes from the outside to the inside.
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno < line <= (node.end_lineno or 0):
            scope = node
    return scope


def _is_attribute_set(name: str, found: TracebackSummary, sources: Mapping[str, ast.Module]) -> bool:
    """Return whether a line outside of constructors sets an attribute of this name."""
    if not sources:
        return True
    for tree in sources.values():
        for function in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]:
            if getattr(function, "name", "") == "__init__":
                continue
            for node in _walk_scope(function):
                stored = isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
                called = isinstance(node, ast.Call) and any(
                    isinstance(one, ast.Constant) and one.value == name for one in node.args[1:2]
                )
                if stored or (called and getattr(getattr(node, "func", None), "id", "") == "setattr"):
                    return True
    return False


def _doubt_none(found: TracebackSummary, rehearsal: Rehearsal, sources: Mapping[str, ast.Module]) -> str:
    """Doubt an unexpected None if a value in the failed statement begins as None and is set somewhere else.

    Since Python 3.12, entering a block by a jump sets variables to None that conditional code has not set yet.
    """
    tree = sources.get(found.own.file)
    if tree is None:
        return "a value is None that later batches may set"
    scope = _find_scope(tree, found.own.line)
    here = [
        node
        for node in _walk_scope(scope)
        if isinstance(node, ast.expr) and node.lineno <= found.own.line <= (node.end_lineno or node.lineno)
    ]
    for name in sorted(_list_possible_nones(here, found.message)):
        # Attributes may be set in any function of the file.
        values = list(_list_assigned_values(name, tree if "." in name else scope, found.own.line))
        begins = any(_is_none(value) for value in values) and not all(_is_none(value) for value in values)
        if begins or (rehearsal.intervals and _is_set_conditionally(name, scope, found.own.line)):
            return f"'{name}' is None until a batch that was left out may set it"
    return ""


def _list_assigned_values(name: str, scope: ast.AST, line: int) -> Iterator[ast.expr]:
    """Yield the values that are assigned to a name or attribute, without the failed line."""
    for node in ast.walk(scope) if isinstance(scope, ast.Module) else _walk_scope(scope):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            value = getattr(node, "value", None)
            values = (
                value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(parts) else [value] * len(parts)
            )
            for part, each in zip(parts, values, strict=True):
                if each is not None and part.lineno != line and ast.unparse(part) == name:
                    yield each


def _list_possible_nones(nodes: Sequence[ast.expr], message: str) -> set[str]:
    """Return the names and attributes in these expressions that may be the None of an error message."""
    attribute = re.search(r"has no attribute '(\w+)'", message)
    if attribute is not None:
        found = [node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr == attribute[1]]
    elif "not subscriptable" in message or "item assignment" in message:
        found = [node.value for node in nodes if isinstance(node, ast.Subscript)]
    elif "not callable" in message:
        found = [node.func for node in nodes if isinstance(node, ast.Call)]
    else:
        found = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Load)]
    return {ast.unparse(node) for node in found if isinstance(node, ast.Name | ast.Attribute)}


def _is_set_conditionally(name: str, scope: ast.AST, failed_line: int) -> bool:
    """Return whether all lines that set the name are in conditional blocks, of which none contains the failed line."""
    lines = _list_lines_that_set(name, scope)
    blocks = [
        (node.lineno, node.end_lineno or 0)
        for node in _walk_scope(scope)
        if isinstance(node, ast.If) and not node.lineno <= failed_line <= (node.end_lineno or 0)
    ]
    return bool(lines) and all(any(first < line <= last for first, last in blocks) for line in lines)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _doubt_key(found: TracebackSummary, sources: Mapping[str, ast.Module]) -> str:
    """Doubt a missing key that another line of the program stores."""
    key = found.message.strip("'\"")
    if not re.fullmatch(r"[A-Za-z_][\w/. -]*", key):
        return f"the key {key or '?'} may come from a count"
    for path, tree in sources.items():
        for node in ast.walk(tree):
            if (path, getattr(node, "lineno", 0)) != (found.own.file, found.own.line) and _stores_key(node, key):
                return f"the key '{key}' may be added in a batch that was left out"
    return "" if sources else "a key may be added in a batch that was left out"


def _stores_key(node: ast.AST, key: str) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return isinstance(node.slice, ast.Constant) and node.slice.value == key
    if isinstance(node, ast.Dict):
        return any(isinstance(one, ast.Constant) and one.value == key for one in node.keys)
    if isinstance(node, ast.Call):
        if getattr(node.func, "attr", "") in ("setdefault", "add_scalar", "log"):
            return any(isinstance(one, ast.Constant) and one.value == key for one in node.args[:1])
        return any(word.arg == key for word in node.keywords)
    return False


def _doubt_missing_file(found: TracebackSummary, rehearsal: Rehearsal) -> str:
    """Doubt a missing file that the program reads: it may write it only in some epochs. A write has no such excuse."""
    named = re.search(r"'([^']+)'", found.message)
    path = named[1] if named else ""
    if not _READS.search("\n".join(frame.code for frame in found.frames if frame.own)):
        return ""
    name = path.rpartition("/")[2]
    # A file of this name was written, but not there.
    if name in {one.rpartition("/")[2] for one in rehearsal.written}:
        return ""
    return f"'{path}' may be written only by a whole run" if _RESULT_FILES.search(path) else ""


def describe_rehearsal(rehearsal: Rehearsal, *, is_complete: bool) -> str:
    """Return what the rehearsal showed, to follow "3 optimizer steps ran on one GPU, "."""
    again = "; started again, it resumed" if rehearsal.resumed else ""
    if is_complete:
        return f"then the script ran to its end with shortened epochs{again}"
    reached = "the next epoch began" if rehearsal.next_epoch else "an epoch ended early" if rehearsal.endings else ""
    stops = {
        "time": "its time was up",
        "loop": "a loop could not be ended",
        "no_activity": "it stood still",
        "disk": "its files would have filled the node's disk",
    }
    stopped = stops.get(rehearsal.stopped_by, "it was stopped")
    return f"then {reached} before {stopped}{again}" if reached else f"then {stopped} before its epoch ended{again}"
