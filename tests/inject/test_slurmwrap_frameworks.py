"""The step counter in real frameworks: its count must equal the framework's own count."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import allow, wait_for

from slurmwrap.inject import slurmwrap_step
from slurmwrap.node_hooks import step_counts
from slurmwrap.prerun.trial import step_detection

INJECT = Path(slurmwrap_step.__file__).parent

KERAS = """
import numpy as np, keras
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=GROUP)
x, y = np.zeros((14, 4)), np.zeros((14, 1))
model.fit(x, y, batch_size=2, epochs=2, verbose=0, validation_data=(x, y))
model.evaluate(x, y, verbose=0)
print(int(model.optimizer.iterations.numpy()))
"""
CUSTOM_LOOP = """
import numpy as np, keras
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for i in range(9): model.train_on_batch(np.zeros((2, 4)), np.zeros((2, 1)))
print(int(model.optimizer.iterations.numpy()))
"""
LIGHTNING = """
import torch, lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index): return self.layer(batch[0]).sum()
    def validation_step(self, batch, index): pass
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(24, 4)), batch_size=2)
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=5)
trainer.fit(Model(), data, data)
print(trainer.global_step)
"""
TRANSFORMERS = """
import torch
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": out.sum(), "logits": out}
data = [{"x": torch.zeros(4), "labels": torch.zeros(1)} for _ in range(24)]
arguments = TrainingArguments("out", per_device_train_batch_size=2, gradient_accumulation_steps=3, num_train_epochs=3,
    use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no")
trainer = Trainer(Model(), arguments, train_dataset=data)
trainer.train()
print(trainer.state.global_step)
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(layer.parameters())
layer, optimizer = accelerator.prepare(layer, optimizer)
for i in range(20):
    with accelerator.accumulate(layer):
        accelerator.backward(layer(torch.zeros(2, 4)).sum()); optimizer.step(); optimizer.zero_grad()
print(int(optimizer.optimizer.state[layer.weight]["step"]))
"""
JAX = """
import jax, jax.numpy as jnp, optax
optimizer = optax.sgd(0.1)
@jax.jit
def train(p, s, x):
    g = jax.grad(lambda p: ((p * x) ** 2).sum())(p)
    u, s = optimizer.update(g, s, p)
    return optax.apply_updates(p, u), s
p = jnp.ones(3); s = optimizer.init(p)
for i in range(11): p, s = train(p, s, 1.0)
print(i + 1)
"""
PROGRAMS = {
    "Keras on torch": ("keras torch", "keras", KERAS.replace("GROUP", "1")),
    "Keras on JAX in groups": ("keras jax", "keras", KERAS.replace("GROUP", "3")),
    "Keras batch by batch": ("keras jax", "keras", CUSTOM_LOOP),
    "Lightning accumulating": ("lightning", "optimizer", LIGHTNING),
    "transformers accumulating": ("transformers", "optimizer", TRANSFORMERS),
    "accelerate accumulating": ("accelerate", "optimizer", ACCELERATE),
    "JAX where asked for": ("jax optax", "jax", JAX),
}


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_step_count_equals_the_frameworks_own_count(tmp_path: Path, name: str) -> None:
    needs, source, program = PROGRAMS[name]
    for package in needs.split():
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (pip install 'slurmwrap[frameworks]')")
    (tmp_path / "steps").mkdir()
    (tmp_path / "program.py").write_text(program)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "SLURMWRAP_COUNT_JAX": "1"}
    environ |= {"PYTHONPATH": str(INJECT), "SLURMWRAP_STEP_DIR": str(tmp_path / "steps")}
    environ |= {"KERAS_BACKEND": needs.rpartition(" ")[2]}
    argv = [sys.executable, "-W", "ignore", "program.py"]
    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    reading = step_detection.read_steps(str(tmp_path / "steps"))
    assert (reading.source, reading.count) == (source, int(done.stdout.split()[-1]))


# Steps of the whole training, as the uninterrupted programs print them, and whether more processes would divide them.
TOTALS = {
    "Keras on torch": (14, False),
    "Keras on JAX in groups": (14, False),
    "Lightning accumulating": (6, True),
    "transformers accumulating": (12, True),
}


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.parametrize("name", TOTALS)
def test_a_pre_run_finds_the_steps_of_the_whole_training(tmp_path: Path, name: str) -> None:
    needs, _, program = PROGRAMS[name]
    for package in needs.split():
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (pip install 'slurmwrap[frameworks]')")
    (tmp_path / "steps").mkdir()
    (tmp_path / "program.py").write_text(program)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "SLURMWRAP_PARK_AFTER": "2"}
    environ |= {"PYTHONPATH": str(INJECT), "SLURMWRAP_STEP_DIR": str(tmp_path / "steps")}
    environ |= {"KERAS_BACKEND": needs.rpartition(" ")[2]}
    argv = [sys.executable, "-W", "ignore", "program.py"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(argv, env=environ, cwd=tmp_path, stdout=said, stderr=said)
        try:
            reading = wait_for(
                lambda: step_detection.read_steps(str(tmp_path / "steps")),
                lambda seen: seen.parked or process.poll() is not None,
                timeout=allow(60),
            )
        finally:
            process.kill()
            process.wait()
    assert reading.parked, (tmp_path / "said").read_text()
    assert (reading.total, reading.total_is_shared) == TOTALS[name]


# Programs that write the loss of each of their steps to the file `said`, as the framework itself reports it.
LOSSES = {
    "lightning": """
import torch, lightning
said = []
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        loss = ((self.layer(batch[0]) - 1) ** 2).mean()
        said.append(loss.item())
        return loss
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(60, 4)), batch_size=2)
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=5)
trainer.fit(Model(), data)
open("said", "w").write(repr([sum(said[i : i + 5]) / 5 for i in range(0, len(said), 5)]))
""",
    "transformers": """
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": ((out - 1) ** 2).mean(), "logits": out}
said = []
class Note(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        if "loss" in logs: said.append(float(logs["loss"]))
data = [{"x": torch.randn(4), "labels": torch.zeros(1)} for _ in range(24)]
arguments = TrainingArguments("out", per_device_train_batch_size=2, gradient_accumulation_steps=3, num_train_epochs=3,
    use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=1)
Trainer(Model(), arguments, train_dataset=data, callbacks=[Note()]).train()
open("said", "w").write(repr(said))
""",
    "accelerate": """
import torch
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(layer.parameters())
layer, optimizer = accelerator.prepare(layer, optimizer)
said = []
for i in range(20):
    with accelerator.accumulate(layer):
        loss = (layer(torch.randn(2, 4)) ** 2).mean()
        said.append(loss.item() / 4)
        accelerator.backward(loss); optimizer.step(); optimizer.zero_grad()
open("said", "w").write(repr([sum(said[i : i + 4]) for i in range(0, 20, 4)]))
""",
}


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.parametrize("package", LOSSES)
def test_the_recorded_losses_are_the_frameworks_own(tmp_path: Path, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed (pip install 'slurmwrap[frameworks]')")
    (tmp_path / "steps").mkdir()
    (tmp_path / "program.py").write_text(LOSSES[package])
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "SLURM_JOB_ID": "5"}
    environ |= {"PYTHONPATH": str(INJECT), "SLURMWRAP_STEP_DIR": str(tmp_path / "steps"), "SLURMWRAP_STEP_NAMED": "1"}
    argv = [sys.executable, "-W", "ignore", "program.py"]
    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    found = step_counts.losses(os.fsencode(tmp_path / "steps"), 5, os.geteuid(), 1.0, 0)
    assert [loss for _, _, loss in found["points"]] == pytest.approx(
        ast.literal_eval((tmp_path / "said").read_text()), rel=1e-3
    )
