"""plain_toml returns the same as tomllib, or None."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap import plain_toml

PLAIN = """\
# a site
slurm_timeout_s = 5

[submit]  # calls
enabled = true
array_threshold = 0
pass_partitions = ["interactive*", 'a # b',]
pass_users = []

[placement]
exclude_cap = 0.1   # a tenth
switch_wait_s = -1
topology_file = "/etc/slurm/räcks # 1.txt"

[rules]
retry_elsewhere = "act"
"""
# Tokens of TOML, so that most combinations are almost valid.
PIECES = st.sampled_from(
    [
        *("[", "]", "a", "b-1", "_", ".", "=", " = ", '"', "'", '"x"', "'y'", '"""', "\\", "\\n", "#", ",", "true"),
        *("false", "0", "1", "07", "-", "+", "1.5", "1e3", "0x1", "1_0", "nan", "inf", "2020-01-01", "{", "}"),
        *(" ", "\t", "\n"),
        *("\r\n", "\r", "\x0b", "\x7f", "\u00a0", "\u2028", "ä", "٣", "\ufeff"),
        *("[a]\n", "a = 1\n", 'b = "x"\n', "[[a]]\n"),
    ]
)  # fmt: skip


def read_with_tomllib(text: str) -> object:
    try:
        return tomllib.loads(text)
    except ValueError:  # also for a number with too many digits
        return None


@given(st.lists(PIECES, max_size=12).map("".join))
def test_the_result_equals_that_of_tomllib(text: str) -> None:
    found = plain_toml.read(text)
    assert found is None or repr(found) == repr(read_with_tomllib(text))


def test_an_ordinary_file_is_read() -> None:
    assert repr(plain_toml.read(PLAIN)) == repr(tomllib.loads(PLAIN))


@pytest.mark.parametrize(
    "text",
    [
        *("a", "a =", "= 1", "a = 1\na = 2", "[a]\n[a]", "a = 1\n[a]", "[a", "[a] b", "[[a]]", "[a.b]", "a.b = 1"),
        *('"a" = 1', 'a = "x', 'a = "x" y', 'a = "\\t"', 'a = """x"""', "a = 01", "a = 1_0", "a = 1.", "a = .5"),
        *("a = +1", "a = 1e3", "a = nan", "a = 0x1", "a = [1]", 'a = ["x" "y"]', 'a = ["x",', "a = {}"),
        *('a =\t"x"', "a = 1\r\n", "a = 2020-01-01"),
    ],
)  # fmt: skip
def test_other_or_invalid_toml_is_left_to_tomllib(text: str) -> None:
    assert plain_toml.read(text) is None
