"""Read the memory and CPU time of a job from its cgroup, version 1 or 2 (adapter). Never raises: unreadable is omitted.

The cgroup of a job, according to Slurm's sources; <node>_ is there when several slurmd share a host (as Debian builds
it):

    version 1, all releases   <controller>/slurm[_<node>]/uid_U/job_J/step_S/task_T
    version 2, 22.05          system.slice/[<node>_]slurmstepd.scope/job_J/step_S/user/task_T
    23.02                     the same below the cgroup of init, which in a container is not the top
    25.11                     another slice, if cgroup.conf sets one (CgroupSlice)
    26.05                     <SLUID> instead of job_J; job_J with CgroupJobIdPaths=yes (26.05.2)

S is a number, "batch", "extern" or "interactive". Slurm's own processes are in step_S/slurm (version 2).
"""

import os
import re
import json
import time
from . import node_state


ROOT = "/sys/fs/cgroup"
SLICE = "system.slice"
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_SLUID = "s[0-9A-Z]{13}"
_JOB = re.compile(r"/(?:uid_\d+/(job_\d+)|[^/,]*slurmstepd\.scope/(job_\d+|%s))(?=/|,|$)" % _SLUID)


def jobs_named(text):
    """Return the names of all Slurm jobs' cgroups in `text` (a path or a kernel line): "job_41" or a SLUID. Pure."""
    return [first or second for first, second in _JOB.findall(text)]


def names(job_id, sluid=""):
    """Return the possible names of a job's cgroup directory, most likely first. Pure."""
    return [sluid, "job_%d" % job_id] if sluid else ["job_%d" % job_id]


def job_directory(path: str, job_id: int, sluid: str = "") -> "str | None":
    """Return the part of `path` up to the job's cgroup; None when `path` belongs to another job or to none. Pure.

    `path`: a path or line of /proc/PID/cgroup.
    """
    for found in _JOB.finditer(path):
        if (found.group(1) or found.group(2)) in names(job_id, sluid):
            return path[: found.end()]
    return None


def places(node, job_id, uid, sluid="", init="", slices=(SLICE,)):
    """Return (directories of version 2, of version 1 below a controller) that may be the job's, most likely first.

    Pure.
    `init`: content of /proc/1/cgroup. `slices`: names of the host's slices that may contain jobs.
    """
    below = _init_directory(init)
    second = [
        "/".join(filter(None, (top, part, scope, name)))
        for top in ((below, "") if below else ("",))
        for part in slices
        for scope in ("slurmstepd.scope", "%s_slurmstepd.scope" % node)
        for name in names(job_id, sluid)
    ]
    first = ["%s/uid_%s/job_%d" % (top, uid, job_id) for top in ("slurm", "slurm_%s" % node)]
    return second, first


def _init_directory(init):
    """Return the parent of init's cgroup, relative to the mount point: "docker/7f" for "0::/docker/7f/init.scope"."""
    for line in init.splitlines():
        if line.startswith("0::/"):
            return line[4:].rpartition("/")[0]
    return ""


def sample_cgroup(node, job_id, uid, root=ROOT, sluid="", init="/proc/1/cgroup"):
    """Return the present values of a job's cgroup as facts; {} without a cgroup.

    `mem_peak_mib`: anonymous and shared memory now. `mem_high_mib`: the kernel's own peak, which includes the page
    cache. `oom_kills`: processes killed. `oom_events`: how often memory could not be allocated within the limit
    (version 2 only). `cpu_s`: CPU time in seconds. A fact whose file is missing is omitted.

    Some hosts mount version 2 below `unified` next to version 1.
    """
    tops, begun = [root, os.path.join(root, "unified")], _read(init)
    slices = [SLICE] + _other_slices(tops + [os.path.join(top, _init_directory(begun)) for top in tops])
    second, first = places(node, job_id, uid, sluid, begun, slices)
    for found in (_version_2(os.path.join(top, path)) for top in tops for path in second):
        if found:
            return found
    for found in (_version_1(root, path) for path in first):
        if found:
            return found
    return {}


def _other_slices(tops):
    """Return the names of the site's own slices, one of which CgroupSlice may name."""
    found = []
    for top in tops:
        try:
            inside = os.listdir(top)
        except OSError:
            continue
        found.extend(name for name in inside if name.endswith(".slice") and name not in (SLICE, "user.slice"))
    return sorted(set(found))


def _version_2(directory):
    if not os.path.isdir(directory):
        return {}
    found = _memory(_field(directory, "memory.stat", "anon"), _field(directory, "memory.stat", "shmem"))
    found.update(_kernel_peak(_number(directory, "memory.peak")))  # Linux 5.19
    found.update(_scaled("oom_kills", _field(directory, "memory.events", "oom_kill")))
    found.update(_scaled("oom_events", _field(directory, "memory.events", "oom")))
    found.update(_scaled("cpu_s", _field(directory, "cpu.stat", "usage_usec"), 1e-6))
    return found


def _version_1(root, below):
    memory = os.path.join(root, "memory", below)
    found = _memory(_field(memory, "memory.stat", "total_rss"), _field(memory, "memory.stat", "total_shmem"))
    found.update(_kernel_peak(_number(memory, "memory.max_usage_in_bytes")))
    found.update(_scaled("oom_kills", oom_kills_below(memory)))
    spent = _scaled("cpu_s", _number(os.path.join(root, "cpuacct", below), "cpuacct.usage"), 1e-9)
    found.update(spent or (_scaled("cpu_s", _ticks(memory), TICK_S) if found else {}))
    return found


def oom_kills_below(directory: str) -> "int | None":
    """Return the OOM kills of a version 1 cgroup and all cgroups below it; None without one.

    The kernel counts a kill in the cgroup of the killed process, which for a job is the task's cgroup, and in no parent
    (Linux 6.18). The count of a step is lost when Slurm removes the step's cgroup.
    """
    kills = None
    for place, _, files in os.walk(directory):
        if "memory.oom_control" in files:
            kills = (kills or 0) + (_field(place, "memory.oom_control", "oom_kill") or 0)
    return kills


def _ticks(directory):
    """Return the CPU time, in clock ticks, of the present processes and of their children that ended; None without any.

    This is at most the CPU time of the job. It replaces the cpuacct cgroup, which Slurm 22.05 creates only with
    jobacct_gather/cgroup.
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


def _kernel_peak(value):
    return {} if value is None else {"mem_high_mib": value >> 20}


def _scaled(name, value, unit=None):
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


# The sampler reads memory and CPU time of a job from its cgroup while the job runs, because Slurm has removed the
# cgroup when the Epilog starts.
#
# The Prolog starts the sampler in its own session. The sampler runs until the Epilog removes the job's mark. It reads
# once a second (four times a second at first, because most failing jobs are short) and saves the highest values in one
# file. Anonymous and shared memory count; the page cache, which the cgroup's own peak includes, does not.

# The sampler ends when the job's cgroup has been missing for this many seconds.
PATIENCE_S = 900
# Seconds between two samples: SHORT_S during the first EARLY_S seconds, LONG_S afterwards.
SHORT_S, LONG_S, EARLY_S = 0.25, 1.0, 20.0
# While values change, the file is written at least every WRITE_S seconds.
WRITE_S = 30.0


def start(settings, job_id, uid, root=ROOT, sluid="", beside=None):
    """Start the sampler as a daemon process. The mark must exist already. Raise OSError when fork fails.

    `beside`: a function that a child of the daemon runs.
    """
    mark = node_state.mark_path(settings.node_state_dir, job_id)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            _detach_from_slurmd()
            if beside is not None and os.fork() == 0:
                beside()
                os._exit(0)
            kept = node_state.usage_path(settings.node_state_dir, job_id)
            watch(mark, kept, settings.node, job_id, uid, root, sluid=sluid)
    finally:
        os._exit(0)


def watch(mark, kept, node, job_id, uid, root=ROOT, sleep=time.sleep, clock=time.monotonic, sluid=""):
    """Sample until the mark is removed or replaced (the job runs again).

    Write the highest values to the file `kept`.
    """
    began = last_seen = written_at = clock()
    first, highest, written = device_and_inode(mark), {}, None
    while first is not None and device_and_inode(mark) == first and clock() - last_seen < PATIENCE_S:
        sample = sample_cgroup(node, job_id, uid, root, sluid)
        if sample:
            last_seen = clock()
            highest = dict((key, max(value, highest.get(key, 0))) for key, value in sample.items())
        if highest and (_grew(highest, written) or (highest != written and clock() - written_at > WRITE_S)):
            node_state.write(kept, json.dumps(highest).encode("utf-8"))
            written, written_at = highest, clock()
        sleep(SHORT_S if clock() - began < EARLY_S else LONG_S)


def _grew(highest, written):
    """Return whether the values grew enough to be written at once.

    The Epilog may run at any moment, but writing the file for every kilobyte would be wasteful.
    """
    if written is None:
        return True
    more = highest.get("mem_peak_mib", 0) > 1.01 * written.get("mem_peak_mib", 0) + 1
    killed = any(highest.get(name) != written.get(name) for name in ("oom_kills", "oom_events"))
    return more or killed or highest.get("cpu_s", 0) > 1.05 * written.get("cpu_s", 0)


def device_and_inode(path):
    """Return what distinguishes a file from a later one of the same name; None when it is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _detach_from_slurmd():
    """Close all descriptors inherited from slurmd, and run at a lower priority than the job's processes.

    Descriptor 3 stays: it is the zipapp (prolog/node_hook.sh), from which modules may still be loaded.
    """
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.closerange(4, 1024)
    os.chdir("/")
    os.nice(10)
