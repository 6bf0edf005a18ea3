"""Run the authors' own simulator (msr-fiddle/synergy, 1bb2bed6) on a given trace; a child of bench/simulator.py.

    python authors.py DIR TRACE.csv ITERATIONS.json POLICY MECHANISM SERVERS FIRST LAST

DIR: a checkout, which is not changed. Its code runs unchanged, except for parts that need other machines or an older
Python, which are replaced here: gRPC, protobuf, numa and plots; `collections.Mapping`, which newer Pythons lack; and
the copy of the last round's jobs, which only a deployment reads (it does not affect a figure, and makes the run ten
times as long). Prints JSON: the JCTs of the jobs FIRST to LAST, and how long the simulation took without imports, in
seconds.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import csv
import importlib.abc
import importlib.machinery
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ABSENT = ("grpc", "google", "numa", "pandas", "psutil", "matplotlib", "cvxpy", "gurobipy")
ABSENT_ENDINGS = ("_pb2", "_pb2_grpc")
WORDS = {"proportional": "fair", "tune": "tune", "greedy": ""}


class _Nothing(types.ModuleType):
    """A module in which every name is a callable that returns nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_, **__: None})


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        first = name.split(".")[0]
        if first in ABSENT or first.endswith(ABSENT_ENDINGS):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Nothing(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def run(trace: Path, policy: str, mechanism: str, servers: int, window: range) -> dict[str, Any]:
    """Run the simulation in the simulator's own directory."""
    import runner  # the authors'

    config = Path("configs", "bench.ini")
    config.write_text(
        "[CLUSTER]\nracks = 1\n"
        f"servers_per_rack = {servers}\ngpus_per_server = 8\ncpus_per_server = 24\ndram_per_server = 500\n"
        "sspeed_per_server = 500\n[SCHEDULER]\npolicy = FIFO\nlease_time = 5\n"
    )
    for name in ("fifo", "srtf", "las", "ftf"):
        module = sys.modules[f"schedulers.{name}_synergy_new"]
        module.copy = types.SimpleNamespace(copy=lambda one: one, deepcopy=lambda one: one)  # type: ignore[attr-defined]
    began = time.perf_counter()
    simulation = runner.Runner(
        cluster_job_log=None,
        scheduler=policy.upper(),
        series_id_filter=(window.start, window.stop),
        placement=False,
        fair=mechanism == "proportional",
        tune=mechanism == "tune",
        opt=False,
        simulate=True,
        config_file=str(config),
        static=False,
        trace=str(trace),
    )
    simulation.run_simulation()
    jcts = [jct for _, jct in simulation.job_completion_times.data_series]
    return {"jct_s": jcts, "wall_s": time.perf_counter() - began}


def written(trace: Path, iteration_s: dict[str, float], place: Path) -> Path:
    """Return the trace in the format of the authors' simulator: id, model, arrival, iterations, GPUs."""
    path = place / "trace"
    with trace.open(newline="") as lines:
        rows = [
            f"{number},{row['model']},{row['submit_s']},"
            f"{round(float(row['duration_s']) / iteration_s[row['model']])},{row['gpus']}\n"
            for number, row in enumerate(csv.DictReader(lines))
        ]
    path.write_text("".join(rows))
    return path


def main(words: Sequence[str]) -> None:
    checkout, trace, iterations, policy, mechanism, servers, first, last = words
    with tempfile.TemporaryDirectory(prefix="slurmwrap-bench-") as scratch:
        place = Path(scratch, "simulator")
        shutil.copytree(Path(checkout, "simulator"), place, ignore=shutil.ignore_patterns(".git"))
        theirs = written(Path(trace).resolve(), json.loads(iterations), Path(scratch))
        os.chdir(place)
        sys.path.insert(0, str(place))
        sys.meta_path.insert(0, _Absent())
        collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
        logging.disable(logging.CRITICAL)
        with contextlib.redirect_stdout(sys.stderr):
            done = run(theirs, policy, mechanism, int(servers), range(int(first), int(last) + 1))
        os.chdir("/")
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1:])
