"""The step counter in real PyTorch: exact counts, and nothing that torch.compile would notice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurmwrap.inject import slurmwrap_step
from slurmwrap.prerun import steps

INJECT = Path(slurmwrap_step.__file__).parent

CASES = """
import os, sys, torch, torch._dynamo  # once, and not again in each child
import torch.distributed.fsdp, torch.distributed.device_mesh, torch.distributed.optim
from torch import nn

def run(make, body=None):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = make(model.parameters())
    body = body or (lambda m, o, i: (m(torch.randn(2, 4)).sum().backward(), o.step(), o.zero_grad()))
    for i in range(12):
        body(model, optimizer, i)

def accumulation(model, optimizer, i):
    model(torch.randn(2, 4)).sum().backward()
    if i % 4 == 3:
        optimizer.step(); optimizer.zero_grad()

def scaled():
    scaler = torch.amp.GradScaler("cpu")
    def body(model, optimizer, i):
        scaler.scale(model(torch.randn(2, 4)).sum()).backward()
        scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
    run(torch.optim.SGD, body)

def two():
    a, b = nn.Linear(2, 1), nn.Linear(2, 1)
    first, second = torch.optim.Adam(a.parameters()), torch.optim.SGD(b.parameters())
    for i in range(12):
        (a(torch.randn(1, 2)) + b(torch.randn(1, 2))).sum().backward()
        first.step()
        if i % 3 == 0: second.step()

def scheduled():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    for i in range(12):
        model(torch.randn(2, 4)).sum().backward(); optimizer.step(); scheduler.step()

def lbfgs():
    def body(model, optimizer, i):
        def closure():
            optimizer.zero_grad(); loss = (model(torch.ones(2, 4)) ** 2).sum(); loss.backward(); return loss
        optimizer.step(closure)
    run(torch.optim.LBFGS, body)

def compiled():
    def body(model, optimizer, i):
        model(torch.randn(2, 4)).sum().backward()
        torch.compile(lambda: optimizer.step(), backend="eager")()
        optimizer.zero_grad()
    run(torch.optim.AdamW, body)

class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)

def nested():
    model = nn.Linear(4, 1)
    plain, own = torch.optim.SGD(model.parameters(), lr=0.1), Own(model.parameters(), lr=0.1)
    for i in range(12):
        model(torch.randn(2, 4)).sum().backward(); own.step()

def step_compiled():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(optimizer.step, backend="eager")
    for i in range(12):
        model(torch.randn(2, 4)).sum().backward(); step(); optimizer.zero_grad()

def loop_compiled():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    @torch.compile(backend="eager")
    def train(x):
        model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
    for i in range(12): train(torch.randn(2, 4))

def inside_backward():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    def update(p):
        optimizers[p].step(); optimizers[p].zero_grad()
    for p in model.parameters(): p.register_post_accumulate_grad_hook(update)
    for i in range(12): model(torch.randn(2, 4)).sum().backward()

def skipping(make):
    scaler = torch.amp.GradScaler("cpu")
    def body(model, optimizer, i):
        loss = model(torch.randn(2, 4)).sum() * (float("inf") if i in (0, 5) else 1.0)
        scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
    run(make, body)

def distributed(wrap, make):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = wrap(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)))
    optimizer = make(model.parameters())
    for i in range(12):
        model(torch.randn(2, 4)).sum().backward(); optimizer.step(); optimizer.zero_grad()

def fsdp2(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (1,))
    for layer in model: fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)

def zero(parameters):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam)

def by_hand():
    w = torch.zeros(4, requires_grad=True)
    for i in range(12):
        (w * torch.randn(4)).sum().backward()
        with torch.no_grad(): w -= 0.1 * w.grad
        w.grad = None

def batches():
    for x in torch.utils.data.DataLoader(list(range(24)), batch_size=2): pass


cases = {
    "adamw": lambda: run(torch.optim.AdamW),
    "fused": lambda: run(lambda p: torch.optim.AdamW(p, fused=True)),
    "sgd": lambda: run(torch.optim.SGD),
    "own": lambda: run(Own),
    "accumulation": lambda: run(torch.optim.SGD, accumulation),
    "scaled": scaled, "two": two, "scheduled": scheduled, "lbfgs": lbfgs,
    "compiled": compiled, "step compiled": step_compiled, "loop compiled": loop_compiled, "nested": nested,
    "inside backward": inside_backward, "by hand": by_hand, "batches": batches,
    "skipping": lambda: skipping(torch.optim.SGD),
    "skipping fused": lambda: skipping(lambda p: torch.optim.AdamW(p, fused=True)),
    "ddp": lambda: distributed(nn.parallel.DistributedDataParallel, torch.optim.SGD),
    "zero": lambda: distributed(nn.parallel.DistributedDataParallel, zero),
    "fsdp2": lambda: distributed(fsdp2, torch.optim.AdamW),
}
for name, case in cases.items():
    if sys.argv[1:] and name not in sys.argv: continue
    pid = os.fork()
    if pid == 0:
        case()
        dynamo = sys.modules["torch._dynamo.utils"] if "compiled" in name else None
        breaks = sum(dynamo.counters["graph_break"].values()) if dynamo else 0
        graphs = dynamo.counters["stats"]["unique_graphs"] if dynamo else 0
        print(name, os.getpid(), breaks, graphs, sep="|", flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, name
"""


COMPILED = ("compiled", "step compiled", "loop compiled")
EXPECTED = {
    **dict.fromkeys(("adamw", "fused", "sgd", "own", "scaled", "two", "scheduled", "lbfgs"), ("optimizer", 12)),
    **dict.fromkeys((*COMPILED, "nested", "inside backward"), ("optimizer", 12)),
    **dict.fromkeys(("ddp", "zero", "fsdp2"), ("optimizer", 12)),
    **dict.fromkeys(("skipping", "skipping fused"), ("optimizer", 10)),
    "accumulation": ("optimizer", 3),
    "by hand": ("backward", 12),
    "batches": ("dataloader", 12),
}


@pytest.mark.torch
def test_real_optimizers_are_counted_exactly_and_compiled_alike(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    (tmp_path / "cases.py").write_text(CASES)
    plain = said(tmp_path, environ, *COMPILED)
    (tmp_path / "steps").mkdir()
    counted = said(tmp_path, {**environ, "PYTHONPATH": str(INJECT), "SLURMWRAP_STEP_DIR": str(tmp_path / "steps")})
    # Dynamo names what it could not trace, and now and then a file of torch's, below a folder of any name.
    assert not re.search(r"slurmwrap_\w+|inject/|getpid", counted.stderr), counted.stderr
    assert counted.stderr.count("Warning") == plain.stderr.count("Warning")
    found, compiled = {}, {}
    for line in counted.stdout.splitlines():
        name, pid, *compiled[name] = line.split("|")
        record = steps.parse_record((tmp_path / "steps" / pid).read_text())
        found[name] = (record.source, record.count) if record else None
        if name == "fsdp2":
            assert (tmp_path / "steps" / f"{pid}.model").read_text().split() == ["196", "128", "1"]
    assert found == EXPECTED
    alike = {line.split("|")[0]: line.split("|")[2:] for line in plain.stdout.splitlines()}
    assert {name: compiled[name] for name in COMPILED} == alike


def said(folder: Path, environ: dict[str, str], *cases: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(folder / "cases.py"), *cases]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return done
