"""Counts optimizer steps inside the user's Python; `step()` counts explicitly and beats every other signal.

Writes one file per process in $SLURMWRAP_STEP_DIR, named by its pid: 69 bytes of text in fixed columns, so that one
pwrite replaces all of it: count, source, first and last step (seconds of CLOCK_MONOTONIC), peak GPU memory (MiB) and
`parked`. With $SLURMWRAP_PARK_AFTER=N the process sleeps for good inside step N: no later line runs, no checkpoint
is written, and whoever supervises it ends it. Python 3.6 syntax, standard library; never raises.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RECORD = "%10d %-10s %16.6f %16.6f %10d %1d\n"
_TARGET = "torch.optim.optimizer"


class _Counter(object):
    """What this process has counted. After a fork the child starts from zero in a file of its own."""

    def __init__(self) -> None:
        self.pid = 0
        self.descriptor = -1
        self.count = 0
        self.explicit = 0
        self.first = 0.0
        self.park_after = 0

    def open(self) -> None:
        import time

        self.clock = time.monotonic
        self.pid, self.count, self.explicit, self.first = os.getpid(), 0, 0, 0.0
        self.park_after = int(os.environ.get("SLURMWRAP_PARK_AFTER") or 0)
        path = os.path.join(os.environ["SLURMWRAP_STEP_DIR"], str(self.pid))
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def optimizer_step(self, optimizer: "Any") -> None:
        """One step of one optimizer: the process's count is that of its busiest optimizer (two in a GAN)."""
        if self.pid != os.getpid():
            self.open()
        own = getattr(optimizer, "_slurmwrap_steps", None)
        own = own[1] + 1 if own is not None and own[0] == self.pid else 1
        optimizer._slurmwrap_steps = (self.pid, own)
        if own > self.count and not self.explicit:
            self.reached(own, "optimizer")

    def explicit_step(self) -> None:
        if self.pid != os.getpid():
            self.open()
        self.explicit += 1
        self.reached(self.explicit, "explicit")

    def reached(self, count: int, source: str) -> None:
        now = self.clock()
        self.count, self.first = count, self.first or now
        parks = 0 < self.park_after <= count
        memory = _gpu_memory_mib() if parks else 0
        try:
            record = RECORD % (count, source, self.first, now, memory, parks)
            os.pwrite(self.descriptor, record.encode("ascii"), 0)
        finally:  # where nobody can see the count, the time limit ends the trial: better than training on
            while parks:
                _sleep_for_good()


def _sleep_for_good() -> None:
    import time

    time.sleep(3600)


def _gpu_memory_mib() -> int:
    """Most GPU memory this process reserved, over its devices; 0 without CUDA."""
    try:
        cuda = sys.modules["torch"].cuda
        if not cuda.is_initialized():
            return 0
        return sum(cuda.max_memory_reserved(i) for i in range(cuda.device_count())) >> 20
    except Exception:
        return 0


_counter = _Counter()


def step() -> None:
    """Counts one training step. Does nothing outside a job that slurmwrap counts."""
    if "SLURMWRAP_STEP_DIR" in os.environ:
        try:
            _counter.explicit_step()
        except Exception:
            pass


def _after_step(optimizer: "Any", *_: "Any") -> None:
    try:
        _counter.optimizer_step(optimizer)
    except Exception:
        pass


class _Finder(object):
    """Waits on sys.meta_path for torch's optimizers and hooks them when their module has run."""

    def __init__(self) -> None:
        self.busy = False

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != _TARGET or self.busy:
            return None
        self.busy = True
        try:
            return self._hooked(name, path, target)
        except Exception:
            return None
        finally:
            self.busy = False

    def _hooked(self, name: str, path: "Any", target: "Any") -> "Any":
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                spec.loader.exec_module = self._then_hook(spec.loader.exec_module)
                return spec
        return None

    def _then_hook(self, execute: "Any") -> "Any":
        def exec_module(module: "Any") -> None:
            execute(module)
            try:
                sys.meta_path.remove(self)
                hook(module)
            except Exception:
                pass

        return exec_module


def hook(module: "Any") -> None:
    """Counts the steps of every optimizer of `module` (torch.optim.optimizer)."""
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        _hook_by_class(module.Optimizer)
        return
    torch = sys.modules["torch"]
    # Dynamo would trace the hook and warn about os.getpid; this only marks it, torch._dynamo is not imported here.
    disable = getattr(torch, "_disable_dynamo", None)
    register(disable(_after_step) if disable is not None else _after_step)


def _hook_by_class(base: "Any") -> None:
    """torch < 2 has no hook for all optimizers: wraps `step` of each class when one is made."""
    init = base.__init__

    def __init__(self, *args: "Any", **kwargs: "Any") -> None:
        init(self, *args, **kwargs)
        try:
            _wrap_step(type(self))
        except Exception:
            pass

    __init__.__wrapped__ = init
    base.__init__ = __init__


def _wrap_step(kind: "Any") -> None:
    plain = kind.step
    if getattr(plain, "_slurmwrap", False):
        return

    def step(self, *args: "Any", **kwargs: "Any") -> "Any":
        result = plain(self, *args, **kwargs)
        _after_step(self)
        return result

    step.__dict__.update(plain.__dict__)
    step.__wrapped__, step.__doc__, step._slurmwrap = plain, plain.__doc__, True
    kind.step = step


def _note(text: str) -> None:
    """One line in the trial's journal: which Python started and which died of an exception, in order."""
    try:
        path = os.path.join(os.environ["SLURMWRAP_STEP_DIR"], "journal")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, ("%s %d\n" % (text, os.getpid())).encode("ascii"))
        finally:
            os.close(descriptor)
    except Exception:
        pass


def install() -> None:
    """Called once per process by sitecustomize."""
    sys.meta_path.insert(0, _Finder())
    if os.environ.get("SLURMWRAP_PRERUN") == "1":
        _note("start")
        before = sys.excepthook

        def excepthook(kind: "Any", value: "Any", trace: "Any") -> None:
            if not issubclass(kind, KeyboardInterrupt):
                _note("crash")
            before(kind, value, trace)

        sys.excepthook = excepthook
