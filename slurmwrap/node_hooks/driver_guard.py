"""Edge: questions to NVIDIA's driver: one at a time on a node, each in a child that is abandoned when the driver hangs.

A process that waits in the driver survives SIGKILL (D state). Its pid and start time are kept; while it is there the
driver is called hung and not asked again, so that stuck processes do not pile up with the jobs.
"""
import fcntl
import json
import os
import time

from . import deadline_child, node_state

MARKER = "driver.stuck"
# For another hook of this node that is asking right now.
TURN_S = 1.0


class DriverAnswer:
    """`data`: what the child sent. `error`: why there is no more, "" when it is whole. `hung`: see hung(), or None."""

    def __init__(self, data, error, stuck=None):
        self.data = data
        self.error = error
        self.hung = stuck


def ask(settings, work, deadline, limit, doing):
    """`work(send)` in a child, until `deadline` at the latest. An Answer.

    `doing(data)` says in words what the child was at, from what it had sent. OSError when the node's private directory
    cannot be used: then no one could say that a child is stuck, and none is started.
    """
    directory = node_state.ensure(settings.node_state_dir)
    stuck = hung(directory)
    if stuck is not None:
        return DriverAnswer(b"", said(stuck), stuck)
    lock = os.open(os.path.join(directory, "driver.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if not _turn(lock, min(deadline, time.monotonic() + TURN_S)):
            return DriverAnswer(b"", "another hook was asking the driver all the time")
        found = deadline_child.call(work, deadline, limit)
        if found.left is not None:
            stuck = _mark(directory, found.left, doing(found.data))
            return DriverAnswer(found.data, said(stuck), stuck)
    finally:
        os.close(lock)
    if found.complete:
        return DriverAnswer(found.data, "")
    why = "the driver did not answer in time" if found.late else "the question to the driver failed"
    return DriverAnswer(found.data, why)


def hung(directory):
    """`{"pid", "start", "since", "call"}` of a question that is still stuck in the driver, None when there is none."""
    path = os.path.join(directory, MARKER)
    try:
        with open(path, "rb") as stream:
            marker = json.loads(stream.read(4096).decode("utf-8"))
        pid, start = int(marker["pid"]), marker["start"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return _forget(path)
    if start is None or started(pid) != start:
        return _forget(path)
    return marker


def said(stuck):
    """A marker in words."""
    return "driver hung: process %s waits in %s since %d" % (stuck["pid"], stuck.get("call"), stuck.get("since") or 0)


def started(pid):
    """A live process's start in clock ticks since boot (proc_pid_stat(5), field 22); None when it has ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            fields = stream.read(4096).rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _mark(directory, pid, call):
    stuck = {"pid": pid, "start": started(pid), "since": int(time.time()), "call": call}
    try:
        node_state.write(os.path.join(directory, MARKER), json.dumps(stuck).encode("utf-8"))
    except OSError:
        # It holds the lock as well.
        pass
    return stuck


def _forget(path):
    try:
        os.unlink(path)
    except OSError:
        pass


def _turn(lock, until):
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
