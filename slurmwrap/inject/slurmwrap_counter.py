"""What a process has counted, and the file that says it. Loaded with the first framework, or by an explicit step().

One file per process in $SLURMWRAP_STEP_DIR, named by its pid: 69 bytes of text in fixed columns, so that one pwrite
replaces all of it: count, source, first and last step (seconds of CLOCK_MONOTONIC), peak GPU memory (MiB) and `parked`.
`<pid>.model` next to it: bytes of all parameters, of the largest of them, and the world size.
With $SLURMWRAP_PARK_AFTER=N the process sleeps for good inside step N: no later line runs, no checkpoint is written,
and anyone who supervises it ends it. Python 3.6 syntax, standard library; what it raises its callers swallow.
"""

import _thread
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OF_SLURMWRAP = True
RECORD = "%10d %-10s %16.6f %16.6f %10d %1d\n"
# Of two sources in one process the later here decides: an engine calls optimizers as it likes (DeepSpeed's ZeRO-3 one
# step() per group of parameters), a backward pass need not end in a step, a batch need not be trained on.
RANKS = {
    "": 0,
    "dataloader": 1,
    "backward": 2,
    "jax": 3,
    "keras": 4,
    "optimizer": 4,
    "deepspeed": 5,
    "megatron": 5,
    "explicit": 6,
}
LATE_S = 0.5  # on a shared directory the record is at most so old
# Where our descriptor's offset stands, which pwrite neither uses nor moves: the mark that it is still our file. A third
# of what fstat costs; no file of the user's will be just there.
_MARK = 0x53777261
_OF_OBJECT = "_slurmwrap_steps"
# Taken now: the user's program may replace or clear all of them.
_getpid, _lseek, _pwrite = os.getpid, os.lseek, os.pwrite
_step_dir = os.environ.get("SLURMWRAP_STEP_DIR", "")
_park_after = os.environ.get("SLURMWRAP_PARK_AFTER", "")


class Counter(object):
    """What this process has counted. After a fork the child starts from zero in a file of its own."""

    def __init__(self) -> None:
        self.clock, self.sleep = time.monotonic, time.sleep
        # A signal handler of the user's may count in the middle of counting.
        self.make_lock = _thread.RLock
        self.lock = self.make_lock()
        self.step_dir, self.park_after = _step_dir, 0
        try:
            self.park_after = int(_park_after)
        except ValueError:
            pass
        self.pid = 0
        self._forget()

    def _forget(self) -> None:
        self.descriptor = -1
        self.path, self.named = "", False
        self.count = self.rank = self.memory = 0
        self.source, self.parked = "", False
        self.first = self.last = self.written = 0.0
        self.added = {}  # type: Any
        # bytes of all parameters, and of the largest
        self.model = (0, 0)

    def begin(self) -> None:
        """Opens this process's file. Where that fails it counts on, and still parks: better than training on."""
        # Held by a thread that did not survive the fork.
        if not self.lock.acquire(timeout=1.0):
            self.lock = self.make_lock()
            self.lock.acquire()
        try:
            if self.pid == _getpid():
                return
            self._forget()
            self.pid = _getpid()
            self.named = os.environ.get("SLURMWRAP_STEP_NAMED") == "1"
            self.path = os.path.join(self.step_dir, file_name(os.environ, self.pid, self.named))
            self._open()
            if self.named:
                import atexit

                atexit.register(self.flush_late)
        finally:
            self.lock.release()

    def _open(self) -> None:
        try:
            self.descriptor = _open_file(self.path)
            _lseek(self.descriptor, _MARK, 0)
        except Exception:
            self.descriptor = -1

    def ready(self) -> None:
        """Call before reading anything here: a forked child starts anew."""
        if self.pid != _getpid():
            self.begin()

    def enter(self, source: str) -> None:
        """Steps of `source` have begun: what ranks below does not count from now on."""
        self.ready()
        if RANKS[source] > self.rank:
            self.rank, self.source, self.count, self.first = RANKS[source], source, 0, 0.0

    def beaten(self, source: str) -> bool:
        """True when steps were counted, of which `source` is only a sign."""
        return self.rank > RANKS["backward"] >= RANKS[source]

    def add(self, source: str, by: int = 1) -> None:
        """`by` more steps of `source` in this process."""
        self.ready()
        with self.lock:
            self.added[source] = count = self.added.get(source, 0) + by
        self.saw(source, count)

    def add_of(self, thing: "Any", source: str) -> int:
        """One more step of `thing` (an engine): the process's count is that of the busiest. Returns `thing`'s."""
        count = self.of(thing) + 1
        thing.__dict__[_OF_OBJECT] = (_getpid(), count)
        self.saw(source, count)
        return count

    def of(self, thing: "Any") -> int:
        """Steps of one optimizer or engine in this process. Written past its __setattr__, which may be the user's."""
        known = thing.__dict__.get(_OF_OBJECT)
        return known[1] if known is not None and known[0] == _getpid() else 0

    def set_of(self, thing: "Any", count: int) -> None:
        thing.__dict__[_OF_OBJECT] = (_getpid(), count)

    def saw(self, source: str, count: int, parks: "Any" = None) -> None:
        """`source` is at `count` steps. `parks`: whether the process ends here; None: by SLURMWRAP_PARK_AFTER."""
        if self.pid != _getpid():
            self.begin()
        rank = RANKS[source]
        with self.lock:
            if not self.parked and (rank > self.rank or (rank == self.rank and count > self.count)):
                if parks is None:
                    parks = 0 < self.park_after <= count
                parks = parks and _settled()
                if parks or (count == 3 and rank > RANKS["backward"]):
                    self.memory = _gpu_memory_mib()
                self._reached(rank, source, count, parks)
        # The other threads with it.
        while self.parked:
            _sleep_for_good(self.sleep)

    def _reached(self, rank: int, source: str, count: int, parks: bool) -> None:
        now = self.clock()
        if rank > self.rank or not self.first:
            self.first = now
        self.rank, self.source, self.count, self.last = rank, source, count, now
        self.parked = parks
        if parks or not self.named or now - self.written > LATE_S:
            self.flush()

    def flush(self) -> None:
        """Writes the record. The descriptor may be closed, and its number a file of the user's by now: never there."""
        if self.pid != _getpid() or self.descriptor < 0:
            return
        try:
            if not _is_ours(self.descriptor):
                self._open()
            record = RECORD % (self.count, self.source, self.first, self.last, self.memory, self.parked)
            _pwrite(self.descriptor, record.encode("ascii"), 0)
            self.written = self.last
        except Exception:
            pass

    def flush_late(self) -> None:
        """At the end: the steps since the last write, with the time of the last of them as the file's."""
        try:
            if self.pid == _getpid() and self.written < self.last:
                self.flush()
                at = time.time() - (self.clock() - self.last)
                os.utime(self.descriptor, (at, at))
        except Exception:
            pass

    def leave(self, name: str) -> None:
        """An empty file in the step directory."""
        os.close(_open_file(os.path.join(self.step_dir, name)))

    def model_of(self, sizes: "Any", world: int = 1) -> None:
        """Adds a model: `sizes` are the bytes of its parameters."""
        sizes = list(sizes)
        if not sizes:
            return
        self.ready()
        self.model = (self.model[0] + sum(sizes), max(self.model[1], max(sizes)))
        descriptor = _open_file(self.path + ".model")
        try:
            _pwrite(descriptor, ("%20d %20d %10d\n" % (self.model + (world,))).encode("ascii"), 0)
        finally:
            os.close(descriptor)


def file_name(environ: "Any", pid: int, named: bool) -> str:
    """The pid; where many nodes and attempts share a directory: job, restart, node and pid."""
    if not named:
        return str(pid)
    node = environ.get("SLURMD_NODENAME") or os.uname()[1]
    job, restart = environ.get("SLURM_JOB_ID") or "0", environ.get("SLURM_RESTART_COUNT") or "0"
    return "%s.%s.%s.%d" % (job.replace("/", "_"), restart.replace("/", "_"), node.replace("/", "_"), pid)


def _open_file(path: str) -> int:
    if not os.path.isabs(path):
        raise ValueError("a relative name would be below the program's own directory")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_ours(descriptor: int) -> bool:
    try:
        return _lseek(descriptor, 0, 1) == _MARK
    except OSError:
        return False  # closed, or a pipe


def _sleep_for_good(sleep: "Any") -> None:
    """A handler of the user's for SIGTERM may save a checkpoint or leave by an exception: it does not get to run."""
    try:
        import signal

        names = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF")
        signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in names])
        sleep(3600)
    except BaseException:
        pass


def _settled() -> bool:
    """Waits for the GPU: False when a kernel of these steps failed, which the program's next call will report."""
    try:
        cuda = sys.modules["torch"].cuda
        if not cuda.is_initialized():
            return True
    except Exception:
        # No torch, or none with CUDA.
        return True
    try:
        cuda.synchronize()
    except Exception:
        return False
    return True


def _gpu_memory_mib() -> int:
    """Most GPU memory this process reserved, over its devices; 0 without CUDA."""
    try:
        cuda = sys.modules["torch"].cuda
        if not cuda.is_initialized():
            return 0
        return sum(cuda.max_memory_reserved(i) for i in range(cuda.device_count())) >> 20
    except Exception:
        return 0


counter = Counter()
