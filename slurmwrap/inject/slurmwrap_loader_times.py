"""Measure in a pre-run what a torch DataLoader's batches cost: reading, waiting for storage, CPU time, and their number.

Each process that fetches batches (a worker, or the training process without workers) has a file `<pid>.fetch` in the
step directory, the training process also `<pid>.loader`. Both hold sums in text, which one pwrite replaces:

    fetch   dataset batches seconds cpu_seconds queue_seconds read_bytes stored_bytes
    loader  dataset batches wait_seconds between_seconds length workers

`dataset` identifies the dataset object, which forked workers share with their parent; `queue` is the time in which the
process could have run but had no CPU (schedstat); seconds that are neither are spent waiting: for storage, for a lock.
`between` is the time from one batch until the program asks for the next; it leaves out the first step too if there is
another one, because a program prepares much in it. `length` is len(loader), or -1. The first batches are left out: they
include the start of the workers. Only the iterator with most batches counts. Python 3.6
syntax, standard library; never raises into the program. Sources: torch/utils/data/_utils/fetch.py (1.4 to 2.13),
proc_pid_io(5), Documentation/scheduler/sched-stats.rst.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OF_SLURMWRAP = True
_WRAPPED = "_slurmwrap_times"
# Batches of each process that are left out.
SKIPPED = 1
_clock, _getpid = time.monotonic, os.getpid


class SumsFile(object):
    """A file of one process with one line of sums."""

    def __init__(self, step_dir: str, ending: str) -> None:
        self.step_dir, self.ending = step_dir, ending
        self.pid, self.descriptor = 0, -1

    def write(self, values: "Any") -> None:
        """Replace the line. Raise OSError if that fails."""
        if self.pid != _getpid():
            # A forked child has a file of its own; the parent's descriptor stays the parent's.
            self.pid = _getpid()
            path = os.path.join(self.step_dir, "%d.%s" % (self.pid, self.ending))
            self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self.descriptor, (" ".join("%20s" % value for value in values) + "\n").encode("ascii"), 0)


class FetchTimes(object):
    """Sums over the batches that this process fetched of one dataset; a forked child begins anew."""

    def __init__(self, step_dir: str) -> None:
        self.file = SumsFile(step_dir, "fetch")
        self.pid, self.known = 0, {}  # type: Any

    def note(self, dataset: int, before: "Any", after: "Any") -> None:
        if self.pid != _getpid():
            self.pid, self.known = _getpid(), {}
        sums = self.known.setdefault(dataset, [-SKIPPED, 0.0, 0.0, 0.0, 0, 0])
        sums[0] += 1
        if sums[0] > 0:
            for place, (start, end) in enumerate(zip(before, after), 1):
                sums[place] += end - start
            if sums[0] == max(each[0] for each in self.known.values()):
                self.file.write(["%d" % dataset, "%d" % sums[0]] + ["%.6f" % value for value in sums[1:]])


def read_usage() -> "Any":
    """Return seconds, CPU seconds and seconds in the run queue of this thread, and bytes that it read.

    The bytes are all those of read(2), and those that came from a block device or a network file system.
    """
    cpu = queue = 0.0
    read = stored = 0
    with open("/proc/thread-self/schedstat", "rb") as stream:
        words = stream.read(200).split()
        cpu, queue = int(words[0]) / 1e9, int(words[1]) / 1e9
    with open("/proc/thread-self/io", "rb") as stream:
        for line in stream.read(1000).split(b"\n"):
            if line.startswith(b"rchar:"):
                read = int(line[6:])
            elif line.startswith(b"read_bytes:"):
                stored = int(line[11:])
    return _clock(), cpu, queue, read, stored


def hook(module: "Any", step_dir: str) -> None:
    """Patch torch.utils.data.dataloader, given as `module`."""
    times = FetchTimes(step_dir)
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        _time_fetches(getattr(module._utils.fetch, name), times)
    _time_batches(module._BaseDataLoaderIter, SumsFile(step_dir, "loader"))
    _remember_loader(module._BaseDataLoaderIter)


def _time_fetches(kind: "Any", times: "FetchTimes") -> None:
    plain = kind.fetch
    if getattr(plain, _WRAPPED, False):
        return

    def fetch(self: "Any", index: "Any") -> "Any":
        before = _quietly(read_usage) if not _is_rehearsing() else None
        data = plain(self, index)
        if before is not None:
            _quietly(_note_fetch, times, self, before)
        return data

    setattr(fetch, _WRAPPED, True)
    kind.fetch = fetch


def _note_fetch(times: "FetchTimes", fetcher: "Any", before: "Any") -> None:
    times.note(id(fetcher.dataset), before, read_usage())


def _remember_loader(kind: "Any") -> None:
    """Keep len(loader) and the workers with each iterator, which does not know its loader."""
    plain = kind.__init__

    def __init__(self: "Any", loader: "Any", *args: "Any", **kwargs: "Any") -> None:
        plain(self, loader, *args, **kwargs)
        _quietly(_set_length, self, loader)

    kind.__init__ = __init__


def _set_length(iterator: "Any", loader: "Any") -> None:
    length = -1
    try:
        length = len(loader)
    except Exception:
        pass
    # id of the dataset, length, workers; then batches, seconds of waiting and between, time of the last batch.
    iterator.__dict__[_WRAPPED] = [id(loader.dataset), length, int(loader.num_workers), -SKIPPED, 0.0, 0.0, 0.0]


def _time_batches(kind: "Any", file: "SumsFile") -> None:
    plain = kind.__next__
    most = [0, 0]  # the batches of the iterator with most of them, in this process

    def __next__(self: "Any") -> "Any":
        asked = _clock()
        batch = plain(self)
        _quietly(_note_batch, self, asked, file, most)
        return batch

    kind.__next__ = __next__


def _note_batch(iterator: "Any", asked: float, file: "SumsFile", most: "Any") -> None:
    state = iterator.__dict__.get(_WRAPPED)
    if state is None or _is_rehearsing():
        return
    now = _clock()
    state[3] += 1
    if state[3] > 0:
        state[4] += now - asked
        # The first step, until another one is known.
        if state[3] <= 2:
            state[5] = 0.0
        state[5] += asked - state[6]
        between = state[5] * state[3] / max(1, state[3] - 1)
        if most[0] != _getpid():
            most[:] = [_getpid(), 0]
        if state[3] >= most[1]:
            most[1] = state[3]
            values = ["%d" % state[0], "%d" % state[3], "%.6f" % state[4], "%.6f" % between]
            file.write(values + ["%d" % state[1], "%d" % state[2]])
    state[6] = now


def _is_rehearsing() -> bool:
    layer = sys.modules.get("slurmwrap_rehearsal")
    return layer is not None and bool(layer.rehearsal.active)


def _quietly(action: "Any", *arguments: "Any") -> "Any":
    try:
        return action(*arguments)
    except Exception:
        return None
