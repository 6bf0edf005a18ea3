"""The rest of a program after its steps in a pre-run: loops, loaders and trainers are ended, connections refused.

The stand-in for torch is enough for loops; loaders are torch's own, trainers those of the frameworks.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from pythons import find_pythons
from waiting import allow

from slurmwrap.inject import slurmwrap_step
from slurmwrap.prerun.trial import step_detection

INJECT = Path(slurmwrap_step.__file__).parent
Rehearsed = Callable[..., list[str]]
REHEARSE = {"SLURMWRAP_PRERUN": "1", "SLURMWRAP_PARK_AFTER": "3", "SLURMWRAP_REHEARSE": "1"}
HEAD = """
import itertools
import sys
from torch.optim import Optimizer
o = Optimizer()

"""
# Programs whose loops are far too long, and what each prints when its loops are ended as in a rehearsal.
LOOPS = {
    "epochs and batches": (
        """
        for epoch in range(10 ** 9):
            for batch in range(10 ** 9):
                o.step()
            print("epoch", epoch, "ended after", batch)
        print("final")
        """,
        ["epoch 0 ended after 2", "epoch 1 ended after 0", "final"],
    ),
    "steps alone": (
        """
        for step in range(10 ** 9):
            o.step()
        print("final after", step)
        """,
        ["final after 2"],
    ),
    "enumerate over a generator, else, and finally": (
        """
        def batches():
            try:
                while True:
                    yield 1
            finally:
                print("closed")
        def train():
            for step, batch in enumerate(batches()):
                o.step()
            else:
                print("else")
        train()
        """,
        ["closed", "else"],
    ),
    "a loop at the end of a function, in a with and a try block": (
        """
        class Trainer:
            def fit(self):
                with open("/dev/null"):
                    try:
                        for epoch in list(range(10 ** 6)):
                            self.run_epoch()
                    finally:
                        print("cleaned")
            def run_epoch(self):
                for a, b in zip(range(10 ** 9), itertools.count()):
                    o.step()
        Trainer().fit()
        print("final")
        """,
        ["cleaned", "final"],
    ),
    "while loops with a statement after them": (
        """
        epoch = 0
        while epoch < 10 ** 9:
            step = 0
            while True:
                o.step()
                step += 1
                if step > 10 ** 9:
                    break
            print("epoch", epoch)
            epoch += 1
        print("final")
        """,
        ["epoch 0", "epoch 1", "final"],
    ),
    "a loop over optimizers is no loop over batches": (
        """
        optimizers = [Optimizer(), Optimizer()]
        for batch in range(10 ** 9):
            stepped = 0
            for one in optimizers:
                one.step(); stepped += 1
            if stepped != 2:
                print("cut")
        print("final")
        """,
        ["final"],
    ),
    "blocks that run every N iterations": (
        """
        def train():
            for step in range(10 ** 9):
                o.step()
                if (step + 1) % 1000 == 0 and step:
                    print("saves", step)
                if step % 4 == 3:
                    o.zero_grad()
                elif not step % 500:
                    print("logs", step)
                print("%d" % step)
        for epoch in range(1000):
            train()
            if epoch % 10 == 9:
                print("validates", epoch)
        print("final")
        """,
        ["logs 0", "0", "1", "saves 2", "logs 2", "2", "validates 0", "saves 0", "logs 0", "0", "validates 1", "final"],
    ),
    "a sorted dictionary, reversed, and chained iterators": (
        """
        for name in dict.fromkeys(range(1000)):
            for batch in itertools.chain(reversed(range(1000)), range(1000)):
                o.step()
            print("epoch", name)
        print("final")
        """,
        ["epoch 0", "epoch 1", "final"],
    ),
}


def read_events(folder: Path) -> list[str]:
    path = folder / "steps" / "rehearsal"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("name", LOOPS)
def test_the_loops_around_the_step_are_ended_and_the_program_runs_to_its_end(
    run_rehearsed: Rehearsed, tmp_path: Path, name: str
) -> None:
    code, expected = LOOPS[name]
    assert run_rehearsed(HEAD + textwrap.dedent(code)) == expected
    assert read_events(tmp_path)[0] == "begin"


@pytest.mark.parametrize("python", find_pythons())
def test_loops_are_ended_in_every_installed_python(run_rehearsed: Rehearsed, python: str) -> None:
    for name in ("epochs and batches", "a loop at the end of a function, in a with and a try block"):
        code, expected = LOOPS[name]
        assert run_rehearsed(HEAD + textwrap.dedent(code), python) == expected, name


def test_the_steps_of_the_record_are_those_before_the_rehearsal(tmp_path: Path, run_rehearsed: Rehearsed) -> None:
    run_rehearsed(HEAD + textwrap.dedent(LOOPS["epochs and batches"][0]))
    reading = step_detection.read_steps(str(tmp_path / "steps"))
    assert (reading.count, reading.parked) == (3, False)
    found = step_detection.read_rehearsal(str(tmp_path / "steps"))
    assert found is not None
    assert found.next_epoch
    assert found.endings == 3


def test_a_program_whose_loop_cannot_be_ended_parks(run_rehearsed: Rehearsed) -> None:
    # A recursion has no loop, so nothing can be ended.
    code = """
    import threading, os, time
    def end():
        record = "steps/%d" % os.getpid()
        while not (os.path.exists(record) and open(record).read().split()[-1:] == ["1"]):
            time.sleep(0.01)
        print("parked", flush=True)
        os._exit(0)
    threading.Thread(target=end).start()
    import slurmwrap_rehearsal
    slurmwrap_rehearsal.STILL_S = 0.0
    def work(depth):
        o.step()
        if depth < 900:
            work(depth + 1)
    work(0)
    print("not reached")
    """
    assert run_rehearsed(HEAD + textwrap.dedent(code)) == ["parked"]


def test_a_debuggers_tracer_stays_and_nothing_is_ended(run_rehearsed: Rehearsed) -> None:
    code = """
    seen = []
    def tracer(frame, event, argument):
        seen.append(event)
    sys.settrace(tracer)
    for step in range(30):
        o.step()
    print(step, sys.gettrace() is tracer)
    """
    assert run_rehearsed(HEAD + textwrap.dedent(code)) == ["29 True"]


def test_connections_to_other_machines_are_refused_after_the_steps_only(
    tmp_path: Path, run_rehearsed: Rehearsed
) -> None:
    code = """
    import errno, socket
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(5)
    for step in range(1000):
        o.step()
    here = socket.create_connection(server.getsockname())
    print("local", here.getpeername() == server.getsockname())
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=5)
    except OSError as error:
        print("slurmwrap" in str(error))
    print(socket.socket().connect_ex(("192.0.2.1", 80)) == errno.ENETUNREACH)
    finder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    print("datagram", finder.connect_ex(("127.0.0.1", 9)))
    """
    assert run_rehearsed(HEAD + textwrap.dedent(code)) == ["local True", "True", "True", "datagram 0"]
    found = step_detection.read_rehearsal(str(tmp_path / "steps"))
    assert found is not None
    assert found.refused == ("192.0.2.1",)


LOADERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = DataLoader(TensorDataset(torch.ones(400, 2)), batch_size=4)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(batch):
    model(batch[0]).sum().backward(); optimizer.step()

def evaluate():
    return sum(1 for batch in data)

def epochs():
    print("before", len(data), evaluate())
    for epoch in range(1000):
        for batch in data:
            step(batch)
        print("epoch", epoch, "evaluates", evaluate(), "of", len(data))
    print("final", evaluate())

def by_next():
    batches = iter(data)
    for at in range(50):
        step(next(batches))
    print("final", at)

def by_generator():
    def give():
        for batch in data:
            yield batch
    batches = give()
    for at in range(50):
        step(next(batches))
    print("final", at)

def again():
    batches = iter(data)
    for at in range(10 ** 9):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(data)
            batch = next(batches)
        step(batch)
    print("final", at)

# Each function in a process of its own: only the import of torch, which takes longest, is shared.
import os, sys
for function in (epochs, by_next, by_generator, again):
    if os.fork() == 0:
        function()
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


def test_torch_loaders_end_after_a_few_batches(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    printed = run_framework(tmp_path, LOADERS)
    assert printed == [
        *("before 100 100", "epoch 0 evaluates 2 of 2", "epoch 1 evaluates 2 of 2", "final 2"),
        *("final 4", "final 4", "final 4"),
    ]


def run_framework(tmp_path: Path, program: str, *arguments: str, **environ: str) -> list[str]:
    (tmp_path / "steps").mkdir()
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    own = {"PYTHONPATH": str(INJECT), "SLURMWRAP_STEP_DIR": str(tmp_path / "steps"), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "program.py", *arguments],
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **own, **REHEARSE, **environ},
        capture_output=True,
        text=True,
        timeout=allow(170),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if "RESULT" in line or not environ]


TRANSFORMERS = """
import os, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
class Data(torch.utils.data.Dataset):
    def __len__(self): return 400
    def __getitem__(self, i): return dict(input_ids=torch.arange(8), labels=torch.tensor(i % 2))
sizes = dict(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
model = BertForSequenceClassification(BertConfig(**sizes))
options = dict(num_train_epochs=100, eval_strategy="steps", eval_steps=1000, save_steps=1000, report_to=[])
arguments = TrainingArguments("out", use_cpu=True, gradient_accumulation_steps=2, disable_tqdm=True, **options)
trainer = Trainer(
    model, arguments, train_dataset=Data(), eval_dataset=Data(),
    compute_metrics=lambda found: print("RESULT metrics of", len(found.label_ids)) or {},
)
trainer.train()
print("RESULT saved", sorted(os.listdir("out")))
"""
LIGHTNING = """
import torch, lightning
from torch.utils.data import DataLoader, TensorDataset
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def training_step(self, batch, index): return self.layer(batch[0]).sum()
    def validation_step(self, batch, index): print("RESULT validation", index)
    def test_step(self, batch, index): print("RESULT test", index)
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
data = DataLoader(TensorDataset(torch.ones(400, 4)), batch_size=4)
options = dict(accelerator="cpu", check_val_every_n_epoch=7, enable_progress_bar=False, logger=False)
trainer = lightning.Trainer(max_epochs=100, num_sanity_val_steps=0, **options)
trainer.fit(Model(), data, data)
trainer.test(dataloaders=data, ckpt_path="best")
print("RESULT epochs", trainer.current_epoch)
"""
KERAS = """
import keras, numpy
model = keras.Sequential([keras.layers.Dense(2, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy")
x, y = numpy.ones((400, 4)), numpy.ones(400, dtype=int)
class Note(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None): print("RESULT epoch", epoch, "val_loss" in logs)
model.fit(x, y, epochs=100, batch_size=4, validation_data=(x, y), verbose=0, callbacks=[Note()])
print("RESULT final")
"""
TRAINERS = {
    "transformers": (TRANSFORMERS, ["metrics of 16", "metrics of 16", "saved ['checkpoint-3', 'checkpoint-4']"]),
    "lightning": (LIGHTNING, [*["validation 0", "validation 1"] * 2, "test 0", "test 1", "epochs 2"]),
    "keras": (KERAS, ["epoch 0 True", "epoch 1 True", "final"]),
}


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_validates_saves_and_stops_after_its_second_epoch(tmp_path: Path, name: str) -> None:
    program, expected = TRAINERS[name]
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed (pip install 'slurmwrap[frameworks]')")
    assert run_framework(tmp_path, program, KERAS_BACKEND="torch") == expected
