"""The step counter inside a user's Python, mostly with a stand-in for torch."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmwrap.inject import slurmwrap_step
from slurmwrap.model.trial_result import StepReading

INJECT = Path(slurmwrap_step.__file__).parent
OLD_OPTIMIZER = "class Optimizer:\n    def __init__(self): pass\n"
OLD_SGD = "class SGD(Optimizer):\n    def step(self, closure=None):\n        'Steps.'\n        return 'loss'\n"


Counted = Callable[..., tuple[str, StepReading]]


def count_steps(code: str, run_counted: Counted, **more: str) -> int:
    output, reading = run_counted(code, **more)
    assert output == ""
    return reading.count


def test_the_optimizer_with_most_steps_is_counted(run_counted: Counted) -> None:
    code = """
    from torch.optim import Optimizer
    generator, critic = Optimizer(), Optimizer()
    for i in range(10):
        critic.step()
        if i % 5 == 0: generator.step()
    """
    assert count_steps(code, run_counted) == 10


def test_a_forked_child_is_counted_separately(run_counted: Counted) -> None:
    code = """
    import os
    from torch.optim import Optimizer
    o = Optimizer()
    for i in range(5): o.step()
    if os.fork() == 0:
        for i in range(3): o.step()
        os._exit(0)
    os.wait()
    """
    assert count_steps(code, run_counted) == 5


def test_the_times_of_the_first_and_last_step_are_recorded(run_counted: Counted) -> None:
    code = """
    import time
    from torch.optim import Optimizer
    o = Optimizer(); before = time.monotonic()
    for i in range(3): o.step(); after = time.monotonic(); time.sleep(0.1)
    print(before, after)
    """
    output, reading = run_counted(code)
    before, after = map(float, output.split())
    assert reading.source == "optimizer"
    assert before <= reading.first <= reading.last - 0.2 <= after - 0.2
    assert reading.per_s == pytest.approx(2 / (reading.last - reading.first))


def test_old_torch_without_a_global_hook_is_counted(run_counted: Counted) -> None:
    code = """
    import torch.optim
    o, p = torch.optim.optimizer.SGD(), torch.optim.optimizer.SGD()
    for i in range(4):
        assert o.step() == 'loss'
    p.step()
    assert torch.optim.optimizer.SGD.step.__doc__ == 'Steps.'
    """
    assert count_steps(code, run_counted, optimizer=OLD_OPTIMIZER + OLD_SGD) == 4


def test_explicit_steps_take_precedence_over_optimizer_steps(run_counted: Counted) -> None:
    code = """
    import slurmwrap_step
    from torch.optim import Optimizer
    o = Optimizer()
    for epoch in range(2):
        slurmwrap_step.step()
        for i in range(10): o.step()
    """
    output, reading = run_counted(code)
    assert (output, reading.count, reading.source) == ("", 2, "explicit")


def test_outside_a_counted_job_step_does_nothing() -> None:
    code = "import sys, slurmwrap_step; slurmwrap_step.step(); print('slurmwrap_counter' in sys.modules)"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(INJECT), "PYTHONDONTWRITEBYTECODE": "1"}
    output = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert (output.stdout, output.stderr) == ("False\n", "")


def test_a_broken_torch_reports_its_own_error(run_counted: Counted) -> None:
    output, _ = run_counted("import torch.optim", optimizer="raise ImportError('libcudart.so.12 is missing')")
    assert output.splitlines()[-1] == "ImportError: libcudart.so.12 is missing"
    assert "slurmwrap" not in output.splitlines()[-2]


def test_the_loader_of_the_hooked_module_is_unchanged(run_counted: Counted) -> None:
    code = """
    import torch.optim.optimizer as m, inspect, sys
    print(type(m.__loader__).__name__, m.__file__.endswith('optimizer.py'), len(inspect.getsource(m)) > 10)
    print(vars(m.__loader__) == {'name': m.__name__, 'path': m.__file__})
    """
    assert run_counted(code)[0] == "SourceFileLoader True True\nTrue\n"


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_steps_are_not_counted_in_an_isolated_python(run_counted: Counted, flag: str) -> None:
    assert run_counted("print(1)", flags=(flag,)) == ("1\n", StepReading())


def test_starting_python_imports_no_heavy_module(run_counted: Counted) -> None:
    heavy = {"typing", "importlib.util", "struct", "mmap", "re", "contextlib", "ctypes"}
    code = f"import sys; print(sorted(set(sys.modules) & {heavy}))"
    without = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert run_counted(code, SLURMWRAP_PRERUN="1")[0] == without


def test_injected_modules_use_only_the_syntax_of_python_3_6() -> None:
    for path in INJECT.glob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 6))
