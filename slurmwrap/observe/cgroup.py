"""Edge: memory peak, OOM kills and CPU time of a job from its cgroup, where it still exists. Never an error.

At the time of the Epilog Slurm has usually removed the job's cgroup; then nothing is said.
"""
import os

ROOT = "/sys/fs/cgroup"


def usage(node, job_id, uid, root=ROOT):
    """Facts `mem_peak_mib`, `mem_source`, `oom_kills` and `cpu_s` as far as they can be read."""
    return _version_2(node, job_id, root) or _version_1(node, job_id, uid, root)


def _version_2(node, job_id, root):
    """slurmstepd.scope, with the node's name before it where several slurmd share a host (cgroup/v2 plugin)."""
    for scope in ("system.slice/slurmstepd.scope", "system.slice/%s_slurmstepd.scope" % node):
        directory = os.path.join(root, scope, "job_%d" % job_id)
        found = _memory(_number(directory, "memory.peak"), "cgroup_v2")
        found.update(_counted("oom_kills", _field(directory, "memory.events", "oom_kill")))
        found.update(_counted("cpu_s", _field(directory, "cpu.stat", "usage_usec"), 1e-6))
        if found:
            return found
    return {}


def _version_1(node, job_id, uid, root):
    """slurm/uid_U/job_J, or slurm_NODE/... with several slurmd on one host."""
    for top in ("slurm", "slurm_%s" % node):
        below = os.path.join(top, "uid_%s" % uid, "job_%d" % job_id)
        found = _memory(_number(os.path.join(root, "memory", below), "memory.max_usage_in_bytes"), "cgroup_v1")
        found.update(_counted("oom_kills", _field(os.path.join(root, "memory", below), "memory.oom_control", "oom_kill")))
        found.update(_counted("cpu_s", _number(os.path.join(root, "cpuacct", below), "cpuacct.usage"), 1e-9))
        if found:
            return found
    return {}


def _memory(peak, source):
    return {} if peak is None else {"mem_peak_mib": peak >> 20, "mem_source": source}


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
