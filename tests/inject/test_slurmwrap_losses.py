"""The losses that the step counter records in a real job: which ones, from where, and that the program is unchanged."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pythons import find_pythons

from slurmwrap.inject import slurmwrap_step
from slurmwrap.node_hooks import step_counts

INJECT = Path(slurmwrap_step.__file__).parent
TORCH = {
    "torch/__init__.py": """
        class Device:
            def __init__(self, type, index=0): self.type, self.index = type, index
            def __eq__(self, other): return (self.type, self.index) == (other.type, other.index)
        class Tensor:
            def __init__(self, value, kind='cpu'):
                self.value, self.is_cuda, self.device = value, kind == 'cuda', Device(kind)
            def numel(self): return 1
            def data_ptr(self): return 1
            def as_subclass(self, kind): return self
            def item(self):
                if self.is_cuda: raise RuntimeError('this would wait for the GPU')
                return self.value
            def detach(self): return Tensor(self.value, self.device.type)
            def reshape(self, shape): return self
            def copy_(self, other, non_blocking): self.value = other.value
            def backward(self): autograd.backward(self)
        def empty(size, dtype, device, pin_memory):
            class Block:
                def unbind(self): return [Tensor(None) for _ in range(size)]
            return Block()
        float32 = 'float32'
        class cuda:
            arrived, capturing = True, False
            is_initialized = staticmethod(lambda: False)
            is_current_stream_capturing = classmethod(lambda kind: kind.capturing)
            current_stream = staticmethod(lambda device: None)
            class Event:
                def record(self, stream): pass
                def query(self): return cuda.arrived
        from . import autograd, optim
        from .amp import grad_scaler
        """,
    "torch/autograd/__init__.py": """
        def _engine_run_backward(tensors, accumulate_grad=False): tensors[0].__dict__.get('run', int)()
        def backward(*tensors): _engine_run_backward(tensors, accumulate_grad=True)
        def grad(*tensors): _engine_run_backward(tensors, accumulate_grad=False)
        """,
    "torch/optim/__init__.py": "from .optimizer import Optimizer\n",
    "torch/optim/optimizer.py": """
        hooks = []
        def register_optimizer_step_post_hook(hook): hooks.append(hook)
        class Optimizer:
            param_groups = ()
            def step(self):
                for hook in hooks: hook(self, (), {})
        """,
    "torch/amp/__init__.py": "",
    "torch/amp/grad_scaler.py": """
        class GradScaler:
            def scale(self, outputs):
                from torch import Tensor
                return Tensor(outputs.value * 1024, outputs.device.type)
        """,
    "deepspeed/__init__.py": "",
    "deepspeed/runtime/__init__.py": "",
    "deepspeed/runtime/engine.py": """
        class DeepSpeedEngine:
            module, skipped_steps = None, 0
            def gradient_accumulation_steps(self): return 2
            def backward(self, loss):
                from torch import Tensor
                Tensor(loss.value * 512).backward()
            def _take_model_step(self): pass
        """,
    "keras/__init__.py": "",
    "keras/callbacks.py": """
        class CallbackList:
            params = {'steps': 4}
            def on_train_batch_end(self, batch, logs=None): pass
            def on_epoch_end(self, epoch, logs=None): print(epoch, end='', file=open('epochs', 'a'))
        """,
    "megatron/__init__.py": "",
    "megatron/training/__init__.py": "",
    "megatron/training/training.py": """
        def train_step(loss):
            from torch import Tensor
            return {'tokens': 7, 'lm loss': Tensor(loss)}, 0, 1.0
        """,
}
BEGIN = "import torch, sys\nfrom torch import Tensor\noptimizer = torch.optim.Optimizer()\nstep = optimizer.step\n"


def run_recorded(tmp_path: Path, code: str, python: str = sys.executable, **environ: str) -> dict[str, Any]:
    """Runs code with a stand-in for torch as in a job of --count-steps; returns the losses. It must print nothing."""
    for name, source in TORCH.items():
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(textwrap.dedent(source))
    return run_with(tmp_path, BEGIN + textwrap.dedent(code), f"{INJECT}:{tmp_path / 'lib'}", python, **environ)


def run_with(tmp_path: Path, code: str, path: str, python: str = sys.executable, **environ: str) -> dict[str, Any]:
    (tmp_path / "steps").mkdir(exist_ok=True)
    own = {"PYTHONPATH": path, "SLURMWRAP_STEP_DIR": str(tmp_path / "steps"), "SLURMWRAP_STEP_NAMED": "1"}
    own |= {"SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n1", "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run([python, "-c", code], env=own | environ, capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)
    return step_counts.losses(os.fsencode(tmp_path / "steps"), 5, os.geteuid(), 1.0, 0)


def list_losses(found: dict[str, Any]) -> list[tuple[int, float]]:
    return [(step, loss) for step, _, loss in found.get("points", ())]


def test_the_loss_of_a_step_is_the_sum_of_its_backward_passes(tmp_path: Path) -> None:
    found = run_recorded(
        tmp_path,
        """
        Tensor(4.0).backward(); step()
        for micro in (1.5, 0.5): Tensor(micro).backward()
        torch.autograd.grad(Tensor(100.0))
        step()
        outer = Tensor(1.0); outer.run = lambda: Tensor(50.0).backward(); outer.backward(); step()
        """,
    )
    assert list_losses(found) == [(1, 4.0), (2, 2.0), (3, 1.0)]
    assert (found["taken"], found["bad"]) == (3, 0)
    assert found["points"][0][1] <= found["points"][1][1]


def test_a_step_without_a_backward_pass_has_no_loss(tmp_path: Path) -> None:
    assert list_losses(run_recorded(tmp_path, "step(); Tensor(4.0).backward(); step(); step()")) == [(2, 4.0)]
    assert run_recorded(tmp_path / "2", "step()") == {}


@pytest.mark.parametrize("python", find_pythons())
def test_a_scaled_loss_is_recorded_before_scaling(tmp_path: Path, python: str) -> None:
    code = "s = torch.grad_scaler.GradScaler()\nfor loss in (3.0, 2.0): s.scale(Tensor(loss)).backward(); step()"
    assert list_losses(run_recorded(tmp_path, code, python)) == [(1, 3.0), (2, 2.0)]


def test_losses_that_are_nan_or_infinite_are_counted_and_left_out(tmp_path: Path) -> None:
    code = "for loss in (3.0, float('nan'), 2.0, float('inf'), float('nan')): Tensor(loss).backward(); step()"
    found = run_recorded(tmp_path, code)
    assert (found["taken"], found["bad"], found["bad_at_end"], list_losses(found)) == (5, 3, 2, [(1, 3.0), (3, 2.0)])


def test_the_history_is_bounded_and_its_rows_are_means(tmp_path: Path) -> None:
    found = run_recorded(tmp_path, "for i in range(1, 10_001): Tensor(float(i)).backward(); step()")
    losses = list_losses(found)
    assert 128 <= len(losses) <= 257 and losses[-1][0] == found["taken"] == 10_000
    begin = 0
    for step, loss in losses:
        assert loss == pytest.approx((begin + 1 + step) / 2)
        begin = step


GPU = "loss = lambda value: Tensor(value, 'cuda')\n"
AT_ONCE = GPU + "sys.modules['slurmwrap_losses'].TAKEN_EVERY_S = 0.0\n"


def test_a_loss_on_a_gpu_is_read_when_the_gpu_has_delivered_it(tmp_path: Path) -> None:
    code = """
        torch.cuda.arrived = False
        for value in (4.0, 3.0): loss(value).backward(); loss(1.0).backward(); step()
        assert not sys.modules["slurmwrap_counter"].counter.losses.rows
        torch.cuda.arrived = True
        step()
        """
    assert list_losses(run_recorded(tmp_path, AT_ONCE + textwrap.dedent(code))) == [(1, 5.0), (2, 4.0)]


def test_losses_on_two_gpus_in_one_step_are_left_out(tmp_path: Path) -> None:
    code = AT_ONCE + textwrap.dedent("""
        other = loss(5.0); other.device = torch.Device("cuda", 1)
        loss(4.0).backward(); other.backward(); step()
        loss(3.0).backward(); step(); step()
        assert len(sys.modules["slurmwrap_counter"].counter.losses.free) == 1024
        """)
    assert list_losses(run_recorded(tmp_path, code)) == [(2, 3.0)]


def test_losses_on_a_gpu_are_taken_at_most_ten_times_a_second(tmp_path: Path) -> None:
    code = GPU + textwrap.dedent("""
        now = [100.0]
        sys.modules["slurmwrap_counter"].counter.clock = lambda: now[0]
        for number in range(1, 41): now[0] += 0.03; loss(number).backward(); step()
        """)
    steps = [step for step, _ in list_losses(run_recorded(tmp_path, code))]
    assert steps[0] == 1 and 8 <= len(steps) <= 12


def test_a_gpu_that_is_far_behind_or_captures_a_graph_costs_only_losses(tmp_path: Path) -> None:
    code = AT_ONCE + textwrap.dedent("""
        torch.cuda.arrived = False
        for _ in range(3000): loss(1.0).backward(); step()
        torch.cuda.arrived = torch.cuda.capturing = True
        loss(70.0).backward(); step()
        torch.cuda.capturing = False
        loss(9.0).backward(); step(); step()
        losses = sys.modules["slurmwrap_counter"].counter.losses
        assert (len(losses.free), losses.waiting) == (1024, []), len(losses.free)
        """)
    found = run_recorded(tmp_path, code)
    assert (found["taken"], list_losses(found)[-1]) == (1025, (3002, 9.0))


def test_a_forked_child_has_losses_of_its_own(tmp_path: Path) -> None:
    code = """
        import os
        Tensor(4.0).backward(); step()
        if os.fork() == 0:
            Tensor(7.0).backward(); step(); Tensor(6.0).backward(); step()
            sys.exit()
        os.wait()
        """
    assert list_losses(run_recorded(tmp_path, code)) == [(1, 7.0), (2, 6.0)]
    assert len(list((tmp_path / "steps").glob("*.loss"))) == 2


def test_deepspeed_and_megatron_losses_are_those_of_the_program(tmp_path: Path) -> None:
    code = """
        from deepspeed.runtime.engine import DeepSpeedEngine
        engine = DeepSpeedEngine()
        for value in (4.0, 3.0):
            for _ in range(2): engine.backward(Tensor(value))
            engine._take_model_step()
        """
    assert list_losses(run_recorded(tmp_path, code)) == [(1, 4.0), (2, 3.0)]
    code = "import megatron.training.training as m\nm.train_step(8.0); m.train_step(7.0)"
    assert list_losses(run_recorded(tmp_path / "2", code)) == [(1, 8.0), (2, 7.0)]


def test_keras_records_the_mean_loss_of_each_epoch(tmp_path: Path) -> None:
    code = """
        from keras.callbacks import CallbackList
        callbacks = CallbackList()
        for epoch in range(3):
            for batch in range(4): callbacks.on_train_batch_end(batch, {})
            callbacks.on_epoch_end(epoch, {'loss': 2.0 - epoch / 2})
        callbacks.on_epoch_end(3, {})
        """
    assert list_losses(run_recorded(tmp_path, code)) == [(4, 2.0), (8, 1.5), (12, 1.0)]
    assert (tmp_path / "epochs").read_text() == "0123"


@pytest.mark.parametrize(
    "harm",
    [
        "Tensor.numel = lambda self: 1 / 0",
        "Tensor.item = lambda self: 1 / 0",
        "torch.Tensor = None",
        "import os; os.pwrite = None; del sys.modules['slurmwrap_step']",
        "torch.autograd.backward(*[Tensor(1.0)] * 3)",
        "import builtins; Tensor.numel = lambda self: builtins.int('x')",
    ],
)
def test_no_fault_of_the_recording_reaches_the_program(tmp_path: Path, harm: str) -> None:
    run_recorded(tmp_path, f"{harm}\nfor _ in range(3): torch.autograd.backward(Tensor(1.0)); step()")


def test_the_error_of_a_backward_pass_passes_through(tmp_path: Path) -> None:
    code = """
        bad = Tensor(1.0); bad.run = lambda: {}['x']
        for _ in range(2):
            try: bad.backward()
            except KeyError: pass
            else: print('no error')
        Tensor(3.0).backward(); step()
        """
    assert list_losses(run_recorded(tmp_path, code))[-1][0] == 1


def test_no_loss_is_recorded_in_a_pre_run(tmp_path: Path) -> None:
    code = "Tensor(4.0).backward(); step()\nassert 'slurmwrap_losses' not in sys.modules or not sys.modules[" + (
        "'slurmwrap_counter'].counter.losses"
    )
    run_recorded(tmp_path, code, SLURMWRAP_STEP_NAMED="", SLURMWRAP_PRERUN="1")
    assert not list((tmp_path / "steps").glob("*.loss"))


REAL = """
import gc, logging, torch, weakref
logging.disable(logging.WARNING)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
x = torch.ones(8, 4)
said = []
def objective(of): return (model(x).mean() ** 2 + 1.0) / of
for number in range(300):
    optimizer.zero_grad()
    if number % 3 == 0:
        loss = objective(1); loss.backward(); optimizer.step()
        said.append(loss.item())
    elif number % 3 == 1:
        parts = [objective(2), objective(2)]
        for part in parts: part.backward()
        optimizer.step()
        said.append(sum(part.item() for part in parts))
    else:
        loss = objective(1); scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
        said.append(loss.item())
gone = weakref.ref(loss)
loss.grad_fn.metadata["held"] = Held = type("Held", (), {})()
held = weakref.ref(Held)
del loss, Held, parts, part; gc.collect()
assert gone() is None and held() is None, "the graph is kept alive"
compiled = torch.compile(lambda: objective(1), backend="eager")
def train():
    loss = compiled(); loss.backward(); optimizer.step(); optimizer.zero_grad(); return loss.detach()
train = torch.compile(train, backend="eager")
said += [train().item() for _ in range(3)]
open("said", "w").write(repr(said))
"""


@pytest.mark.torch
def test_real_torch_records_the_losses_of_the_program(tmp_path: Path) -> None:
    found = run_with(tmp_path, REAL, str(INJECT), HOME=str(tmp_path))
    said = eval((tmp_path / "said").read_text())
    assert (found["taken"], found["bad"], found["points"][-1][0]) == (303, 0, 303)
    begin = 0
    for step, loss in list_losses(found):
        assert math.isclose(loss, sum(said[begin:step]) / (step - begin), rel_tol=1e-5)
        begin = step
