"""What the test session itself does: how many workers, what is running now, what a failed lab test leaves."""

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
# A worker with a lab of eight nodes and a PyTorch process has been seen to use this much.
_WORKER_BYTES = 1536 << 20
# Tests of a lab mostly wait: with fewer workers the cores are idle now and then, with more each costs its own start.
_WORKERS_PER_CORE = 2.5
_TEST_TIMEOUT_S = 180


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: five workers on two cores, fewer where memory is short. PYTEST_XDIST_AUTO_NUM_WORKERS overrides it."""
    if asked := os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return int(asked)
    cores = len(os.sched_getaffinity(0))
    return max(1, min(int(cores * _WORKERS_PER_CORE), psutil.virtual_memory().available // _WORKER_BYTES))


def pytest_configure(config: pytest.Config) -> None:
    """Set the deadline of one test for this machine, and show progress where workers run the tests."""
    if config.option.timeout is None:
        config.option.timeout = allow(_TEST_TIMEOUT_S)
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        shutil.rmtree(LOGS, ignore_errors=True)
        _compile_once(config)
        config.pluginmanager.register(Progress(config), "progress")


def _compile_once(config: pytest.Config) -> None:
    """Write the bytecode of the package, and of the tests as pytest rewrites them.

    Else each worker rewrites all tests, and each command that a test starts compiles the package: in a fresh clone
    always, and always where PYTHONDONTWRITEBYTECODE is set. pytest has no public function for it: without the ones
    used here the session is slower, and no worse.
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
    """The files of what is installed and rewritten as tests are: hypothesis, and plugins of pytest."""
    loaded = [module.__spec__ for module in list(sys.modules.values()) if getattr(module, "__spec__", None)]
    return [spec.origin for spec in loaded if isinstance(spec.loader, rewrite.AssertionRewritingHook) and spec.origin]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """The collected tests live to the end: that the garbage collector passes over them saves a sixth of the session."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test with a lab keeps the logs of its daemons; the report says where they are."""
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
    """How many tests are done and which run now: one line, rewritten on a terminal, else repeated every 30 s."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.began = time.monotonic()
        self.running: dict[str, float] = {}
        self.done = self.failed = self.total = 0
        self.over = threading.Event()
        self.terminal = sys.stdout.isatty()
        self.thread = threading.Thread(target=self._show, daemon=True)

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """All workers collect the same tests; begin to show."""
        self.total = len(ids)
        if not self.thread.is_alive() and not self.over.is_set():
            self.thread.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A worker begins a test."""
        self.running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A worker is through with a test."""
        self.running.pop(nodeid, None)
        self.done += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what failed."""
        self.failed += report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No dot for a test that passed: the line says it."""
        return ("passed", "", "PASSED") if report.passed and report.when == "call" else None

    def pytest_sessionfinish(self) -> None:
        """The last line goes, so that the summary begins on a line of its own."""
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
