"""docs/security-tests.md: each attempt names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

from doc_pages import ROOT

PAGE = ROOT / "docs" / "security-tests.md"
ROW = re.compile(r"^\| (?P<number>\d+) \| [^|]+ \| [^|]+ \| (?P<tests>[^|]+) \|$", re.MULTILINE)
LEAST = 60


@cache
def list_tests(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return frozenset(one.name for one in tree.body if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"))


def test_every_attempt_names_tests_that_exist() -> None:
    rows = list(ROW.finditer(PAGE.read_text(encoding="utf-8")))
    assert [int(row["number"]) for row in rows] == list(range(1, len(rows) + 1))
    named = [test for row in rows for test in re.findall(r"`([\w/]+\.py::\w+)`", row["tests"])]
    assert all("::" in row["tests"] for row in rows)
    assert [test for test in named if test.partition("::")[2] not in list_tests(test.partition("::")[0])] == []
    assert [test for test in sorted(set(named)) if named.count(test) > 1] == []
    assert len(rows) >= LEAST and len(named) >= LEAST
