"""Watch the members of a packed task (slurmwrap_members.py): their speed together, and the memory of each.

SpeedWatch decides whether members go on one after the other, since they are no faster together. MemoryWatch decides
which member is ended before the kernel ends any of them. Both only decide; slurmwrap_members.py acts.

Python 3.6 syntax, standard library.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

# A decision rests on so many windows in a row.
_WINDOWS = 5
# Seconds in which a member that was ended gives its memory back.
_RELEASE_S = 10.0


class SpeedWatch(object):
    """Compare the steps per second of members side by side with those of one alone.

    After `seconds` in which all members together were slower than `gain` times `alone`, one after the other is better.
    A window in which a member made no step, such as an evaluation, says nothing. When one has run alone for as long and
    the members together were at least `gain` times as fast as it is, they run together again and stay so.
    """

    def __init__(self, alone: float, gain: float, seconds: float) -> None:
        self.alone, self.gain = alone, gain
        self.window = seconds / _WINDOWS
        self.apart = self.stays = False
        self.together = 0.0  # steps per second of all members, before they were separated
        self._forget()

    def _forget(self) -> None:
        self.begin = None  # type: Optional[Tuple[float, Dict[int, int]]]
        self.speeds = []  # type: List[float]

    def look(self, now: float, counts: "Dict[int, int]") -> bool:
        """Return whether the members are to be separated or, if they are, to run together again.

        `counts`: the steps of each member that runs and is not paused. `now`: seconds of a monotonic clock.
        """
        if self.stays or not counts or (len(counts) < 2 and not self.apart):
            self._forget()
            return False
        if self.begin is None or set(self.begin[1]) != set(counts):
            self._forget()
            self.begin = (now, counts)
            return False
        took = now - self.begin[0]
        if took < self.window:
            return False
        made = [counts[index] - before for index, before in self.begin[1].items()]
        self.begin = (now, counts)
        if min(made) <= 0:
            self.speeds = []
            return False
        self.speeds.append(sum(made) / took)
        return self._decide_alone() if self.apart else self._decide_together()

    def _decide_together(self) -> bool:
        if self.speeds[-1] >= self.gain * self.alone:
            self.speeds = []
        if len(self.speeds) < _WINDOWS:
            return False
        self.together, self.apart = sum(self.speeds) / _WINDOWS, True
        self._forget()
        return True

    def _decide_alone(self) -> bool:
        if len(self.speeds) < _WINDOWS:
            return False
        self.stays = True
        self.apart = self.together < self.gain * sum(self.speeds) / _WINDOWS
        return not self.apart


class MemoryWatch(object):
    """Find the member to end when the memory of the whole task is nearly used up.

    `near`: share of the limit from which on a member is ended; 0: never. `members`: how many share the memory.
    """

    def __init__(self, near: float, members: int) -> None:
        self.near, self.members = near, members
        self.folder, self.limit = find_memory_limit() if near else ("", 0)
        self.quiet_until = 0.0

    def find_member_to_end(self, now: float, running: "Dict[int, int]") -> "Optional[Tuple[int, int]]":
        """Return (index, bytes) of the member that exceeds its share most; None if none is to be ended.

        `running`: index -> session of each member that runs. One that runs alone has all the memory.
        """
        if not self.limit or len(running) < 2 or now < self.quiet_until:
            return None
        if read_memory_use(self.folder) < self.near * self.limit:
            return None
        sessions = list_sessions()
        used = {
            index: sum(read_process_memory(pid) for pid, _ in sessions.get(session, ()))
            for index, session in running.items()
        }
        index = max(used, key=lambda one: used[one])
        if used[index] <= self.limit / self.members:
            return None
        self.quiet_until = now + _RELEASE_S
        return index, used[index]


def list_sessions() -> "Dict[int, List[Tuple[int, str]]]":
    """Return (pid, program) of all processes by their session, as proc_pid_stat(5) shows them."""
    found = {}  # type: Dict[int, List[Tuple[int, str]]]
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    head, _, rest = file.read().rpartition(b")")
                session = int(rest.split()[3])
            except (OSError, ValueError, IndexError):
                continue
            program = head.partition(b"(")[2].decode("utf-8", "replace")
            found.setdefault(session, []).append((int(name), program))
    return found


def read_steps(folder: str, job_id: str, restart: int) -> int:
    """Return the steps of the process that counted most of them in one run of a member (slurmwrap_counter.py)."""
    prefix, most = "%s.%d." % (job_id, restart), 0
    try:
        names = [name for name in os.listdir(folder) if name.startswith(prefix) and name.rpartition(".")[2].isdigit()]
    except OSError:
        return 0
    for name in names:
        try:
            with open(os.path.join(folder, name)) as file:
                most = max(most, int(file.read(128).split()[0]))
        except (OSError, ValueError, IndexError):
            continue
    return most


def find_memory_limit(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> "Tuple[str, int]":
    """Return (directory, bytes) of the smallest memory limit of the own cgroup and those above; ("", 0) without one.

    Both versions of cgroups are known. Slurm sets the limit of a job only if it is configured to (ConstrainRAMSpace).
    """
    best = ("", 0)
    for line in _read(own).splitlines():
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if number == "0" and not controllers:
            base, file = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, file = os.path.join(root, "memory"), "memory.limit_in_bytes"
        else:
            continue
        folder = os.path.join(base, path.strip("/"))
        while folder.startswith(base + "/"):
            text = _read(os.path.join(folder, file)).strip()
            # Without a limit, version 1 has a number near 2 ** 63.
            if text.isdigit() and 0 < int(text) < 1 << 60 and (not best[1] or int(text) < best[1]):
                best = (folder, int(text))
            folder = os.path.dirname(folder)
    return best


def read_memory_use(folder: str) -> int:
    """Return the bytes of a cgroup that the kernel cannot free: anonymous and shared memory. 0 if unknown."""
    stat = {}
    for line in _read(os.path.join(folder, "memory.stat")).splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            stat[name] = int(value)
    if "anon" in stat:
        return stat["anon"] + stat.get("shmem", 0)
    return stat.get("total_rss", 0) + stat.get("total_shmem", 0)


def read_process_memory(pid: int) -> int:
    """Return the bytes of anonymous and shared memory of a process, shared pages in parts. 0 if it has ended."""
    found = {}
    for line in _read("/proc/%d/smaps_rollup" % pid).splitlines():
        words = line.split()
        if len(words) == 3 and words[1].isdigit():
            found[words[0]] = int(words[1]) << 10
    if "Pss_Anon:" in found:
        return found["Pss_Anon:"] + found.get("Pss_Shmem:", 0)
    return found.get("Pss:", 0)


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
