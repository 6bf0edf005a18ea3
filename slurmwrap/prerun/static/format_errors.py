"""Does formatting a literal raise: turns its node into Python's own error, by values that fit every placeholder.

pyflakes finds the candidates. Some of them do not raise (`"%s" % [1, 2]`, an argument that is left over): Python
decides.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

# A width or precision of more digits would make a text of megabytes.
_WIDE = re.compile(r"\d{5}")
# A value for %d, %f, %c and %s, and for the width behind %*.
_NUMBER = 65


class _AnyKey(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return _NUMBER


class _AnyValue:
    """Has every attribute and item, and takes every format. Written as "1" it is a width, too."""

    def __getattribute__(self, name: str) -> _AnyValue:
        return self

    def __getitem__(self, key: object) -> _AnyValue:
        return self

    def __format__(self, spec: str) -> str:
        return "1"


def find_format_error(node: ast.AST) -> Exception | None:
    """The error of `"literal" % values` or `"literal".format(values)`; None when some values of this shape do fit."""
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
        return _try_percent(node.left.value, node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        literal = node.func.value
        if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
            return _try_format(literal.value, node)
    return None


def _try_percent(text: str, right: ast.expr) -> Exception | None:
    error: Exception | None = None
    if _WIDE.search(text):
        return None
    for values in _list_percent_values(text, right):
        try:
            text % values
        except (TypeError, ValueError, KeyError) as raised:
            error = error or raised
        else:
            return None
    return error


def _list_percent_values(text: str, right: ast.expr) -> Iterator[object]:
    """What the right side may be, one value for each shape."""
    elements = right.elts if isinstance(right, (ast.Tuple, ast.List)) else []
    if isinstance(right, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in elements):
        shape = tuple if isinstance(right, ast.Tuple) else list
        yield shape([_NUMBER] * len(elements))
    elif isinstance(right, ast.Dict) and all(isinstance(key, ast.Constant) for key in right.keys):
        yield {key.value: _NUMBER for key in right.keys if isinstance(key, ast.Constant)}
    else:
        yield _NUMBER
        yield _AnyKey()
        yield from ((_NUMBER,) * count for count in range(2 * text.count("%") + text.count("*") + 1))


def _try_format(text: str, call: ast.Call) -> Exception | None:
    if _WIDE.search(text):
        return None
    many = any(isinstance(argument, ast.Starred) for argument in call.args)
    count = len(text) if many else len(call.args)
    names = {keyword.arg for keyword in call.keywords if keyword.arg}
    if any(keyword.arg is None for keyword in call.keywords):
        names.update(re.findall(r"\w+", text))
    try:
        text.format(*[_AnyValue()] * count, **dict.fromkeys(names, _AnyValue()))
    except (IndexError, KeyError, ValueError) as raised:
        return raised
    return None
