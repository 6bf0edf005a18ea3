"""The step counter: what it writes, when a process parks, and that its faults never reach the program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from pythons import find_pythons
from waiting import allow

from slurmwrap.inject import slurmwrap_step
from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial import step_detection

INJECT = Path(slurmwrap_step.__file__).parent
Counted = Callable[..., tuple[str, StepReading]]
Parked = Callable[..., tuple[str, StepReading, bool]]
THREE_STEPS = "from torch.optim import Optimizer\no = Optimizer()\nfor i in range(3): o.step()\nprint('went on')\n"


def test_a_parked_process_sleeps_inside_its_last_step(run_until_parked: Parked) -> None:
    output, reading, alive = run_until_parked(
        "from torch.optim import Optimizer\no = Optimizer()\nwhile True: print('.'); o.step()"
    )
    assert (output, reading.count, reading.parked, alive) == (".\n.\n.\n", 3, True, True)


def blocks_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(re.findall(r"SigBlk:\s+(\w+)", status)[0], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_parked_process_does_not_run_its_sigterm_handler(tmp_path: Path, run_until_parked: Parked) -> None:
    code = """
    import signal
    from torch.optim import Optimizer
    signal.signal(signal.SIGTERM, lambda *_: print('saving a checkpoint'))
    o = Optimizer()
    for i in range(3): o.step()
    print('went on')
    """

    def send_sigterm_once_blocked(pid: int) -> bool:
        if not blocks_sigterm(pid):
            return False
        os.kill(pid, signal.SIGTERM)
        return True

    assert run_until_parked(code, until=send_sigterm_once_blocked)[::2] == ("", True)


def test_a_process_parks_even_if_the_step_directory_is_missing(run_until_parked: Parked) -> None:
    assert run_until_parked(THREE_STEPS, park_after=2, step_dir="/nonexistent", until=blocks_sigterm)[::2] == ("", True)


def test_all_threads_stop_when_one_thread_parks(run_until_parked: Parked) -> None:
    code = """
    import threading
    from torch.optim import Optimizer
    def work():
        o = Optimizer()
        while True: o.step()
    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    """
    _, reading, alive = run_until_parked(code, park_after=50)
    assert (reading.count, reading.parked, alive) == (50, True, True)


def test_no_step_is_lost_when_threads_step_at_the_same_time(run_counted: Counted) -> None:
    code = """
    import sys, threading
    from torch.optim import Optimizer
    sys.setswitchinterval(1e-5)
    def work(count):
        o = Optimizer()
        for i in range(count): o.step()
    threads = [threading.Thread(target=work, args=(n,)) for n in (500, 700, 900)]
    [t.start() for t in threads]; [t.join() for t in threads]
    """
    assert run_counted(code) == ("", StepReading(count=900, source="optimizer", first=ANY, last=ANY))


class _Any:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


ANY: float = _Any()  # type: ignore[assignment]


def test_a_file_that_reuses_the_counters_descriptor_is_never_written(tmp_path: Path, run_counted: Counted) -> None:
    code = """
    import os
    from torch.optim import Optimizer
    o = Optimizer(); o.step()
    os.closerange(3, 64)  # as a daemon does
    files = [os.open('weights%d' % i, os.O_RDWR | os.O_CREAT) for i in range(20)]
    for i in range(4): o.step()
    print([os.fstat(f).st_size for f in files] == [0] * 20)
    """
    output, reading = run_counted(code)
    assert (output, reading.count) == ("True\n", 5)


def test_files_in_a_shared_directory_name_job_restart_count_node_and_process(
    tmp_path: Path, run_counted: Counted
) -> None:
    slurm = {"SLURMWRAP_STEP_NAMED": "1", "SLURM_JOB_ID": "812", "SLURMD_NODENAME": "n3", "SLURM_RESTART_COUNT": "2"}
    output, _ = run_counted(THREE_STEPS, **slurm)
    assert output == "went on\n"
    (name,) = (path.name for path in (tmp_path / "steps").iterdir())
    assert re.fullmatch(r"812\.2\.n3\.\d+", name)
    folder = str(tmp_path / "steps")
    assert step_detection.read_job_steps(folder, "812", 2).count == 3
    slept = f"{THREE_STEPS}import time; print(time.time()); time.sleep(0.2)"
    output, _ = run_counted(slept, **{**slurm, "SLURM_JOB_ID": "813"})
    (record_of_813,) = (path for path in (tmp_path / "steps").iterdir() if path.name.startswith("813."))
    assert record_of_813.stat().st_mtime <= float(
        output.split()[-1]
    )  # the file's modification time is that of the last step
    assert (
        step_detection.read_job_steps(folder, "812", 1)
        == step_detection.read_job_steps(folder, "81", 2)
        == StepReading()
    )


def test_the_models_size_is_recorded_with_the_first_step(run_counted: Counted) -> None:
    code = """
    from torch.optim import Optimizer
    class Tensor:
        def __init__(self, n): self.n = n
        def numel(self): return self.n
        def element_size(self): return 4
    body, head = Tensor(3 << 18), Tensor(1 << 18)
    a, b = Optimizer(), Optimizer()
    a.param_groups = [{'params': [body, head]}]
    b.param_groups = [{'params': [head]}]  # shared: counts once
    for o in (a, b, a): o.step()
    """
    output, reading = run_counted(code)
    assert (output, reading.model_mib, reading.largest_tensor_mib, reading.world) == ("", 4.0, 3.0, 1)


BROKEN = {
    "the folder is missing": ("", {"SLURMWRAP_STEP_DIR": "/nonexistent/steps"}),
    "the folder is a file": ("", {"SLURMWRAP_STEP_DIR": "/etc/passwd"}),
    "the folder is a device that is full": ("", {"SLURMWRAP_STEP_DIR": "/dev/full"}),
    "the folder is garbage": ("", {"SLURMWRAP_STEP_DIR": "\x01 $(id) ;"}),
    "the folder is empty": ("", {"SLURMWRAP_STEP_DIR": ""}),
    "the disk is full": ("import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (0, r.RLIM_INFINITY))", {}),
    "no descriptor is left": ("import torch.optim, resource as r; r.setrlimit(r.RLIMIT_NOFILE, (3, 3))", {}),
    "the limit is garbage": ("", {"SLURMWRAP_PARK_AFTER": "²x"}),
    "the limit is negative": ("", {"SLURMWRAP_PARK_AFTER": "-1"}),
    "the environment is cleared": ("import os; os.environ.clear()", {}),
    "os is monkeypatched": ("import os; os.getpid = os.open = os.pwrite = os.lseek = None", {}),
    "time is monkeypatched": ("import time; time.monotonic = lambda: 'x'", {}),
    "finders are gone": ("import sys; sys.meta_path[:] = sys.meta_path[-1:]", {}),
    "finders are replaced": ("import sys; sys.meta_path = [f for f in sys.meta_path if isinstance(f, type)]", {}),
    "our modules are gone": ("import sys; [sys.modules.pop(m) for m in list(sys.modules) if 'slurmwrap' in m]", {}),
    "hooks are replaced": ("import sys; sys.excepthook = sys.unraisablehook = lambda *_: None", {}),
    "a trace function is set": ("import sys; sys.settrace(lambda *_: None)", {}),
    "torch is gone when a step is made": ("import sys, torch.optim; del sys.modules['torch']", {}),
    "an optimizer has slots": (
        "import torch.optim\nclass Slots(torch.optim.Optimizer):\n    __slots__ = ()\nSlots().step()",
        {},
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_fault_in_the_counter_does_not_change_the_program(run_counted: Counted, case: str) -> None:
    code, environ = BROKEN[case]
    output, _ = run_counted(f"{code}\n{THREE_STEPS}", flags=("-W", "error"), SLURMWRAP_PRERUN="1", **environ)
    assert output == "went on\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_step_directory_does_not_change_the_program(run_counted: Counted, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    assert run_counted(THREE_STEPS, SLURMWRAP_STEP_DIR=str(folder))[0] == "went on\n"


def test_optimizers_with_strict_attribute_rules_are_counted(run_counted: Counted) -> None:
    code = """
    import torch.optim
    class Strict(torch.optim.Optimizer):
        def __setattr__(self, name, value): raise AttributeError('frozen')
        def __getattr__(self, name): raise RuntimeError('no ' + name)
    o = Strict()
    for i in range(4): o.step()
    """
    output, reading = run_counted(code)
    assert (output, reading.count) == ("", 4)


def test_steps_are_counted_after_the_optimizer_module_was_reloaded(run_counted: Counted) -> None:
    code = """
    import importlib, torch.optim.optimizer as m
    o = m.Optimizer(); o.step()
    importlib.reload(m)
    importlib.reload(m)
    o = m.Optimizer()
    for i in range(3): o.step()
    print(len(m.hooks))
    """
    output, reading = run_counted(code)
    assert (output, reading.count) == ("1\n", 3)


def test_a_chaining_sitecustomize_of_the_user_counts_each_step_once(tmp_path: Path, run_counted: Counted) -> None:
    """The user's sitecustomize imports torch first; slurmwrap's then hooks the modules already imported."""
    (tmp_path / "first").mkdir()
    chained = f"""
    import sys
    sys.path.append({str(tmp_path / "lib")!r})
    import torch.optim
    print('first')
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    rest = [p for p in sys.path if p != {str(tmp_path / "first")!r}]
    spec = PathFinder.find_spec('sitecustomize', rest)
    spec.loader.exec_module(module_from_spec(spec))
    """
    (tmp_path / "first/sitecustomize.py").write_text(textwrap.dedent(chained))
    output, reading = run_counted(THREE_STEPS, before=str(tmp_path / "first"))
    assert (output, reading.count) == ("first\nwent on\n", 3)


def test_user_modules_named_like_slurmwraps_do_not_stop_the_counter(tmp_path: Path, run_counted: Counted) -> None:
    (tmp_path / "first").mkdir()
    for name in ("slurmwrap_counter", "slurmwrap_torch", "slurmwrap_frameworks"):
        (tmp_path / f"first/{name}.py").write_text("raise SystemExit('mine')\n")
    output, reading = run_counted(THREE_STEPS, before=str(tmp_path / "first"))
    assert (output, reading.count) == ("went on\n", 3)


def test_step_of_the_package_and_of_the_injected_module_share_one_count(run_counted: Counted) -> None:
    code = """
    import slurmwrap_step
    from slurmwrap.inject import step
    for i in range(3): slurmwrap_step.step(); step()
    """
    root = str(Path(slurmwrap_step.__file__).parents[2])
    output, reading = run_counted(code, before=f"{INJECT}:{root}")
    assert (output, reading.count, reading.source) == ("", 6, "explicit")


def test_an_import_hook_of_another_tool_still_works(run_counted: Counted) -> None:
    code = """
    import sys, importlib.machinery as m
    class Loader(m.SourceFileLoader):
        def get_code(self, name):
            seen.append(name); return super().get_code(name)
    class Finder:
        def find_spec(self, name, path, target=None):
            spec = m.PathFinder.find_spec(name, path)
            if name.startswith('torch'): spec.loader = Loader(spec.loader.name, spec.loader.path)
            return spec
    seen = []
    sys.meta_path.insert(0, Finder())
    from torch.optim import Optimizer
    print(seen)
    """
    output, _ = run_counted(code)
    assert output == "['torch', 'torch.optim', 'torch.optim.optimizer']\n"


EVERYTHING = """
import importlib, os, site, sys, threading, multiprocessing, warnings
assert sys.modules['sitecustomize'].mine
assert not site.ENABLE_USER_SITE or sys.modules['usercustomize'].mine  # off in a virtual environment
import torch.optim
def work(n):
    o = torch.optim.Optimizer()
    for i in range(n): assert o.step() == 'loss'
importlib.reload(torch.optim.optimizer); importlib.reload(torch.optim)
pid = os.fork()
if not pid:
    work(11); os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
child = multiprocessing.get_context('fork').Process(target=work, args=(4,))
child.start(); child.join(); assert child.exitcode == 0
threads = [threading.Thread(target=work, args=(n,)) for n in (5, 9)]
[t.start() for t in threads]; [t.join() for t in threads]
sys.excepthook = None
sys.meta_path[:] = sys.meta_path[1:]
os.environ.clear()
work(13)
import slurmwrap_step
slurmwrap_step.step()
print('went on')
"""


OLD_OPTIMIZER = "class Optimizer:\n    def __init__(self): pass\n    def step(self, closure=None): return 'loss'\n"
PYTHONS = find_pythons()


@pytest.mark.parametrize(
    ("python", "optimizer"),
    [(python, {}) for python in PYTHONS] + [(python, {"optimizer": OLD_OPTIMIZER}) for python in PYTHONS[:1]],
)
def test_all_features_combined_on_every_installed_python(
    tmp_path: Path, run_counted: Counted, python: str, optimizer: dict[str, str]
) -> None:
    own = {f"{name}.py": "mine = True\n" for name in ("sitecustomize", "usercustomize")}
    own |= dict.fromkeys(("torch/distributed/__init__.py", "torch/distributed/run.py"), "")
    output, reading = run_counted(
        EVERYTHING, python=python, modules=own, flags=("-W", "error::DeprecationWarning:slurmwrap"), **optimizer
    )
    assert (output, reading.source, reading.count) == ("went on\n", "explicit", 1)
    records = [
        record for path in (tmp_path / "steps").iterdir() if (record := step_detection.parse_record(path.read_text()))
    ]
    assert sorted(record.count for record in records) == [1, 4, 11]

    launcher = tmp_path / "torchrun"
    launcher.write_text("import torch.distributed.run, sys\nprint(sys.argv[1])\n")
    environ = {"PYTHONPATH": f"{INJECT}:{tmp_path}/lib", "SLURMWRAP_PRERUN": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [python, str(launcher), "--nnodes", "4", "a.py"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=allow(30))
    assert (done.stderr, done.stdout) == ("", "--standalone\n")


def test_thousands_of_optimizers_without_torchs_hook_do_not_nest_their_steps(run_counted: Counted) -> None:
    """Before torch 2 the step of each class is replaced, and only once."""
    code = """
    from torch.optim import Optimizer
    for i in range(2000): o = Optimizer()
    for i in range(4): o.step()
    """
    optimizer = "class Optimizer:\n    def __init__(self): pass\n    def step(self, closure=None): pass\n"
    output, reading = run_counted(code, optimizer=optimizer)
    assert (output, reading.count) == ("", 4)
