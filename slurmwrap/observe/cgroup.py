"""Edge: what a job's processes use now and what they used so far, from its cgroup, version 1 or 2. Never an error."""
import os

ROOT = "/sys/fs/cgroup"
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def sample(node, job_id, uid, root=ROOT, sluid=""):
    """Facts `mem_peak_mib` (anonymous and shared, now), `mem_high_mib` (the kernel's own peak, with the page cache),
    `oom_kills`, `oom_events` (version 2: how often the limit left no way out) and `cpu_s`; {} without a cgroup.

    `sluid`: Slurm 26.05 names the job's directory by it unless cgroup.conf says CgroupJobIdPaths=yes (26.05.2).
    """
    return _version_2(node, job_id, root, sluid) or _version_1(node, job_id, uid, root)


def _version_2(node, job_id, root, sluid):
    """slurmstepd.scope, with the node's name before it where several slurmd share a host (cgroup/v2 plugin).

    Some hosts mount version 2 below `unified` beside version 1.
    """
    names = [sluid, "job_%d" % job_id] if sluid else ["job_%d" % job_id]
    for top in ("", "unified"):
        for scope in ("slurmstepd.scope", "%s_slurmstepd.scope" % node):
            for name in names:
                found = _at(os.path.join(root, top, "system.slice", scope, name))
                if found:
                    return found
    return {}


def _at(directory):
    if not os.path.isdir(directory):
        return {}
    found = _memory(_field(directory, "memory.stat", "anon"), _field(directory, "memory.stat", "shmem"))
    found.update(_high(_number(directory, "memory.peak")))  # Linux 5.19
    found.update(_counted("oom_kills", _field(directory, "memory.events", "oom_kill")))
    found.update(_counted("oom_events", _field(directory, "memory.events", "oom")))
    found.update(_counted("cpu_s", _field(directory, "cpu.stat", "usage_usec"), 1e-6))
    return found


def _version_1(node, job_id, uid, root):
    """slurm/uid_U/job_J, or slurm_NODE/... with several slurmd on one host."""
    for top in ("slurm", "slurm_%s" % node):
        below = os.path.join(top, "uid_%s" % uid, "job_%d" % job_id)
        memory = os.path.join(root, "memory", below)
        found = _memory(_field(memory, "memory.stat", "total_rss"), _field(memory, "memory.stat", "total_shmem"))
        found.update(_high(_number(memory, "memory.max_usage_in_bytes")))
        found.update(_counted("oom_kills", _field(memory, "memory.oom_control", "oom_kill")))
        spent = _counted("cpu_s", _number(os.path.join(root, "cpuacct", below), "cpuacct.usage"), 1e-9)
        found.update(spent or (_counted("cpu_s", _ticks(memory), TICK_S) if found else {}))
        if found:
            return found
    return {}


def _ticks(directory):
    """CPU time of the processes that are there, with that of their children that ended: the job's, or less.

    Slurm 22.05 makes a cpuacct cgroup only with jobacct_gather/cgroup.
    """
    ticks = None
    for place, _, files in os.walk(directory):
        if "cgroup.procs" in files:
            for pid in _read(os.path.join(place, "cgroup.procs")).split():
                fields = _read("/proc/%s/stat" % pid).rpartition(")")[2].split()
                ticks = (ticks or 0) + sum(int(field) for field in fields[11:15])
    return ticks


def _memory(anonymous, shared):
    return {} if anonymous is None else {"mem_peak_mib": (anonymous + (shared or 0)) >> 20}


def _high(value):
    return {} if value is None else {"mem_high_mib": value >> 20}


def _counted(name, value, unit=None):
    if value is None:
        return {}
    return {name: value if unit is None else round(value * unit, 3)}


def _number(directory, name):
    content = _read(os.path.join(directory, name)).strip()
    return int(content) if content.isdigit() else None


def _field(directory, name, key):
    for line in _read(os.path.join(directory, name)).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == key and words[1].isdigit():
            return int(words[1])
    return None


def _read(path):
    try:
        with open(path) as stream:
            return stream.read(65536)
    except OSError:
        return ""
