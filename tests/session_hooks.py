"""Hooks of the test session: number of workers, progress line, logs of failed lab tests."""

from __future__ import annotations

import compileall
import contextlib
import gc
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from _pytest.assertion import rewrite
from realslurm import Lab
from waiting import allow

from slurmwrap.lab.lab_directories import LabDirectories

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test-logs"
# Observed memory of a worker with a lab of eight nodes and a PyTorch process.
_WORKER_BYTES = 1536 << 20
# Lab tests mostly wait: with fewer workers the cores are often idle, with more the start of workers costs time.
_WORKERS_PER_CORE = 4
_TEST_TIMEOUT_S = 180


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: eight workers on two cores, fewer if memory is short. PYTEST_XDIST_AUTO_NUM_WORKERS overrides it."""
    if asked := os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return int(asked)
    cores = len(os.sched_getaffinity(0))
    return max(1, min(int(cores * _WORKERS_PER_CORE), psutil.virtual_memory().available // _WORKER_BYTES))


def pytest_configure(config: pytest.Config) -> None:
    """Set the timeout of a test for this machine, and show progress if workers run the tests."""
    if config.option.timeout is None:
        config.option.timeout = allow(_TEST_TIMEOUT_S)
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        shutil.rmtree(LOGS, ignore_errors=True)
        _compile_once(config)
        config.pluginmanager.register(Progress(config), "progress")


def _compile_once(config: pytest.Config) -> None:
    """Write the bytecode of the package, and of the tests as pytest rewrites them.

    Otherwise each worker rewrites all tests and each started command compiles the package, in a fresh clone and
    whenever PYTHONDONTWRITEBYTECODE is set. pytest has no public function for this; if its private functions
    are missing, the session is only slower.
    """
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("tests/**/conftest.py"), *map(Path, _rewritten_plugins())]
    cores = len(os.sched_getaffinity(0))
    children = []
    for number in range(cores):
        if child := os.fork():
            children.append(child)
            continue
        with contextlib.suppress(Exception):
            if number == 0:
                compileall.compile_dir(str(ROOT / "slurmwrap"), quiet=2)
            state = config.stash[rewrite.assertstate_key]
            for file in files[number::cores]:
                cached = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
                if rewrite._read_pyc(file, cached) is None:
                    cached.parent.mkdir(exist_ok=True)
                    stamp, code = rewrite._rewrite_test(file, config)
                    rewrite._write_pyc(state, code, stamp, cached)
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)


def _rewritten_plugins() -> list[str]:
    """The files of installed modules that pytest rewrites like tests: hypothesis, and plugins of pytest."""
    loaded = [module.__spec__ for module in list(sys.modules.values()) if getattr(module, "__spec__", None)]
    return [spec.origin for spec in loaded if isinstance(spec.loader, rewrite.AssertionRewritingHook) and spec.origin]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Exclude the collected tests from garbage collection; this saves a sixth of the session's time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Keep the daemon logs of a failed lab test and show their path in the report."""
    report = yield
    if report.failed:
        for lab in {
            id(value): value for value in getattr(item, "funcargs", {}).values() if isinstance(value, Lab)
        }.values():
            with contextlib.suppress(OSError):
                kept = LOGS / re.sub(r"[^\w.-]+", "_", item.nodeid)[-150:] / lab.dir.name
                shutil.copytree(LabDirectories(lab.dir).logs, kept, dirs_exist_ok=True)
                report.sections.append(("logs of the lab", str(kept)))
    return report


class Progress:
    """One line with finished and running tests: updated on a terminal, otherwise printed every 30 s."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.began = time.monotonic()
        self.running: dict[str, float] = {}
        self.done = self.failed = self.total = 0
        self.over = threading.Event()
        self.terminal = sys.stdout.isatty()
        self.thread = threading.Thread(target=self._show, daemon=True)

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Start the progress line; all workers collect the same tests."""
        self.total = len(ids)
        if not self.thread.is_alive() and not self.over.is_set():
            self.thread.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record a test that a worker starts."""
        self.running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Count a test that a worker finished."""
        self.running.pop(nodeid, None)
        self.done += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count failures."""
        self.failed += report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no dot for a passed test; the progress line counts it."""
        return ("passed", "", "PASSED") if report.passed and report.when == "call" else None

    def pytest_sessionfinish(self) -> None:
        """Clear the progress line, so that the summary begins on its own line."""
        self.over.set()
        if self.terminal:
            self._write("\r\033[K")

    def line(self) -> str:
        """`1,234 of 9,000 tests, 1 failed, 2:05; running: test_a (12 s), test_b (3 s)`."""
        now = time.monotonic()
        longest = sorted(dict(self.running).items(), key=lambda item: item[1])
        names = [f"{nodeid.rpartition('/')[2]} ({now - began:.0f} s)" for nodeid, began in longest]
        minutes, seconds = divmod(int(now - self.began), 60)
        return (
            f"{self.done:,} of {self.total:,} tests, {self.failed} failed, {minutes}:{seconds:02}; "
            f"running: {', '.join(names) or 'none'}"
        )

    def _show(self) -> None:
        while not self.over.wait(0.5 if self.terminal else 30.0):
            if self.terminal:
                columns = shutil.get_terminal_size().columns
                self._write("\r\033[K" + self.line()[: columns - 1])
            else:
                self._write(f"{self.line()}\n")

    def _write(self, text: str) -> None:
        self.config.get_terminal_writer().write(text, flush=True)
