"""Read a node's kernel log from a mark on (adapter), and select the lines that concern one job.

Sources: /dev/kmsg (the mark has a sequence number), the journal, and file:PATH (the mark has an offset). A mark is
opaque to all other modules. Lines are returned as (text, Unix seconds or None); only records of the kernel itself
count.
"""

import os
import re
import stat
import time
from . import deadline_child
from . import job_cgroup


KMSG = "/dev/kmsg"
# Size of the read buffer. No record is longer (CONSOLE_EXT_LOG_MAX); a buffer that is too short fails with EINVAL.
RECORD = 8192
RECORDS = 200000
FILE_BYTES = 1 << 20
JOURNAL_S = 2.0
JOURNAL_LINES = 5000
JOURNALCTL = ("/usr/bin/journalctl", "/bin/journalctl")


class KernelLines:
    """The lines read. `lines`: (text, Unix seconds or None). `lost`: why lines since the mark are missing, or ""."""

    def __init__(self, lines, lost=""):
        self.lines = lines
        self.lost = lost


def mark(source):
    """Return a mark at the present end of the log; None when the log cannot be read."""
    try:
        if source == KMSG:
            last = -1
            for record in _ring():
                last = record or last
            return {"source": source, "boot": boot(), "seq": _sequence(last) if last != -1 else -1}
        if source.startswith("file:"):
            return _file_mark(source)
        return {"source": source, "boot": boot(), "monotonic": time.clock_gettime(time.CLOCK_MONOTONIC)}
    except OSError:
        return None


def since(source, marked, at, deadline):
    """Return the lines after the mark `marked` or, without one, after Unix time `at`; no lines without either.

    After a reboot, all lines of the present boot count as later than the mark.
    """
    if not isinstance(marked, dict) or marked.get("source") != source:
        marked = {}
    if source == KMSG:
        return _kmsg(_ring(), marked, None if marked else at) if marked or at else KernelLines([])
    if source.startswith("file:"):
        return _file(source[5:], marked) if marked else KernelLines([])
    return _journal(marked, at, deadline) if marked or at else KernelLines([])


def boot():
    """Return the id of the present boot."""
    with open("/proc/sys/kernel/random/boot_id") as stream:
        return stream.read().strip()


def _ring():
    """Yield the records of the kernel's ring buffer."""
    descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for record in records(lambda: os.read(descriptor, RECORD)):
            yield record
    finally:
        os.close(descriptor)


def records(read):
    """Yield raw records, oldest first, from `read()`, which returns one record and raises BlockingIOError at the end.

    None is yielded for records that were overwritten meanwhile (EPIPE); the next read continues with the oldest record.
    """
    for _ in range(RECORDS):
        try:
            yield read()
        except BlockingIOError:
            return
        except BrokenPipeError:
            yield None


def _sequence(record):
    return int(record.split(b",", 2)[1])


def _kmsg(found, marked, at):
    """Return the lines with a higher sequence number than the mark's, or all since Unix time `at`.

    The kernel's time stamps count seconds since boot, so that setting the clock changes none but `at`.
    """
    zero = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    after = marked.get("seq", -1) if marked.get("boot") == boot() else -1
    lines, lost, following = [], "", after + 1
    for record in found:
        if record is None:
            continue
        sequence = _sequence(record)
        if after >= 0 and sequence > following:
            lost = "the kernel's ring buffer wrapped: lines lost"
        following = max(following, sequence + 1)
        line = parse_record(record)
        if line is not None and sequence > after and (at is None or zero + line[1] >= at - 1.0):
            lines.append((line[2], zero + line[1]))
    return KernelLines(lines, lost)


def parse_record(record):
    """Return (sequence, seconds since boot, text) of a /dev/kmsg record; None unless the kernel (facility 0) wrote it.

    The kernel gives records that root's daemons write to /dev/kmsg another facility, even if they claim facility 0.
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
    """Return the lines after the mark; all lines when the file was replaced or truncated since.

    At most the last MiB.
    """
    try:
        descriptor, found = _open_file(path)
    except FileNotFoundError:
        return KernelLines([])
    try:
        same = marked.get("inode") == found.st_ino and marked.get("offset", 0) <= found.st_size
        wanted = marked["offset"] if same else 0
        start = max(wanted, found.st_size - FILE_BYTES)
        data = os.pread(descriptor, FILE_BYTES, start)
    finally:
        os.close(descriptor)
    lines = [(strip_prefix(line), None) for line in data.decode("utf-8", "replace").split("\n") if line]
    return KernelLines(lines, "more than %d bytes: lines lost" % FILE_BYTES if start > wanted else "")


def strip_prefix(line):
    """Return a line of dmesg or syslog without its date, host and "kernel:"."""
    stamp = r"(?:<\d+>)?(?:[A-Z][a-z]{2} +\d+ [\d:]{8} \S+ kernel: |\d{4}-\d\d-\d\d[T ]\S+ \S+ kernel: )?"
    return re.sub(r"^" + stamp + r"(?:\[[\s\d.]+\] ?)?", "", line, count=1)


def _journal(marked, at, deadline, programs=JOURNALCTL):
    """Return the lines of this boot after the mark, by the monotonic clock, since the wall clock may have been set."""
    program = [path for path in programs if os.access(path, os.X_OK)]
    if not program:
        raise OSError("journalctl is not installed")
    now, ticks = time.time(), time.clock_gettime(time.CLOCK_MONOTONIC)
    after = -1.0
    if marked.get("boot") == boot() and isinstance(marked.get("monotonic"), float):
        after = marked["monotonic"]
        # The time of the mark by the present wall clock.
        at = min(at or now, now - (ticks - after))
    elif marked:
        at = now - ticks  # the mark is from an earlier boot: read all lines of this one
    argv = [program[0], "--dmesg", "--since=@%d" % at, "--output=short-monotonic", "--no-pager", "--quiet"]
    argv.append("--lines=%d" % JOURNAL_LINES)
    found = deadline_child.run(argv, b"", min(deadline, time.monotonic() + JOURNAL_S), 4 * FILE_BYTES)
    if not found.complete and not found.data:
        raise OSError("journalctl was late" if found.late else "journalctl failed")
    rows = found.data.decode("utf-8", "replace").split("\n")
    lines = [line for line in map(_journal_line, rows) if line]
    cut = not found.complete or len(rows) > JOURNAL_LINES
    kept = [(text, stamp + now - ticks) for text, stamp in lines if stamp >= after]
    return KernelLines(kept, "more lines than are read from the journal: lines lost" if cut else "")


def _journal_line(line):
    """Return (text, seconds since boot) of `[   12.345678] host kernel: text`; None for a line of another form."""
    parts = re.match(r"\[\s*([0-9]+\.[0-9]+)\] \S+ kernel: (.*)", line)
    return (parts.group(2), float(parts.group(1))) if parts else None


# The following code selects the kernel lines that concern one job: its own GPUs, its own OOM kills, and faults of the
# whole node.
#
# Pure. A user chooses the name of their process, and a kernel line may begin with it ("comm[pid]: segfault"). Such
# lines are dropped first, and all patterns are anchored, so that a program named "NVRM: Xid" is not mistaken for the
# driver.

# Most lines that are kept, and most characters of each.
LINES = 200
CHARACTERS = 1000
# A line without any of these is skipped before the more expensive regular expressions are tried.
HINTS = ("NVRM", "nvidia", "oom", "memory", "rror", "nfs", "Lustre", "LNet", "timeout", "timed out", "EDAC", "AER")
HINTS += ("BUG", "blocked for more", "shut", "orruption", "achine", "mlx", "amdgpu", "abort", "BTRFS", "ceph")

# Start of a line that begins with a process name: "comm[pid]: segfault", "comm invoked oom-killer: ", "comm: page
# allocation failure" (mm/oom_kill.c, mm/page_alloc.c, kernel/signal.c).
BY_USER = r".{1,16}?(?:(?:\[\d+\]|\(\d+\)| \(\d+\)):? | invoked oom-killer: "
BY_USER += r"|: (?:page allocation|vmalloc|vmemmap|potentially unexpected fatal signal) )"


def _compile():
    by_user = re.compile(BY_USER)
    address = re.compile(r"\b([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\b")
    node_wide = re.compile(
        r"(?:(?:blk_update_request|print_req_error|end_request): |(?:critical \w+|Buffer I/O|I/O) error[, ]"
        r"|EXT4-fs error|XFS \([^)]{1,64}\): .{0,200}(?:rror|orruption|[Ss]hut)|BTRFS (?:error|critical)"
        r"|nfs: server \S+ (?:not responding|timed out|OK)|NFS: |Lustre(?:Error)?: |LNet(?:Error)?: |(?:lib)?ceph: "
        r"|nvme nvme\d+: .{0,80}(?:timeout|abort|reset)|mlx[45]_core "
        r"|(?:mce: )?\[Hardware Error\]|\{\d+\}\[Hardware Error\]|EDAC |pcieport \S+ AER|Kernel panic|Machine check"
        r"|INFO: task .{1,16}:\d+ blocked for more than|(?:watchdog: )?BUG: soft lockup)"
    )
    return by_user, address, node_wide


def bus_address(value):
    """Return (domain, bus, device) of "0000:05:00.0" or "PCI:0000:05:00"; None when `value` has no PCI address."""
    found = re.search(r"\b([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\b", value)
    return tuple(int(part, 16) for part in found.groups()) if found else None


def fell_off(text):
    """Return whether the driver reports in `text` that a GPU of the node fell off the bus (with or without Xid 79)."""
    if not text.startswith("NVRM: ") or re.match(BY_USER, text):
        return False
    return "fallen off the bus" in text or xid(text) == 79


def xid(text):
    """Return the code of an Xid line of the driver; None for other lines, also those that begin with a process name."""
    found = re.match(r"NVRM: Xid \([^)]{1,40}\)[^,]{0,40}?: (\d{1,4}),", text)
    return int(found.group(1)) if found and not re.match(BY_USER, text) else None


def relevant(lines, job_id, uid, own_gpus, has_gpus, sluid=""):
    """Return (`[{"text", "at"}]`, number of lines about GPUs that are not, or not known to be, the job's).

    `lines`: (text, at). `own_gpus`: PCI addresses as text, empty when unknown. `sluid`: the job's SLUID, after which
    its cgroup may be named.
    """
    lines = [line for line in lines if any(hint in line[0] for hint in HINTS)]
    if not lines:
        return [], 0
    judge = _Judge(job_id, uid, {bus_address(gpu) for gpu in own_gpus}, has_gpus, sluid)
    kept = [{"text": text[:CHARACTERS], "at": at} for text, at in lines if judge.keeps(text)]
    return kept[:LINES], judge.foreign


class _Judge:
    """Decides line by line, in order, which lines concern the job.

    A line of the GPU driver without an address, and an OOM line without a cgroup, is treated like the line before it.
    """

    def __init__(self, job_id, uid, own, has_gpus, sluid):
        self.names, self.uid, self.own, self.has_gpus = job_cgroup.names(job_id, sluid), uid, own, has_gpus
        self.by_user, self.address, self.node_wide = _compile()
        self.foreign = 0
        self.last_gpu_kept = has_gpus
        self.last_oom_kept = False

    def keeps(self, text):
        if self.by_user.match(text):
            return False
        if text.startswith(("NVRM: ", "amdgpu ")):
            return self._gpu(text)
        self.last_gpu_kept = self.has_gpus
        if text.startswith("nvidia-nvswitch"):
            return self.has_gpus
        if text.startswith(("oom-kill:", "Memory cgroup out of memory", "Out of memory", "Tasks in /")):
            return self._oom(text)
        return bool(self.node_wide.match(text))

    def _gpu(self, text):
        found = self.address.search(text)
        if not found:
            return self.has_gpus and self.last_gpu_kept
        self.last_gpu_kept = tuple(int(part, 16) for part in found.groups()) in self.own
        self.foreign += not self.last_gpu_kept
        return self.last_gpu_kept

    def _oom(self, text):
        named = job_cgroup.jobs_named(text)
        if named or text.startswith(("oom-kill:", "Tasks in /")):
            self.last_oom_kept = any(name in self.names for name in named)
            return self.last_oom_kept
        # An OOM kill of the whole node concerns the job if it killed a process of the job's user.
        if text.startswith("Out of memory"):
            return re.search(r"\bUID:%d\b" % self.uid, text) is not None if self.uid is not None else False
        return self.last_oom_kept
