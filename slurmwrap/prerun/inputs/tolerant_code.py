"""Find out whether a program goes on after a broken input file, so that one must not stop its job. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping

# Options and handlers of PIL, webdataset, TensorFlow, pandas and Hugging Face datasets for broken samples.
_WORDS = re.compile(
    rb"LOAD_TRUNCATED_IMAGES\s*=\s*True|(?:warn|ignore)_and_(?:continue|stop)|\bignore_errors\(|on_bad_lines"
    rb"|error_bad_lines|skip_bad|ignore_corrupt"
)
_BROAD = frozenset(
    (
        *("Exception", "BaseException", "OSError", "IOError", "ValueError", "RuntimeError", "EOFError", "SyntaxError"),
        *("UnidentifiedImageError", "BadZipFile", "BadGzipFile", "JSONDecodeError", "ArrowInvalid", "error"),
        *("HeaderError", "ReadError"),
    )
)
_READS = re.compile(
    r"^(open|load|read|imread|decode|parse|get|File|fromfile|from_file|SoundFile|convert)|_(load|read|open)|^__getitem__$"
)


def find_tolerant_code(sources: Mapping[str, bytes]) -> str:
    """Return the place (file, or file:line) where a program handles broken files and goes on; "" if none is seen.

    `sources`: path -> code of the programs and their local modules.
    """
    for path, code in sources.items():
        if found := _WORDS.search(code):
            return f"{path}:{code.count(bytes((10,)), 0, found.start()) + 1}"
    for path, code in sources.items():
        if b"except" in code and (line := _find_handled_read(code)):
            return f"{path}:{line}"
    return ""


def _find_handled_read(code: bytes) -> int:
    """Return the line of a `try` in a function or loop that reads a file and goes on after an error; 0 if none."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    inside = (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.AsyncFor, ast.While)
    for outer in ast.walk(tree):
        if not isinstance(outer, inside):
            continue
        for node in ast.walk(outer):
            if isinstance(node, ast.Try) and _has_read(node.body) and any(map(_goes_on, node.handlers)):
                return node.lineno
    return 0


def _has_read(body: Iterable[ast.stmt]) -> bool:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                return True
            if isinstance(node, ast.Call) and _READS.search(_get_name(node.func)):
                return True
    return False


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Return whether the handler takes the errors of readers and does not raise or exit."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    if handler.type is not None and not any(kind is not None and _get_name(kind) in _BROAD for kind in kinds):
        return False
    for statement in handler.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Raise):
                return False
            if isinstance(node, ast.Call) and _get_name(node.func) in ("exit", "_exit", "abort"):
                return False
    return True


def _get_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
