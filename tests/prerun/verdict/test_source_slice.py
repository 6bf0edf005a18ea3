"""The conditions and values on which a failed statement depends, read from its file."""

from __future__ import annotations

import pytest

from slurmwrap.prerun.verdict.source_slice import Slice, find_conditions_of_name, make_slice_at

CHECKED = """
def check(n, want):
    if n != want:
        raise RuntimeError("wrong launch")

ws = int(os.environ.get("WORLD_SIZE", 1))
check(ws, 16)
"""
LOOP = """
model = Net().to(device)
if ws > 1:
    model = DDP(model)
for x, y in loader:
    loss = model(x)
    if not isfinite(loss):
        raise ValueError("diverged")
"""
SEARCH = """
def pick(n):
    for a, b in PLANS:
        if a * b == n:
            return a
    raise LookupError("no plan")
"""
BRANCH = """
if args.distributed:
    sampler = Sampler()
sampler.go()
"""


def make_slice(text: str, line: int) -> Slice:
    found = make_slice_at(text, line)
    assert found is not None
    return found


def test_a_raise_depends_on_its_condition_and_on_arguments_of_callers() -> None:
    found = make_slice(CHECKED, 4)
    assert (found.explicit, found.statement) == (True, "raise RuntimeError('wrong launch')\nn != want")
    assert "WORLD_SIZE" in found.behind


def test_wrapping_a_model_adds_no_dependency_on_the_world_size() -> None:
    found = make_slice(LOOP, 8)
    assert found.statement == "raise ValueError('diverged')\nnot isfinite(loss)"
    assert "ws" not in found.behind
    assert not found.open


def test_the_condition_of_an_earlier_return_is_included() -> None:
    assert "a * b == n" in make_slice(SEARCH, 6).statement


@pytest.mark.parametrize(
    ("test", "is_open"),
    [
        ("n != want", True),
        ("n % 8", True),
        ("n < 0", False),
        ("name not in TABLE", False),
        ("x.shape[-1] != self.dim", False),
        ("kind == 'adam'", False),
        ("args.width % 7", False),
    ],
)
def test_a_comparison_of_unknown_numbers_is_open(test: str, is_open: bool) -> None:
    assert (
        make_slice(f"def f(n, want, name, x, kind, args):\n    if {test}:\n        raise ValueError\n", 3).open
        is is_open
    )


def test_elements_of_a_tuple_are_distinguished() -> None:
    text = "def setup():\n    return world_size(), torch.device(0)\n\nn, device = setup()\ny = device[3]\n"
    assert "world_size" not in make_slice(text, 5).behind


def test_conditions_of_a_name_are_those_of_its_assignments() -> None:
    assert find_conditions_of_name(BRANCH, "sampler") == "args.distributed"
    assert find_conditions_of_name(BRANCH, "loader") is None


@pytest.mark.parametrize("text", ["def f(:\n", "\0", ""])
def test_text_that_is_not_valid_python_has_no_slice(text: str) -> None:
    assert make_slice_at(text, 1) is None
