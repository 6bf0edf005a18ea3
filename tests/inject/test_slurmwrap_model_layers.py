"""The layers that a pre-run records: sizes and forward times by real PyTorch, and the bound on their number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.inject import slurmwrap_model_layers
from slurmwrap.model.resource_profile import Measurement, ModelLayer
from slurmwrap.prerun.trial.step_detection import parse_layers, read_steps
from slurmwrap.profiling.merge_profiles import merge

pytest.importorskip("torch")
INJECT = Path(slurmwrap_model_layers.__file__).parent
PROGRAM = """
import torch, time
from torch import nn

class Slow(nn.Linear):
    def forward(self, x):
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass
        return super().forward(x)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 8)
        self.body = nn.ModuleList([nn.Linear(8, 8, bias=False), Slow(8, 8, bias=False)])
        self.frozen = nn.Linear(8, 8)
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = self.embed(x)
        for part in self.body:
            x = part(x)
        return self.head(self.frozen(x))

hooks = nn.modules.module
model = nn.DataParallel(Tied()) if not torch.cuda.is_available() else Tied()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.zeros(2, 3, dtype=torch.int64)).sum().backward()
    optimizer.step()
    print(len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks))
"""


def run_trial(code: str, directory: Path) -> str:
    """Runs a program under the pre-run's counter and returns what it printed."""
    environ = {"PYTHONPATH": str(INJECT), "SLURMWRAP_STEP_DIR": str(directory), "SLURMWRAP_PRERUN": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=allow(120), check=True
    )
    return done.stdout


def test_layers_have_sizes_and_times_and_the_hooks_are_gone_after_one_step(tmp_path: Path) -> None:
    printed = run_trial(PROGRAM, tmp_path)
    layers = read_steps(str(tmp_path)).layers
    assert [(one.name, one.kind, round(one.mib * 2**20)) for one in layers] == [
        ("embed", "Embedding", 3200),
        ("body.0", "Linear", 256),
        ("body.1", "Slow", 256),
        # Tied weights: no bytes of its own, but it runs, last. The frozen layer has no gradients to send.
        ("head", "Linear", 0),
    ]
    assert layers[2].forward_s is not None and layers[2].forward_s >= 0.02
    assert printed.split("\n")[:4] == ["1 1", "0 0", "0 0", "0 0"]


def test_several_models_are_told_apart_by_their_classes(tmp_path: Path) -> None:
    run_trial(
        """
import torch
class Maker(torch.nn.Sequential): pass
class Judge(torch.nn.Sequential): pass
first, second = Maker(torch.nn.Linear(2, 2)), Judge(torch.nn.Linear(2, 1))
one, other = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second))
for step in range(4):
    second(first(torch.ones(1, 2))).sum().backward(); one.step(); other.step()
""",
        tmp_path,
    )
    layers = read_steps(str(tmp_path)).layers
    assert [one.name for one in layers] == ["Maker.0", "Judge.0"]
    assert all(one.forward_s is not None for one in layers)


def test_a_deep_model_is_summed_by_the_beginnings_of_its_paths() -> None:
    rows = [
        {"path": f"h.{block}.{part}", "kind": "Linear", "bytes": 4, "largest": 3, "s": 0.5}
        for block in range(100)
        for part in ("attn", "mlp", "norm")
    ]
    folded = slurmwrap_model_layers.fold(rows)
    assert len(folded) == 100
    assert (folded[7]["path"], folded[7]["bytes"], folded[7]["largest"], folded[7]["s"]) == ("h.7", 12, 3, 1.5)
    flat = [dict(row, path=f"p{number}", bytes=number) for number, row in enumerate(rows)]
    folded = slurmwrap_model_layers.fold(flat)
    assert len(folded) == slurmwrap_model_layers.MOST
    assert sum(row["bytes"] for row in folded) == sum(row["bytes"] for row in flat)


def test_a_forged_or_cut_file_of_layers_is_not_used() -> None:
    sound = "1048576 1048576 -1 Linear fc\n"
    assert parse_layers(sound) == (ModelLayer(name="fc", kind="Linear", mib=1.0, largest_mib=1.0),)
    assert parse_layers(sound + "1048576 10") == ()
    for name, mib in (("\x1b[31mfc", 1.0), ("fc", -1.0)):
        forged = Measurement(model_mib=1.0, layers=(ModelLayer(name=name, mib=mib),))
        merged = merge(None, forged, key="k", source="prerun", at=1.0, gpu_type="", gpus_per_node=1, complete=False)
        assert merged.layers == () and merged.model_mib == 1.0
