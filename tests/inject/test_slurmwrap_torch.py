"""Real PyTorch in a whole trial: exact counts, redirected files, and no change to what torch.compile produces."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.inject import slurmwrap_launcher_options as launch
from slurmwrap.prerun.trial import step_detection

Run = Callable[..., subprocess.CompletedProcess[str]]

CASES = """
import json, os, pathlib, sys, torch, torch._dynamo  # once, and not again in each child
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


def files():
    model = nn.Linear(3, 3)
    torch.save(model.state_dict(), "m.pt"); torch.save(model.state_dict(), pathlib.Path("data/m.pt"))
    with open("f.pt", "wb") as f: torch.save(1, f)
    assert torch.load("m.pt").keys() == torch.load("data/m.pt", mmap=True).keys() and torch.load("f.pt") == 1
    torch.jit.save(torch.jit.script(model), "j.pt"); torch.jit.load("j.pt")
    torch.jit.trace(model, torch.ones(1, 3)).save("t.pt"); torch.jit.script(model).save("s.pt"); torch.jit.load("t.pt")
    with torch.autograd.profiler.profile() as seen: model(torch.ones(1, 3))
    seen.export_chrome_trace("trace.json")
    assert sorted(os.listdir(".")) == sorted("config.yaml data f.pt j.pt m.pt s.pt t.pt trace.json".split())

whole = {
    "adamw": lambda: run(torch.optim.AdamW),
    "fused": lambda: run(lambda p: torch.optim.AdamW(p, fused=True)),
    "sgd": lambda: run(torch.optim.SGD),
    "own": lambda: run(Own),
    "accumulation": lambda: run(torch.optim.SGD, accumulation),
    "scaled": scaled, "two": two, "scheduled": scheduled, "lbfgs": lbfgs,
    "nested": nested,
    "inside backward": inside_backward, "by hand": by_hand, "batches": batches,
    "skipping": lambda: skipping(torch.optim.SGD),
    "skipping fused": lambda: skipping(lambda p: torch.optim.AdamW(p, fused=True)),
    "ddp": lambda: distributed(nn.parallel.DistributedDataParallel, torch.optim.SGD),
    "zero": lambda: distributed(nn.parallel.DistributedDataParallel, zero),
    "fsdp2": lambda: distributed(fsdp2, torch.optim.AdamW),
    "files": files,
}
compiled_cases = {"compiled": compiled, "step compiled": step_compiled, "loop compiled": loop_compiled}

def marks():
    folder = os.environ["SLURMWRAP_STEP_DIR"]
    return sorted(name for name in ("torch", "optimizer") if os.path.exists(folder + "/" + name))

def each(cases):
    for name, case in cases.items():
        pid = os.fork()
        if pid == 0:
            case()
            counters = torch._dynamo.utils.counters
            breaks, graphs = sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]
            print(name, os.getpid(), breaks, graphs, sep="|", flush=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0, name

def of_compiling():  # what torch imports for its first compilation is imported once
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    torch.compile(torch.optim.AdamW([parameter]).step, backend="eager")()
    torch._dynamo.reset(); torch._dynamo.utils.counters.clear()
    each(compiled_cases)

if "plain" not in sys.argv:
    import torch.distributed.fsdp, torch.distributed.device_mesh, torch.distributed.optim
    from torch.distributed.run import get_args_parser
    options = [a for a in get_args_parser()._actions if a.option_strings]
    print(json.dumps([marks(), {name: a.nargs == 0 for a in options for name in a.option_strings}]), flush=True)
    each(whole)
    print(json.dumps(marks()), flush=True)
of_compiling()
"""

# Graph breaks and graphs of each compiled case without slurmwrap, by torch's release; the last test checks them.
WITHOUT_SLURMWRAP = {
    "2.13": {"warnings": ["0"], "compiled": ["2", "1"], "step compiled": ["1", "1"], "loop compiled": ["4", "2"]},
}
EXPECTED = {
    **dict.fromkeys(("adamw", "fused", "sgd", "own", "scaled", "two", "scheduled", "lbfgs"), ("optimizer", 12)),
    **dict.fromkeys(("compiled", "step compiled", "loop compiled", "nested", "inside backward"), ("optimizer", 12)),
    **dict.fromkeys(("ddp", "zero", "fsdp2"), ("optimizer", 12)),
    **dict.fromkeys(("skipping", "skipping fused"), ("optimizer", 10)),
    "accumulation": ("optimizer", 3),
    "by hand": ("backward", 12),
    "batches": ("dataloader", 12),
    "files": None,
}


def count_without_slurmwrap(directory: Path) -> dict[str, list[str]]:
    (directory / "cases.py").write_text(CASES)
    environ = {"PATH": os.environ["PATH"], "HOME": str(directory), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "cases.py", "plain"],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=allow(60),
    )
    assert done.returncode == 0, done.stderr
    numbers = {name: numbers for name, _, *numbers in (line.split("|") for line in done.stdout.splitlines())}
    return {"warnings": [str(done.stderr.count("Warning"))], **numbers}


def torch_release() -> str:
    return ".".join(importlib.metadata.version("torch").split(".")[:2])


@pytest.mark.torch
def test_real_torch_in_a_trial_is_counted_compiled_and_redirected(run_guarded: Run, tmp_path: Path) -> None:
    done = run_guarded(CASES)
    assert done.returncode == 0, done.stderr
    # Dynamo names what it could not trace, and sometimes a file of torch, in whatever folder torch is installed.
    assert not re.search(r"slurmwrap_\w+|inject/|getpid", done.stderr), done.stderr
    started, trained, *rest = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert (started[0], trained, rest) == (["torch"], ["optimizer", "torch"], [])
    assert_options_match_torchruns_parser(started[1])
    found, compiled = {}, {"warnings": [str(done.stderr.count("Warning"))]}
    for line in done.stdout.splitlines():
        if not line.startswith("["):
            name, pid, *compiled[name] = line.split("|")
            record = tmp_path / "trial" / "steps" / pid
            count = step_detection.parse_record(record.read_text()) if record.exists() else None
            found[name] = (count.source, count.count) if count else None
            if name == "fsdp2":
                assert record.with_suffix(".model").read_text().split() == ["196", "128", "1"]
    assert found == EXPECTED
    expected = WITHOUT_SLURMWRAP.get(torch_release()) or count_without_slurmwrap(tmp_path)
    assert {name: compiled[name] for name in expected} == expected


def assert_options_match_torchruns_parser(options: dict[str, bool]) -> None:
    """`options`: each spelling of an option, and whether it takes no value."""
    flags = {name.lstrip("-").replace("-", "_"): is_flag for name, is_flag in options.items()}
    assert {name for name, is_flag in flags.items() if is_flag != (name in launch.FLAGS["torchrun"])} == set()
    assert launch.DROPPED["torchrun"] <= set(flags)
    assert set(flags) - launch.DROPPED["torchrun"] - launch.FLAGS["torchrun"] <= launch.KEPT | {
        "duplicate_stdout_filters",
        "duplicate_stderr_filters",
        "shutdown_timeout",
    }


@pytest.mark.torch
@pytest.mark.slow
def test_the_table_of_graph_counts_without_slurmwrap_is_correct(tmp_path: Path) -> None:
    if torch_release() not in WITHOUT_SLURMWRAP:
        pytest.skip(f"torch {torch_release()} is not in the table")
    assert count_without_slurmwrap(tmp_path) == WITHOUT_SLURMWRAP[torch_release()]
