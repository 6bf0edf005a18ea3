"""Counting steps in framework layers, with stand-ins that have the names and the call order of the real ones.

DeepSpeed: runtime/engine.py (step, _take_model_step) and runtime/zero/stage3.py (one inner step() per sub-group).
Megatron-LM: training/training.py (train calls the module's train_step). tf.keras: callbacks.CallbackList.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurmwrap.inject.slurmwrap_torch import WEAK_STEPS
from slurmwrap.model.trial_result import StepReading

Counted = Callable[..., tuple[str, StepReading]]
Parked = Callable[..., tuple[str, StepReading, bool]]

ENGINE = {
    "deepspeed/__init__.py": "",
    "deepspeed/runtime/__init__.py": "",
    "deepspeed/runtime/engine.py": """
        from torch.optim import Optimizer
        class Tensor:
            requires_grad = True
            def __init__(self, n, shard): self.ds_numel, self.shard = n, shard
            def numel(self): return self.shard
            def element_size(self): return 2
        class Module:
            def parameters(self): return iter([Tensor(6 << 20, 1), Tensor(2 << 20, 0)])
        class DeepSpeedEngine:
            def __init__(self, sub_groups, accumulation=1):
                self.inner, self.sub_groups, self.accumulation = Optimizer(), sub_groups, accumulation
                self.skipped_steps = self.global_steps = self.micro_steps = 0
                self.module = Module()
            def step(self, overflow=False):
                if (self.micro_steps + 1) % self.accumulation == 0:
                    self._take_model_step(None, overflow=overflow)
                self.micro_steps += 1
            def _take_model_step(self, lr_kwargs, block_eigenvalue={}, overflow=False):
                if overflow:
                    self.skipped_steps += 1
                else:
                    for group in range(self.sub_groups): self.inner.step()
                self.global_steps += 1
        """,
}
MEGATRON = {
    "megatron/__init__.py": "",
    "megatron/training/__init__.py": "from .training import pretrain, train_step\n",
    "megatron/training/training.py": """
        from torch.optim import Optimizer
        def pretrain(iterations):
            model, optimizers = [], [Optimizer(), Optimizer()]
            for i in range(iterations):
                loss, skipped, *_ = train_step(None, None, model, optimizers, None, None)
        def train_step(forward_step_func, data_iterator, model, optimizer, opt_param_scheduler, config):
            'Single training step.'
            calls.append(1)
            if len(calls) == 2: return {}, 1, False, False, 0, None, None
            for one in optimizer: one.step(); one.step()
            return {'lm loss': 1.0}, 0, False, False, 0, 1.0, None
        calls = []
        """,
}
KERAS = """
    class CallbackList:
        def __init__(self, steps=None): self.params = {'steps': steps}
        def on_train_batch_end(self, batch, logs=None): return batch
    def fit(batches, group=1, epochs=1):
        callbacks = CallbackList(batches)
        for epoch in range(epochs):
            for begin in range(0, batches, group):
                callbacks.on_train_batch_end(begin + group - 1, {})
    """


def test_zero_3_counts_steps_of_the_engine_and_not_of_its_sub_groups(run_counted: Counted) -> None:
    code = """
    from deepspeed.runtime.engine import DeepSpeedEngine
    engine = DeepSpeedEngine(sub_groups=7, accumulation=4)
    for i in range(20): engine.step()
    """
    output, reading = run_counted(code, modules=ENGINE)
    assert (output, reading.source, reading.count) == ("", "deepspeed", 5)
    assert (reading.model_mib, reading.largest_tensor_mib) == (16.0, 12.0)


def test_the_highest_count_of_two_engines_is_taken_without_overflows(run_counted: Counted) -> None:
    code = """
    from deepspeed.runtime.engine import DeepSpeedEngine
    actor, critic = DeepSpeedEngine(2), DeepSpeedEngine(2)
    for i in range(10):
        actor.step(overflow=i < 3); critic.step(overflow=i < 6)
    """
    output, reading = run_counted(code, modules=ENGINE)
    assert (output, reading.source, reading.count) == ("", "deepspeed", 7)


def test_a_deepspeed_run_parks_after_whole_steps(run_until_parked: Parked) -> None:
    code = """
    from deepspeed.runtime.engine import DeepSpeedEngine
    engine = DeepSpeedEngine(sub_groups=7)
    while True: print(engine.global_steps); engine.step()
    """
    output, reading, alive = run_until_parked(code, modules=ENGINE)
    assert (output, reading.source, reading.count, alive) == ("0\n1\n2\n", "deepspeed", 3, True)


def test_megatron_counts_iterations_that_were_not_skipped(run_counted: Counted) -> None:
    code = """
    import megatron.training as m
    m.pretrain(6)
    print(m.train_step.__doc__, m.train_step.__name__)
    """
    output, reading = run_counted(code, modules=MEGATRON)
    assert (output, reading.source, reading.count) == ("Single training step. train_step\n", "megatron", 5)


@pytest.mark.parametrize(
    "name",
    [
        "keras/callbacks.py",
        "keras/src/callbacks.py",
        "keras/src/callbacks/callback_list.py",
        "tf_keras/src/callbacks.py",
        "tensorflow/python/keras/callbacks.py",
    ],
)
def test_keras_counts_batches_at_every_known_location_of_its_callbacks(run_counted: Counted, name: str) -> None:
    parts = name.removesuffix(".py").split("/")
    packages = {"/".join(parts[: n + 1]) + "/__init__.py": "" for n in range(len(parts) - 1)}
    code = f"from {'.'.join(parts)} import fit\nfit(7)\nfit(5)\n"
    output, reading = run_counted(code, modules={**packages, name: KERAS})
    assert (output, reading.source, reading.count) == ("", "keras", 12)


def test_batches_in_keras_groups_are_counted_one_by_one(run_counted: Counted) -> None:
    packages = {"keras/__init__.py": "", "keras/callbacks.py": KERAS}
    output, reading = run_counted("from keras.callbacks import fit\nfit(7, group=3, epochs=2)\n", modules=packages)
    assert (output, reading.count) == ("", 14)


def test_a_custom_loop_with_train_on_batch_counts_the_busiest_model(run_counted: Counted) -> None:
    training = "class Model:\n    def train_on_batch(self, x, y=None): return [x]\n"
    packages = dict.fromkeys(("keras/__init__.py", "keras/src/__init__.py", "keras/src/models/__init__.py"), "")
    code = """
    from keras.src.models.model import Model
    class Critic(Model): pass
    generator, critic = Model(), Critic()
    for i in range(6):
        critic.train_on_batch(1, y=2); critic.train_on_batch(1)
        assert generator.train_on_batch(3) == [3]
    """
    output, reading = run_counted(code, modules={**packages, "keras/src/models/model.py": training})
    assert (output, reading.source, reading.count) == ("", "keras", 12)


JAX = "def jit(fun=None, **options):\n    return fun if fun else lambda f: f\n"


def test_jax_is_counted_only_on_request(run_counted: Counted) -> None:
    code = """
    import jax
    from functools import partial
    @jax.jit
    def train(x): return x + 1
    @partial(jax.jit, static_argnums=0)
    def evaluate(x): return x
    class Model:
        @jax.jit
        def apply(self, x): return x
    for i in range(9): assert train(i) == i + 1
    for i in range(4): assert evaluate(i) == i and Model().apply(i) == i
    print(train.__name__)
    """
    modules = {"jax/__init__.py": JAX}
    assert run_counted(code, modules=modules) == ("train\n", StepReading())
    output, reading = run_counted(code, modules=modules, SLURMWRAP_COUNT_JAX="1")
    assert (output, reading.source, reading.count) == ("train\n", "jax", 9)


WEAK = {
    "torch/autograd/__init__.py": """
        def _engine_run_backward(*tensors, accumulate_grad=False, nested=0):
            for _ in range(nested): backward(1)
        def backward(*tensors, **more): _engine_run_backward(*tensors, accumulate_grad=True, **more)
        def grad(*tensors): _engine_run_backward(*tensors, accumulate_grad=False)
        plain = _engine_run_backward
        """,
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": "",
    "torch/utils/data/dataloader.py": """
        class _BaseDataLoaderIter:
            def __init__(self, n): self.left = n
            def __iter__(self): return self
            def __next__(self):
                if not self.left: raise StopIteration
                self.left -= 1
                return self.left
        plain = _BaseDataLoaderIter.__next__
        """,
}
IMPORTS = """
    import torch.autograd, torch.optim
    from torch.utils.data import dataloader
    """
QUICK = "import sys; weak = sys.modules['slurmwrap_torch']; weak.WEAK_S = 0.0"


def test_backward_passes_are_counted_when_no_optimizer_steps(run_counted: Counted) -> None:
    code = f"""{IMPORTS}
    for batch in dataloader._BaseDataLoaderIter(8): torch.autograd.backward(batch, nested=3)
    torch.autograd.grad(1)
    """
    output, reading = run_counted(code, modules=WEAK)
    assert (output, reading.source, reading.count, reading.exact) == ("", "backward", 8, False)


def test_dataloader_batches_are_counted_when_there_are_no_backward_passes(run_counted: Counted) -> None:
    code = f"{IMPORTS}\n    print(sum(1 for batch in dataloader._BaseDataLoaderIter(8)))"
    output, reading = run_counted(code, modules=WEAK)
    assert (output, reading.source, reading.count) == ("8\n", "dataloader", 8)


def test_outside_a_trial_backward_passes_and_batches_are_not_counted(run_counted: Counted) -> None:
    code = f"""{IMPORTS}
    print(dataloader._BaseDataLoaderIter.__next__ is dataloader.plain)
    torch.autograd.backward(next(dataloader._BaseDataLoaderIter(8)))
    """
    output, reading = run_counted(code, modules=WEAK, SLURMWRAP_STEP_NAMED="1")
    assert (output, reading) == ("True\n", StepReading())


def test_the_first_optimizer_step_removes_the_other_wrappers(run_counted: Counted) -> None:
    code = f"""{IMPORTS}
    batches = dataloader._BaseDataLoaderIter(8)
    torch.autograd.backward(next(batches)); o = torch.optim.Optimizer(); o.step()
    torch.autograd.backward(next(batches)); next(batches)
    print(torch.autograd._engine_run_backward is torch.autograd.plain)
    print(dataloader._BaseDataLoaderIter.__next__ is dataloader.plain)
    """
    output, reading = run_counted(code, modules=WEAK)
    assert (output, reading.source, reading.count) == ("True\nTrue\n", "optimizer", 1)


def test_gradient_accumulation_does_not_park_before_the_first_step(run_until_parked: Parked) -> None:
    code = f"""{IMPORTS}
    {QUICK}
    o = torch.optim.Optimizer()
    for step in range(4):
        for micro in range(3 * weak.WEAK_STEPS): torch.autograd.backward(1)
        print(step); o.step()
    """
    output, reading, alive = run_until_parked(code, modules=WEAK)
    assert (output, reading.source, reading.count, alive) == ("0\n1\n2\n", "optimizer", 3, True)


def test_a_program_without_any_optimizer_parks_after_many_backward_passes(run_until_parked: Parked) -> None:
    code = f"{IMPORTS}\n    {QUICK}\n    while True: torch.autograd.backward(1)"
    _, reading, alive = run_until_parked(code, modules=WEAK)
    assert (reading.source, reading.count, reading.parked, alive) == ("backward", WEAK_STEPS, True, True)


def test_backward_passes_within_a_short_time_do_not_park(run_until_parked: Parked) -> None:
    code = f"{IMPORTS}\n    for i in range(5 * {WEAK_STEPS}): torch.autograd.backward(1)\n    print('over')"
    output, reading, alive = run_until_parked(code, modules=WEAK)
    assert (output, reading.count, alive) == ("over\n", 5 * WEAK_STEPS, False)


@pytest.mark.parametrize(("other", "parks"), [("jax", True), ("json", False)])
def test_batches_park_a_trial_only_if_another_framework_is_imported(
    run_until_parked: Parked, other: str, parks: bool
) -> None:
    code = f"""{IMPORTS}
    {QUICK}
    import {other}
    for batch in dataloader._BaseDataLoaderIter(3 * weak.WEAK_STEPS): pass
    print('over')
    """
    output, reading, alive = run_until_parked(code, modules={**WEAK, "jax/__init__.py": JAX})
    assert (reading.source, reading.parked, alive, output) == ("dataloader", parks, parks, "" if parks else "over\n")


NESTED = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class Optimizer:
    def __init__(self):
        if not getattr(type(self).step, 'hooked', False):
            type(self).step = profiled(type(self).step)
            type(self).step.hooked = True
    def step(self): pass
def profiled(func):
    def wrapper(*args, **kwargs):
        self = args[0]
        out = func(*args, **kwargs)
        for hook in hooks: hook(self, args, kwargs)
        return out
    return wrapper
class SGD(Optimizer):
    def step(self): pass
class Own(SGD):
    def step(self): return super().step()
"""


def test_a_subclass_that_calls_its_parents_step_is_counted_once(run_counted: Counted) -> None:
    code = """
    from torch.optim.optimizer import SGD, Own
    plain, own = SGD(), Own()
    for i in range(10): own.step()
    """
    output, reading = run_counted(code, optimizer=NESTED)
    assert (output, reading.count) == ("", 10)


SKIPS = """
    import sys
    from torch.optim import Optimizer
    class Inf:
        def __init__(self, value, kind): self.value, self.device = value, self; self.type = kind
        def __float__(self): asked.append(1); return self.value
    asked = []
    o = Optimizer()
    for i, value in enumerate([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]):
        o.found_inf = Inf(value, kind)
        print(i, len(asked)); o.step()
        del o.found_inf
    """


def test_a_skipped_step_of_a_fused_optimizer_is_not_counted(run_counted: Counted) -> None:
    _, reading = run_counted(f"    kind = 'cpu'{SKIPS}")
    assert reading.count == 5


def test_skipped_steps_are_read_from_the_gpu_only_shortly_before_parking(run_until_parked: Parked) -> None:
    output, reading, alive = run_until_parked(f"    kind = 'cuda'{SKIPS}")
    assert (output, reading.count, alive) == ("0 0\n1 0\n2 0\n3 3\n4 4\n", 3, True)


def test_a_relative_step_directory_is_not_written(tmp_path: Path, run_counted: Counted) -> None:
    run_counted("from torch.optim import Optimizer\nOptimizer().step()", SLURMWRAP_STEP_DIR="steps")
    assert list((tmp_path / "steps").iterdir()) == []


def test_keras_batches_count_once_if_two_modules_share_the_callbacks(run_counted: Counted) -> None:
    packages = dict.fromkeys(("keras/__init__.py", "tf_keras/__init__.py", "tf_keras/src/__init__.py"), "")
    packages["keras/callbacks.py"] = KERAS
    packages["tf_keras/src/callbacks.py"] = "from keras.callbacks import CallbackList, fit"
    output, reading = run_counted("from tf_keras.src.callbacks import fit\nfit(7)\n", modules=packages)
    assert (output, reading.source, reading.count) == ("", "keras", 7)
