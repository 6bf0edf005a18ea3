"""Query a driver in a child process that is abandoned when the driver hangs (adapter). One query runs at a time.

A process that waits in the driver survives SIGKILL (D state). Its pid and start time are saved. As long as it exists,
the driver counts as hung and is not asked again, so that stuck processes do not accumulate with every job. NVIDIA's
driver is "driver"; the adapters of the network are "network" (network_ports.py).
"""
import fcntl
import json
import os
import time

from . import deadline_child, node_state

DRIVER = "driver"
# Seconds to wait while another hook of this node is asking the driver.
TURN_S = 1.0


class DriverAnswer:
    """The driver's answer. `data`: what the child sent. `error`: why it is incomplete, else "". `hung`: see hung()."""

    def __init__(self, data, error, stuck=None):
        self.data = data
        self.error = error
        self.hung = stuck


def ask(settings, work, deadline, limit, doing, name=DRIVER):
    """Run `work(send)` in a child, until `deadline` at the latest, and return a DriverAnswer.

    `doing(data)` returns a description of the call in which the child is stuck, given the data that it has sent. Raise
    OSError when the node's private directory cannot be used: a stuck child could not be recorded, so none is started.
    """
    directory = node_state.ensure(settings.node_state_dir)
    stuck = hung(directory, name)
    if stuck is not None:
        return DriverAnswer(b"", said(stuck), stuck)
    lock = os.open(os.path.join(directory, name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if not _acquire_lock(lock, min(deadline, time.monotonic() + TURN_S)):
            return DriverAnswer(b"", "another hook was asking the driver all the time")
        found = deadline_child.call(work, deadline, limit)
        if found.left is not None:
            stuck = _save_marker(directory, name, found.left, doing(found.data))
            return DriverAnswer(found.data, said(stuck), stuck)
    finally:
        os.close(lock)
    if found.complete:
        return DriverAnswer(found.data, "")
    why = "the driver did not answer in time" if found.late else "the question to the driver failed"
    return DriverAnswer(found.data, why)


def parse_lines(data):
    """Return the JSON objects that a child sent, one a line, without a last line that is cut."""
    return [json.loads(line.decode("utf-8")) for line in data.split(b"\n")[:-1]]


def find_last_call(data, otherwise="the start"):
    """Return what the child said last that it asks, {"asking": call}; `otherwise` if it said nothing."""
    asked = [line["asking"] for line in parse_lines(data) if "asking" in line]
    return asked[-1] if asked else otherwise


def hung(directory, name=DRIVER):
    """Return {"pid", "start", "since", "call"} of the child that is still stuck in the driver; None without one."""
    path = os.path.join(directory, name + ".stuck")
    try:
        with open(path, "rb") as stream:
            marker = json.loads(stream.read(4096).decode("utf-8"))
        pid, start = int(marker["pid"]), marker["start"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return _remove_marker(path)
    # A process with the same pid and another start time is a new process.
    if start is None or started(pid) != start:
        return _remove_marker(path)
    return marker


def said(stuck):
    """Return a description of the stuck child, given its marker."""
    return "driver hung: process %s waits in %s since %d" % (stuck["pid"], stuck.get("call"), stuck.get("since") or 0)


def started(pid):
    """Return a process's start in clock ticks since boot (proc_pid_stat(5), field 22); None when it has ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            fields = stream.read(4096).rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _save_marker(directory, name, pid, call):
    stuck = {"pid": pid, "start": started(pid), "since": int(time.time()), "call": call}
    try:
        node_state.write(os.path.join(directory, name + ".stuck"), json.dumps(stuck).encode("utf-8"))
    except OSError:
        # Without the marker, the lock that the stuck child still holds keeps other hooks from asking.
        pass
    return stuck


def _remove_marker(path):
    try:
        os.unlink(path)
    except OSError:
        pass


def _acquire_lock(lock, until):
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
