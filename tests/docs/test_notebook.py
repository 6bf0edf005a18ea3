"""The notebook among the examples: its code is Python, and calls what slurmwrap.api has."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path

from slurmwrap import api

NOTEBOOK = Path(__file__).parents[2] / "examples" / "api" / "sweep.ipynb"


def test_the_notebook_calls_functions_of_the_api_with_arguments_that_they_have() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    called = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("api."):
            name = ast.unparse(node.func).removeprefix("api.")
            inspect.signature(getattr(api, name)).bind(
                *node.args, **{one.arg: one.value for one in node.keywords if one.arg}
            )
            called.add(name)
    assert called == {"submit", "wait", "why", "history"}
    assert {name for name in api.__all__ if name.islower()} - called == {"profile"}
