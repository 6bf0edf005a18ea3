"""What a failed statement rests on, read from its file."""

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


def at(text: str, line: int) -> Slice:
    found = make_slice_at(text, line)
    assert found is not None
    return found


def test_a_raise_rests_on_the_condition_above_it_and_on_what_callers_hand_in() -> None:
    found = at(CHECKED, 4)
    assert (found.explicit, found.statement) == (True, "raise RuntimeError('wrong launch')\nn != want")
    assert "WORLD_SIZE" in found.behind


def test_a_model_that_is_wrapped_is_a_model_still() -> None:
    found = at(LOOP, 8)
    assert found.statement == "raise ValueError('diverged')\nnot isfinite(loss)"
    assert "ws" not in found.behind
    assert not found.open


def test_what_could_have_returned_before_decides_as_well() -> None:
    assert "a * b == n" in at(SEARCH, 6).statement


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
def test_a_comparison_of_numbers_from_elsewhere_is_open(test: str, is_open: bool) -> None:
    assert at(f"def f(n, want, name, x, kind, args):\n    if {test}:\n        raise ValueError\n", 3).open is is_open


def test_tuples_are_taken_apart() -> None:
    text = "def setup():\n    return world_size(), torch.device(0)\n\nn, device = setup()\ny = device[3]\n"
    assert "world_size" not in at(text, 5).behind


def test_a_name_stands_under_the_conditions_of_its_assignments() -> None:
    assert find_conditions_of_name(BRANCH, "sampler") == "args.distributed"
    assert find_conditions_of_name(BRANCH, "loader") is None


@pytest.mark.parametrize("text", ["def f(:\n", "\0", ""])
def test_what_is_no_python_of_this_version_has_no_slice(text: str) -> None:
    assert make_slice_at(text, 1) is None
