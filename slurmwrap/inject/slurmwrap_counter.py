"""The step counter of a process and its file. Imported with the first framework, or by an explicit step().

Each process has a file in $SLURMWRAP_STEP_DIR, named by its pid. It holds 69 bytes of text in fixed columns, so that
one pwrite replaces all of it: count, source, first and last step (seconds of CLOCK_MONOTONIC), peak GPU memory (MiB)
and `parked`. The file `<pid>.model` holds the bytes of all parameters, those of the largest one, and the world size;
in a pre-run `<pid>.total` holds the steps of the whole training (slurmwrap_total_steps); in a real job `<pid>.loss`
holds its losses (slurmwrap_losses). With $SLURMWRAP_PARK_AFTER=N the process sleeps forever ("parks") inside step N: no
later line runs, no checkpoint is written, and the supervisor kills it. With $SLURMWRAP_REHEARSE it goes on with
shortened epochs instead (slurmwrap_rehearsal), and its record stays as it was in step N. Python 3.6 syntax, standard
library; the callers ignore all exceptions.
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
# If a process has several sources of steps, the one with the highest rank decides: an engine may call its optimizers
# several times per step (DeepSpeed's ZeRO-3 calls step() per group of parameters), a backward pass need not lead to a
# step, and a batch need not be used for training.
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
LATE_S = 0.5  # maximum age of the record in a shared directory, in seconds
# File offset of the counter's descriptor, which pwrite neither uses nor changes. It marks that the descriptor still
# refers to the counter's file. Reading it costs a third of fstat, and no file of the user will have this offset.
_MARK = 0x53777261
_OF_OBJECT = "_slurmwrap_steps"
# Saved at import, because the user's program may replace these functions or clear the environment.
_getpid, _lseek, _pwrite = os.getpid, os.lseek, os.pwrite
_step_dir = os.environ.get("SLURMWRAP_STEP_DIR", "")
_park_after = os.environ.get("SLURMWRAP_PARK_AFTER", "")
# "1": rehearse after the steps; "on_request": once the file `rehearse` is in the step directory; else never.
_rehearse = os.environ.get("SLURMWRAP_REHEARSE", "")


class Counter(object):
    """The step counter of this process. After a fork the child counts from zero in a file of its own."""

    def __init__(self) -> None:
        self.clock, self.sleep = time.monotonic, time.sleep
        # Reentrant, because a signal handler of the user may count a step while another is being counted.
        self.make_lock = _thread.RLock
        self.lock = self.make_lock()
        self.step_dir, self.park_after = _step_dir, 0
        try:
            self.park_after = int(_park_after)
        except ValueError:
            pass
        self.rehearse = _rehearse
        self.pid = 0
        self.losses = None  # type: Any  # slurmwrap_losses.Losses, once torch is imported in a real job
        self._forget()

    def _forget(self) -> None:
        self.descriptor = -1
        self.path, self.named = "", False
        self.count = self.rank = self.memory = 0
        self.source, self.parked = "", False
        self.rehearsal = None  # type: Any
        self.first = self.last = self.written = 0.0
        self.added = {}  # type: Any
        # Bytes of all parameters, and of the largest one.
        self.model = (0, 0)
        if self.losses is not None:
            self.losses.forget()

    def begin(self) -> None:
        """Open the file of this process. If that fails, go on counting, so that the process still parks."""
        # The lock may be held by a thread that does not exist after the fork, so replace it after a second.
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
        """Restart the counter in a forked child. Call this before reading any attribute."""
        if self.pid != _getpid():
            self.begin()

    def enter(self, source: str) -> None:
        """Announce that steps of `source` have begun, so that sources of lower rank no longer count."""
        self.ready()
        if RANKS[source] > self.rank:
            self.rank, self.source, self.count, self.first = RANKS[source], source, 0, 0.0

    def beaten(self, source: str) -> bool:
        """Return whether real steps were counted, so that the weak sign `source` is no longer needed."""
        return self.rank > RANKS["backward"] >= RANKS[source]

    def add(self, source: str, by: int = 1) -> None:
        """Count `by` more steps of `source` in this process."""
        self.ready()
        with self.lock:
            self.added[source] = count = self.added.get(source, 0) + by
        self.saw(source, count)

    def add_of(self, thing: "Any", source: str) -> int:
        """Count a step of `thing` (an engine) and return its count. The process has the count of its busiest engine."""
        count = self.of(thing) + 1
        thing.__dict__[_OF_OBJECT] = (_getpid(), count)
        self.saw(source, count)
        return count

    def of(self, thing: "Any") -> int:
        """Return the steps of one optimizer or engine in this process.

        The count is stored in its __dict__ directly, because its class may define __setattr__.
        """
        known = thing.__dict__.get(_OF_OBJECT)
        return known[1] if known is not None and known[0] == _getpid() else 0

    def set_of(self, thing: "Any", count: int) -> None:
        thing.__dict__[_OF_OBJECT] = (_getpid(), count)

    def saw(self, source: str, count: int, parks: "Any" = None) -> None:
        """Record that `source` has made `count` steps, and park the process if it is due.

        `parks`: whether to park; None: decided by SLURMWRAP_PARK_AFTER.
        """
        if self.pid != _getpid():
            self.begin()
        rank = RANKS[source]
        if self.rehearsal is not None:
            self._rehearse_step(rank)
            return
        begins = False
        with self.lock:
            if not self.parked and (rank > self.rank or (rank == self.rank and count > self.count)):
                if parks is None:
                    parks = begins = 0 < self.park_after <= count or self._is_rehearsal_requested()
                parks = parks and _settled()
                begins = begins and parks and self.rehearse in ("1", "on_request")
                now = self.clock()
                if parks or (count == 3 and rank > RANKS["backward"]):
                    self.memory = _gpu_memory_mib()
                if parks:
                    self._note_total(count)
                self._reached(rank, source, count, parks and not begins, now)
        if begins:
            self._begin_rehearsal(count)
        # All threads that count a step are parked too.
        while self.parked:
            _sleep_for_good(self.sleep)

    def _note_total(self, steps: int) -> None:
        """Write how many steps the whole training has, if the program shows it. Only a pre-run parks, and only once."""
        try:
            total = sys.modules["slurmwrap_step"]._layer("slurmwrap_total_steps").find_total(steps)
            if total is not None:
                descriptor = _open_file(self.path + ".total")
                try:
                    _pwrite(descriptor, ("%20d %d\n" % total).encode("ascii"), 0)
                finally:
                    os.close(descriptor)
        except Exception:
            pass

    def _is_rehearsal_requested(self) -> bool:
        return self.rehearse == "on_request" and os.path.exists(os.path.join(self.step_dir, "rehearse"))

    def _begin_rehearsal(self, steps: int) -> None:
        """Go on with shortened epochs. Park instead if that is not possible."""
        try:
            rehearsal = sys.modules["slurmwrap_step"]._layer("slurmwrap_rehearsal").rehearsal
            self.flush()
            self.rehearsal = rehearsal
            rehearsal.begin(steps)
        except Exception:
            self._park()

    def _rehearse_step(self, rank: int) -> None:
        """Note a step of the rehearsal, and park if the rehearsal cannot reach anything more."""
        try:
            if rank >= self.rank and self.rehearsal.step():
                self._park()
        except Exception:
            self._park()
        while self.parked:
            _sleep_for_good(self.sleep)

    def _park(self) -> None:
        self.parked = True
        self.flush()

    def _reached(self, rank: int, source: str, count: int, parks: bool, now: float) -> None:
        if rank > self.rank or not self.first:
            self.first = now
        self.rank, self.source, self.count, self.last = rank, source, count, now
        self.parked = parks
        if self.losses is not None:
            try:
                self.losses.step(count, now)
            except Exception:
                pass
        if parks or not self.named or now - self.written > LATE_S:
            self.flush()

    def flush(self) -> None:
        """Write the record to the file of this process.

        The program may have closed the descriptor and opened another file with its number, which must not be changed.
        """
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
        """Write the steps since the last write at the end of the process, with the last step's time as mtime."""
        try:
            if self.pid == _getpid() and self.written < self.last:
                self.flush()
                at = time.time() - (self.clock() - self.last)
                os.utime(self.descriptor, (at, at))
        except Exception:
            pass

    def leave(self, name: str) -> None:
        """Create an empty file in the step directory as a mark."""
        os.close(_open_file(os.path.join(self.step_dir, name)))

    def model_of(self, sizes: "Any", world: int = 1) -> None:
        """Add a model and write the total size. `sizes`: the bytes of each of its parameters."""
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
    """Return the name of the counter's file: the pid, or job, restart count, node and pid in a shared directory."""
    if not named:
        # Containers number their processes each from 1.
        container = environ.get("SLURMWRAP_CONTAINER") or ""
        return "%s%07d" % (container, pid) if container.isdigit() else str(pid)
    node = environ.get("SLURMD_NODENAME") or os.uname()[1]
    job, restart = environ.get("SLURM_JOB_ID") or "0", environ.get("SLURM_RESTART_COUNT") or "0"
    return "%s.%s.%s.%d" % (job.replace("/", "_"), restart.replace("/", "_"), node.replace("/", "_"), pid)


def _open_file(path: str) -> int:
    if not os.path.isabs(path):
        raise ValueError("a relative name would be below the program's own directory")
    # A container's user may be another than the job's. The directory is private.
    mode = 0o644 if os.environ.get("SLURMWRAP_CONTAINER") else 0o600
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode)


def _is_ours(descriptor: int) -> bool:
    try:
        return _lseek(descriptor, 0, 1) == _MARK
    except OSError:
        return False  # the descriptor is closed or belongs to a pipe


def _sleep_for_good(sleep: "Any") -> None:
    """Sleep with signals blocked: a handler of the user could save a checkpoint or raise an exception."""
    try:
        import signal

        names = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF")
        signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in names])
        sleep(3600)
    except BaseException:
        pass


def _settled() -> bool:
    """Wait for the GPU. Return False if a kernel of these steps failed; the program's next call will report that."""
    try:
        cuda = sys.modules["torch"].cuda
        if not cuda.is_initialized():
            return True
    except Exception:
        # torch is not imported or has no CUDA.
        return True
    try:
        cuda.synchronize()
    except Exception:
        return False
    return True


def _gpu_memory_mib() -> int:
    """Return the peak of the GPU memory that this process reserved, summed over its devices; 0 without CUDA."""
    try:
        cuda = sys.modules["torch"].cuda
        if not cuda.is_initialized():
            return 0
        return sum(cuda.max_memory_reserved(i) for i in range(cuda.device_count())) >> 20
    except Exception:
        return 0


counter = Counter()
