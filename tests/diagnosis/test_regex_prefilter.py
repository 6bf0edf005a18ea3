"""Literals that every match of a pattern must contain, and patterns that may be slow."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.diagnosis.regex_prefilter import find_harmful_shape, find_required_literals


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("CUDA out of memory", ("CUDA out of memory",)),
        (r"No module named \S+", ("No module named ",)),
        (r"(?:foo1|barbaz) x", ("foo1", "barbaz")),
        (r"a\(b\)|cde", ("a(b)", "cde")),
        (r"x{2,3}abcd", ("abcd",)),
        (r"colou?rs", ("colo",)),
        (r"(?P<name>hidden)? shown", (" shown",)),
        (r"(?!never)always", ("always",)),
        (r"[^\]x]abc?", ()),
        (r"\d+|word", ()),
    ],
)
def test_the_required_literals_of_a_pattern_are_found(pattern: str, literals: tuple[str, ...]) -> None:
    assert find_required_literals(pattern) == literals


PIECES = st.sampled_from(["abc", "de?", r"\d{1,2}", "(?:fgh|ijk)", r"\(", "[xyz]", "lmn+", "(?:opq)?", r"\s*"])


@settings(max_examples=settings.default.max_examples // 3)
@given(st.lists(PIECES, min_size=1, max_size=5), st.data())
def test_every_match_of_a_pattern_contains_one_of_its_literals(pieces: list[str], data: st.DataObject) -> None:
    pattern = "".join(pieces)
    text = data.draw(st.from_regex(pattern, fullmatch=True))
    literals = find_required_literals(pattern)
    assert re.search(pattern, text)
    assert not literals or any(literal in text for literal in literals)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(?:a*)*b",
        "(.{0,99}x){2,}",
        "(?:a|ab)*c",
        "(\\w+\\s?)*:",
        "a.*b.*c.*d.*e",
        "((x{1,5}y)+)",
        "(?:foo|bar)+ baz",
    ],
)
def test_patterns_that_may_backtrack_excessively_are_detected(pattern: str) -> None:
    assert find_harmful_shape(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "error:-\\d+",
        "a.{0,80}b.{0,80}c",
        "(?:ab)?c{3}",
        "[^:]+: .*failed",
        "(?P<input>\\S{1,300}): no",
        "(?:ab){1,3}",
        "a{",
        "x{,}",
    ],
)
def test_ordinary_patterns_are_accepted(pattern: str) -> None:
    assert find_harmful_shape(pattern) == ""
