"""The number of steps of the whole training, as a pre-run finds it: stand-ins with the names of the real trainers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurmwrap.model.trial_result import StepReading

Parked = Callable[..., tuple[str, StepReading, bool]]

TRAINERS = {
    "transformers/__init__.py": "",
    "transformers/trainer.py": """
        class Holder: pass
        class Trainer:
            def __init__(self, asked, total):
                self.args, self.state = Holder(), Holder()
                self.args.max_steps, self.state.max_steps = asked, total
        """,
    "lightning/__init__.py": "",
    "lightning/pytorch/__init__.py": "",
    "lightning/pytorch/trainer/__init__.py": "",
    "lightning/pytorch/trainer/trainer.py": """
        class Trainer:
            def __init__(self, asked, total): self.max_steps, self.total = asked, total
            @property
            def estimated_stepping_batches(self): return self.total
        """,
    "keras/__init__.py": "",
    "keras/src/__init__.py": "",
    "keras/src/callbacks/__init__.py": "",
    "keras/src/callbacks/callback_list.py": """
        class CallbackList:
            def __init__(self, **params): self.params = params
            def on_train_batch_end(self, batch=0, logs=None): pass
        """,
    "tqdm/__init__.py": "from .std import tqdm\n",
    "tqdm/std.py": """
        class tqdm:
            def __init__(self, iterable=None, desc=None, total=None):
                self.iterable, self.desc = iterable, desc
                self.total = len(iterable) if total is None and iterable is not None else total
            def __iter__(self): return iter(self.iterable)
        """,
}
LOOP = """
from torch.optim import Optimizer
optimizer = Optimizer()
for i in range(9): optimizer.step()
"""
LOADER = "class Loader:\n    def __len__(self): return 50\n    def __iter__(self): return iter(range(50))\n"


@pytest.mark.parametrize(
    ("program", "total", "shared"),
    [
        ("from transformers.trainer import Trainer\nclass Mine(Trainer): pass\nt = Mine(-1, 1200)" + LOOP, 1200, True),
        ("from transformers.trainer import Trainer\nt = Trainer(900, 900)" + LOOP, 900, False),
        ("from lightning.pytorch.trainer.trainer import Trainer\nt = Trainer(-1, 700)" + LOOP, 700, True),
        ("from lightning.pytorch.trainer.trainer import Trainer\nt = Trainer(700, 700)" + LOOP, 700, False),
        ("from lightning.pytorch.trainer.trainer import Trainer\nt = Trainer(-1, float('inf'))" + LOOP, None, None),
        ("from keras.src.callbacks.callback_list import CallbackList\nc = CallbackList(epochs=5, steps=40)\n"
         "for i in range(9): c.on_train_batch_end(i)", 200, False),
        ("from keras.src.callbacks.callback_list import CallbackList\nc = CallbackList(epochs=5, steps=None)\n"
         "for i in range(9): c.on_train_batch_end(i)", None, None),
        ("from tqdm import tqdm\nbar = tqdm(range(5000))" + LOOP, 5000, None),
        ("from tqdm import tqdm\nbar = tqdm(total=5000)" + LOOP, 5000, None),
        (LOADER + "from tqdm import tqdm\na, b = tqdm(range(90)), tqdm(Loader())" + LOOP, 4500, True),
        # A bar over one epoch alone, over epochs alone, and several: nothing says how they are nested.
        (LOADER + "from tqdm import tqdm\nb = tqdm(Loader())" + LOOP, None, None),
        ("from tqdm import tqdm\nb = tqdm(range(90), desc='Epoch')" + LOOP, None, None),
        ("from tqdm import tqdm\na, b = tqdm(range(90)), tqdm(range(80))" + LOOP, None, None),
        # A trainer knows better than its progress bar. A total that is reached already is none.
        ("from tqdm import tqdm\nfrom transformers.trainer import Trainer\na, b = Trainer(-1, 12), tqdm(total=9)"
         + LOOP,
         12, True),
        ("from tqdm import tqdm\nbar = tqdm(range(3))" + LOOP, None, None),
        (LOOP, None, None),
    ],
)  # fmt: skip
def test_the_total_is_read_from_the_trainer_or_the_progress_bar(
    run_until_parked: Parked, program: str, total: int | None, shared: bool | None
) -> None:
    said, reading, alive = run_until_parked(program, modules=TRAINERS)
    assert (said, alive, reading.count) == ("", True, 3)
    assert (reading.total, reading.total_is_shared) == (total, shared)


def test_objects_that_raise_when_looked_at_do_no_harm(run_until_parked: Parked) -> None:
    program = """
class Hostile(type):
    def mro(cls): return type.mro(cls)
    def __getattribute__(cls, name): raise RuntimeError(name)
class Thing(metaclass=Hostile):
    __class__ = property(lambda self: 1 / 0)
    def __getattribute__(self, name): raise RuntimeError(name)
thing = Thing()
from tqdm import tqdm
class Bar(tqdm):
    @property
    def total(self): raise RuntimeError
    @total.setter
    def total(self, value): pass
bar = Bar(range(5))
"""
    said, reading, alive = run_until_parked(program + LOOP, modules=TRAINERS)
    assert (said, alive, reading.count, reading.total) == ("", True, 3, None)
