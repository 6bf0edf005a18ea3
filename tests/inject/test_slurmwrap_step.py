"""The step counter inside a user's Python, mostly with a stand-in for torch."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmwrap.inject import slurmwrap_step
from slurmwrap.prerun.result import StepReading

INJECT = Path(slurmwrap_step.__file__).parent
OLD_OPTIMIZER = "class Optimizer:\n    def __init__(self): pass\n"
OLD_SGD = "class SGD(Optimizer):\n    def step(self, closure=None):\n        'Steps.'\n        return 'loss'\n"


Counted = Callable[..., tuple[str, StepReading]]


def count(code: str, counted: Counted, **more: str) -> int:
    said, reading = counted(code, **more)
    assert said == ""
    return reading.count


def test_the_busiest_optimizer_is_counted(counted: Counted) -> None:
    code = """
    from torch.optim import Optimizer
    generator, critic = Optimizer(), Optimizer()
    for i in range(10):
        critic.step()
        if i % 5 == 0: generator.step()
    """
    assert count(code, counted) == 10


def test_a_forked_child_counts_for_itself(counted: Counted) -> None:
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
    assert count(code, counted) == 5


def test_times_span_the_first_and_last_step(counted: Counted) -> None:
    code = (
        "import time\nfrom torch.optim import Optimizer\no = Optimizer()\nfor i in range(3): o.step(); time.sleep(0.1)"
    )
    _, reading = counted(code)
    assert reading.source == "optimizer"
    assert 0.2 <= reading.last - reading.first < 1
    assert reading.per_s == pytest.approx(2 / (reading.last - reading.first))


def test_old_torch_without_a_global_hook_is_counted(counted: Counted) -> None:
    code = """
    import torch.optim
    o, p = torch.optim.optimizer.SGD(), torch.optim.optimizer.SGD()
    for i in range(4):
        assert o.step() == 'loss'
    p.step()
    assert torch.optim.optimizer.SGD.step.__doc__ == 'Steps.'
    """
    assert count(code, counted, optimizer=OLD_OPTIMIZER + OLD_SGD) == 4


def test_explicit_steps_beat_the_optimizers(counted: Counted) -> None:
    code = """
    import slurmwrap_step
    from torch.optim import Optimizer
    o = Optimizer()
    for epoch in range(2):
        slurmwrap_step.step()
        for i in range(10): o.step()
    """
    said, reading = counted(code)
    assert (said, reading.count, reading.source) == ("", 2, "explicit")


def test_outside_a_counted_job_step_does_nothing() -> None:
    code = "import sys, slurmwrap_step; slurmwrap_step.step(); print('slurmwrap_counter' in sys.modules)"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(INJECT), "PYTHONDONTWRITEBYTECODE": "1"}
    said = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert (said.stdout, said.stderr) == ("False\n", "")


@pytest.mark.parametrize(
    "code",
    [
        "import torch.optim, os; os.environ['SLURMWRAP_STEP_DIR'] = '/nonexistent'; torch.optim.Optimizer().step()",
        "import torch.optim, os; del os.environ['SLURMWRAP_STEP_DIR']; torch.optim.Optimizer().step()",
        "import torch.optim\nclass Slots(torch.optim.Optimizer):\n    __slots__ = ()\nSlots().step()",
        "import os; os.environ['SLURMWRAP_PARK_AFTER'] = 'x'; import torch.optim; torch.optim.Optimizer().step()",
        "import os; os.getpid = None; import torch.optim; torch.optim.Optimizer().step()",
    ],
)
def test_whatever_breaks_in_the_counter_the_program_does_not_notice(counted: Counted, code: str) -> None:
    said, _ = counted(code + "\nprint('went on')")
    assert said == "went on\n"


def test_a_broken_torch_reports_its_own_error(counted: Counted) -> None:
    said, _ = counted("import torch.optim", optimizer="raise ImportError('libcudart.so.12 is missing')")
    assert said.splitlines()[-1] == "ImportError: libcudart.so.12 is missing"
    assert "slurmwrap" not in said.splitlines()[-2]


def test_the_importer_of_the_module_stays_what_it_was(counted: Counted) -> None:
    code = """
    import torch.optim.optimizer as m, inspect, sys
    print(type(m.__loader__).__name__, m.__file__.endswith('optimizer.py'), len(inspect.getsource(m)) > 10)
    print(vars(m.__loader__) == {'name': m.__name__, 'path': m.__file__})
    """
    assert counted(code)[0] == "SourceFileLoader True True\nTrue\n"


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_isolated_pythons_run_uncounted(counted: Counted, flag: str) -> None:
    assert counted("print(1)", flags=(flag,)) == ("1\n", StepReading())


def test_a_python_start_imports_nothing_heavy(counted: Counted) -> None:
    heavy = {"typing", "importlib.util", "struct", "mmap", "re", "contextlib", "ctypes"}
    code = f"import sys; print(sorted(set(sys.modules) & {heavy}))"
    without = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert counted(code, SLURMWRAP_PRERUN="1")[0] == without


def test_the_syntax_is_that_of_python_3_6() -> None:
    for path in INJECT.glob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 6))


def other_pythons() -> list[str]:
    """Every other Python 3.6 to 3.14 on this machine: on PATH, or below pyenv's root."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {f"3.{minor}": shutil.which(f"python3.{minor}") for minor in range(6, 15)}
    for path in sorted(root.glob("3.*/bin/python")):
        found[".".join(path.parent.parent.name.split(".")[:2])] = str(path)
    ours = f"3.{sys.version_info.minor}"
    return [path for version, path in found.items() if path and version != ours]


@pytest.mark.parametrize(
    "python", other_pythons() or [pytest.param("", marks=pytest.mark.skip("no other Python here"))]
)
def test_other_pythons_are_counted_and_their_launchers_changed(tmp_path: Path, python: str, counted: Counted) -> None:
    code = "from torch.optim import Optimizer\no = Optimizer()\nfor i in range(7): o.step()"
    said, reading = counted(code, python=python)
    assert (said, reading.count) == ("", 7)
    launcher = tmp_path / "torchrun"
    launcher.write_text("import sys\nprint(' '.join(sys.argv[1:]))\nimport torch.distributed.run\nprint(sys.argv[1])\n")
    (tmp_path / "lib/torch/distributed").mkdir()
    (tmp_path / "lib/torch/distributed/__init__.py").touch()
    (tmp_path / "lib/torch/distributed/run.py").touch()
    environ = {"PYTHONPATH": f"{INJECT}:{tmp_path}/lib", "SLURMWRAP_PRERUN": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [python, str(launcher), "--nnodes", "4", "a.py"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=20)
    assert (done.stderr, done.stdout.splitlines()[-1]) == ("", "--standalone")
