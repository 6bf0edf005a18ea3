"""Turns kernel lines into those that bear on one job: its own GPUs, its own OOM kills, and faults of the whole node.

Pure. A process name is a user's text and may begin a line ("comm[pid]: segfault"): such lines are dropped first, and
all patterns are anchored, so that no one can name their program "NVRM: Xid".
"""
import re

from . import job_cgroup

LINES = 200
CHARACTERS = 1000
HINTS = ("NVRM", "nvidia", "oom", "memory", "rror", "nfs", "Lustre", "LNet", "timeout", "timed out", "EDAC", "AER")
HINTS += ("BUG", "blocked for more", "shut", "orruption", "achine", "mlx", "amdgpu", "abort", "BTRFS", "ceph")


BY_USER = r".{1,16}?(?:\[\d+\]|\(\d+\)| \(\d+\)):? "


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
    """(domain, bus, device) of "0000:05:00.0" or "PCI:0000:05:00"; None when there is none."""
    found = re.search(r"\b([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\b", value)
    return tuple(int(part, 16) for part in found.groups()) if found else None


def fell_off(text):
    """Whether the driver says in `text` that a GPU, any of the node's, fell off the bus (Xid 79 and forms without)."""
    if not text.startswith("NVRM: ") or re.match(BY_USER, text):
        return False
    return "fallen off the bus" in text or xid(text) == 79


def xid(text):
    """The code of an Xid line of the driver, None when `text` is none or a program's name begins it."""
    found = re.match(r"NVRM: Xid \([^)]{1,40}\)[^,]{0,40}?: (\d{1,4}),", text)
    return int(found.group(1)) if found and not re.match(BY_USER, text) else None


def relevant(lines, job_id, uid, own_gpus, has_gpus, sluid=""):
    """(`[{"text", "at"}]`, number of lines about GPUs that are not the job's or not known to be).

    `lines` are (text, at); `own_gpus` PCI addresses as text, empty when unknown; `sluid` as the job's cgroup may be
    called.
    """
    lines = [line for line in lines if any(hint in line[0] for hint in HINTS)]
    if not lines:
        return [], 0
    judge = _Judge(job_id, uid, {bus_address(gpu) for gpu in own_gpus}, has_gpus, sluid)
    kept = [{"text": text[:CHARACTERS], "at": at} for text, at in lines if judge.keeps(text)]
    return kept[:LINES], judge.foreign


class _Judge:
    """Reads lines in order: what follows a line without an address of its own goes with that line."""

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
        if text.startswith("Out of memory"):  # the whole node's: it may have hit this user
            return re.search(r"\bUID:%d\b" % self.uid, text) is not None if self.uid is not None else False
        return self.last_oom_kept
