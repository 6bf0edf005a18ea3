"""Edge: a node's kernel log from a mark on. Sources: /dev/kmsg (by sequence number), journal, file:PATH (by offset).

A mark is opaque to everyone else. Lines come back as (text, Unix seconds or None); only the kernel's own records count.
"""
import os
import re
import stat
import time

from . import child

KMSG = "/dev/kmsg"
RECORD = 8192  # a longer buffer is never needed (CONSOLE_EXT_LOG_MAX), a shorter one fails with EINVAL
RECORDS = 200000
FILE_BYTES = 1 << 20
JOURNAL_S = 2.0
JOURNALCTL = ("/usr/bin/journalctl", "/bin/journalctl")


def mark(source):
    """Where the log ends now; None when it cannot be read."""
    try:
        if source == KMSG:
            last = -1
            for record in _records():
                last = record
            return {"source": source, "boot": _boot(), "seq": _sequence(last) if last != -1 else -1}
        if source.startswith("file:"):
            return _file_mark(source)
        return {"source": source, "boot": _boot()}
    except OSError:
        return None


def since(source, marked, at, deadline):
    """Lines after `marked` (what `mark` gave) or, where there is none, after Unix time `at`; [] with neither."""
    if not isinstance(marked, dict) or marked.get("source") != source:
        marked = {}
    if source == KMSG:
        after = marked.get("seq", -1) if marked.get("boot") == _boot() else -1
        return list(_kmsg(after, at)) if marked or at else []
    if source.startswith("file:"):
        return _file(source[5:], marked) if marked else []
    return _journal(at, deadline) if at else []


def _boot():
    with open("/proc/sys/kernel/random/boot_id") as stream:
        return stream.read().strip()


def _records():
    """Raw records of the ring buffer, oldest first, never blocking."""
    descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for _ in range(RECORDS):
            try:
                yield os.read(descriptor, RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # overwritten while we read; the next read goes on with the oldest there is
    finally:
        os.close(descriptor)


def _sequence(record):
    return int(record.split(b",", 2)[1])


def _kmsg(after, at):
    """Kernel records with a higher sequence number; without one (after a reboot, say) those since `at`."""
    zero = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    for record in _records():
        line = parse_record(record)
        if line is None or line[0] <= after or (after < 0 and at and zero + line[1] < at - 1.0):
            continue
        yield line[2], zero + line[1]


def parse_record(record):
    """(sequence, seconds since boot, text) of a /dev/kmsg record; None unless facility 0, the kernel itself, wrote it.

    What root's daemons print into /dev/kmsg gets another facility from the kernel, whatever they claim.
    """
    head, _, body = record.partition(b";")
    fields = head.split(b",")
    if len(fields) < 3 or int(fields[0]) >> 3 != 0:
        return None
    return int(fields[1]), int(fields[2]) / 1e6, body.split(b"\n", 1)[0].decode("utf-8", "replace")


def _open_file(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise OSError("%s is not a regular file" % path)
    return descriptor, found


def _file_mark(source):
    try:
        descriptor, found = _open_file(source[5:])
    except FileNotFoundError:
        return {"source": source, "inode": 0, "offset": 0}
    os.close(descriptor)
    return {"source": source, "inode": found.st_ino, "offset": found.st_size}


def _file(path, marked):
    """Lines after the mark; all of them when the file was replaced or cut since. At most the last MiB."""
    try:
        descriptor, found = _open_file(path)
    except FileNotFoundError:
        return []
    try:
        same = marked.get("inode") == found.st_ino and marked.get("offset", 0) <= found.st_size
        start = max(marked["offset"] if same else 0, found.st_size - FILE_BYTES)
        data = os.pread(descriptor, FILE_BYTES, start)
    finally:
        os.close(descriptor)
    return [(strip_prefix(line), None) for line in data.decode("utf-8", "replace").split("\n") if line]


def strip_prefix(line):
    """A line of dmesg or syslog without its date, host and "kernel:"."""
    stamp = r"(?:<\d+>)?(?:[A-Z][a-z]{2} +\d+ [\d:]{8} \S+ kernel: |\d{4}-\d\d-\d\d[T ]\S+ \S+ kernel: )?"
    return re.sub(r"^" + stamp + r"(?:\[[\s\d.]+\] ?)?", "", line, count=1)


def _journal(at, deadline):
    program = [path for path in JOURNALCTL if os.access(path, os.X_OK)]
    if not program:
        raise OSError("journalctl is not installed")
    argv = [program[0], "--dmesg", "--since=@%d" % at, "--output=short-unix", "--no-pager", "--quiet", "--lines=5000"]
    found = child.run(argv, b"", min(deadline, time.monotonic() + JOURNAL_S), 4 * FILE_BYTES)
    if not found.complete and not found.data:
        raise OSError("journalctl was late" if found.late else "journalctl failed")
    return [line for line in map(_journal_line, found.data.decode("utf-8", "replace").split("\n")) if line]


def _journal_line(line):
    stamp, _, rest = line.partition(" ")
    text = rest.partition(" ")[2]
    if not text.startswith("kernel: "):
        return None
    return text[len("kernel: ") :], float(stamp)
