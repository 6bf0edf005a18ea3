"""Run work that may hang in a child process that is abandoned at its deadline (adapter).

It never waits for a child in D state, unlike `subprocess.run(timeout=...)`, which waits again without limit after it
has killed the child.
"""
import os
import select
import signal
import time

GRACE_S = 0.2
CHUNK = 65536
ENVIRONMENT = {b"LC_ALL": b"C", b"PATH": b"/usr/bin:/bin"}


class Result:
    """The outcome of a child. `data`: what it wrote.

    `complete`: it ended by itself with exit code 0 and wrote no more than its limit. `late`: it was not finished at the
    deadline. `left`: its pid when even SIGKILL did not end it, as in D state; else None.
    """

    def __init__(self, data, complete, late, left=None):
        self.data = data
        self.complete = complete
        self.late = late
        self.left = left


def call(function, deadline, limit):
    """Run `function(write)` in a forked child without exec and return a Result.

    `write(bytes)` sends data back, `limit` bytes in total. `deadline` is a value of time.monotonic(). SIGALRM ends the
    child when it outlives its parent.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            _start_own_session(deadline)
            function(_sender(writer))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    return _collect(pid, reader, None, b"", deadline, limit)


def run(argv, data, deadline, limit):
    """Run the program `argv[0]` (an absolute path) with `data` on stdin and return a Result with its stdout."""
    out_reader, out_writer = os.pipe()
    in_reader, in_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _start_own_session(deadline)
            null = os.open("/dev/null", os.O_WRONLY)
            for source, target in ((in_reader, 0), (out_writer, 1), (null, 2)):
                os.dup2(source, target)
            os.execve(argv[0], argv, ENVIRONMENT)
        finally:
            os._exit(127)
    os.close(out_writer)
    os.close(in_reader)
    return _collect(pid, out_reader, in_writer, data, deadline, limit)


def _start_own_session(deadline):
    os.setsid()
    # Python ignores SIGPIPE, and a program inherits that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # The alarm goes off after the parent has given up. It survives exec.
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
        ended = _exchange(reader, writer, data, deadline, limit, received)
    finally:
        os.close(reader)
    if ended is None:
        late = time.monotonic() >= deadline
        return Result(b"".join(received), False, late, _kill(pid))
    status = _reap(pid, max(deadline, time.monotonic() + GRACE_S))
    left = _kill(pid) if status is None else None
    return Result(b"".join(received), status == 0, status is None, left)


def _exchange(reader, writer, data, deadline, limit, received):
    """Write `data` to the child and read from it until it closes its end of the pipe; then return True.

    Return None at the deadline or when the child sends more than `limit` bytes.
    """
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
        # The child does not read any more; its exit code shows whether it failed.
        return view[:0]


def _kill(pid):
    """Kill the child and its process group. Return `pid` when the child does not die, else None."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return pid if _reap(pid, time.monotonic() + GRACE_S) is None else None


def _reap(pid, deadline):
    """Return the child's wait status; None when it has not ended by `deadline`."""
    pause = 0.0005
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
