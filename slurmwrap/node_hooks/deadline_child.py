"""Edge: work that may hang, in a child that is abandoned when late. Never waits for a child in D state.

`subprocess.run(timeout=...)` waits again after its kill, without bound, when the child is stuck in the kernel.
"""
import os
import select
import signal
import time

GRACE_S = 0.2
CHUNK = 65536
ENVIRONMENT = {b"LC_ALL": b"C", b"PATH": b"/usr/bin:/bin"}


class Result:
    """`data`: what the child wrote. `complete`: it ended by itself with exit code 0 and wrote no more than allowed.

    `left`: its pid when not even SIGKILL ended it, as in D state; else None.
    """

    def __init__(self, data, complete, late, left=None):
        self.data = data
        self.complete = complete
        self.late = late
        self.left = left


def call(function, deadline, limit):
    """`function(write)` in a forked child without exec; `write(bytes)` sends up to `limit` bytes back. A Result.

    `deadline` is of time.monotonic(). The child ends itself by SIGALRM when it outlives us.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            _on_our_own(deadline)
            function(_sender(writer))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    return _collect(pid, reader, None, b"", deadline, limit)


def run(argv, data, deadline, limit):
    """Runs the program `argv[0]` (an absolute path) with `data` on stdin. A Result with its stdout."""
    out_reader, out_writer = os.pipe()
    in_reader, in_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _on_our_own(deadline)
            null = os.open("/dev/null", os.O_WRONLY)
            for source, target in ((in_reader, 0), (out_writer, 1), (null, 2)):
                os.dup2(source, target)
            os.execve(argv[0], argv, ENVIRONMENT)
        finally:
            os._exit(127)
    os.close(out_writer)
    os.close(in_reader)
    return _collect(pid, out_reader, in_writer, data, deadline, limit)


def _on_our_own(deadline):
    os.setsid()
    # Python ignores it, and that would be inherited.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # After the parent gave up; survives exec.
    signal.alarm(max(1, int(deadline - time.monotonic()) + 2))


def _sender(writer):
    def send(data):
        view = memoryview(data)
        while view:
            view = view[os.write(writer, view) :]

    send.descriptor = writer
    return send


def _collect(pid, reader, writer, data, deadline, limit):
    received = []
    try:
        ended = _talk(reader, writer, data, deadline, limit, received)
    finally:
        os.close(reader)
    if ended is None:
        late = time.monotonic() >= deadline
        return Result(b"".join(received), False, late, _kill(pid))
    status = _reap(pid, max(deadline, time.monotonic() + GRACE_S))
    left = _kill(pid) if status is None else None
    return Result(b"".join(received), status == 0, status is None, left)


def _talk(reader, writer, data, deadline, limit, received):
    """Feeds and reads until the child closes its end: True. None at the deadline or beyond `limit` bytes."""
    view, size = memoryview(data), 0
    try:
        if writer is not None:
            os.set_blocking(writer, False)
        while True:
            if writer is not None and not view:
                os.close(writer)
                writer = None
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            readable, writable, _ = select.select([reader], [writer] if writer is not None else [], [], left)
            if writable:
                view = _feed(writer, view)
            if readable:
                chunk = os.read(reader, CHUNK)
                size += len(chunk)
                if not chunk:
                    return True
                if size > limit:
                    return None
                received.append(chunk)
    finally:
        if writer is not None:
            os.close(writer)


def _feed(writer, view):
    try:
        return view[os.write(writer, view[:CHUNK]) :]
    except BlockingIOError:
        return view
    except BrokenPipeError:
        # It reads no more; its exit code shows it.
        return view[:0]


def _kill(pid):
    """Ends the child's session. Returns `pid` when it does not die: it is left behind."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return pid if _reap(pid, time.monotonic() + GRACE_S) is None else None


def _reap(pid, deadline):
    """The wait status, None when the child is not dead in time."""
    pause = 0.0005
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
