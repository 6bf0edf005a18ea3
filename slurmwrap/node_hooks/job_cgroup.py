"""Edge: what a job's processes use now and what they used so far, from its cgroup, version 1 or 2. Never an error.

Where Slurm puts a job, by its sources; <node>_ where several slurmd share a host (Debian builds it so):

    version 1, all releases   <controller>/slurm[_<node>]/uid_U/job_J/step_S/task_T
    version 2, 22.05          system.slice/[<node>_]slurmstepd.scope/job_J/step_S/user/task_T
    23.02                     the same below the cgroup that init is in, which in a container is not the top
    25.11                     another slice, where cgroup.conf says so (CgroupSlice)
    26.05                     <SLUID> in job_J's place; job_J with CgroupJobIdPaths=yes (26.05.2)

S is a number, "batch", "extern" or "interactive". Slurm's own processes are in step_S/slurm (version 2).
"""

import os
import re
import json
import os
import time
from . import node_state


ROOT = "/sys/fs/cgroup"
SLICE = "system.slice"
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_SLUID = "s[0-9A-Z]{13}"
_JOB = re.compile(r"/(?:uid_\d+/(job_\d+)|[^/,]*slurmstepd\.scope/(job_\d+|%s))(?=/|,|$)" % _SLUID)


def jobs_named(text):
    """Names of all Slurm jobs' cgroups in `text` (a path, a line of the kernel): "job_41" or a SLUID. Pure."""
    return [first or second for first, second in _JOB.findall(text)]


def names(job_id, sluid=""):
    """What a job's directory may be called, likeliest first. Pure."""
    return [sluid, "job_%d" % job_id] if sluid else ["job_%d" % job_id]


def job_directory(path: str, job_id: int, sluid: str = "") -> "str | None":
    """The job's part of `path`, as /proc/PID/cgroup has it; None when that is not this job's. Pure."""
    for found in _JOB.finditer(path):
        if (found.group(1) or found.group(2)) in names(job_id, sluid):
            return path[: found.end()]
    return None


def places(node, job_id, uid, sluid="", init="", slices=(SLICE,)):
    """(directories of version 2, of version 1 below a controller) that may be the job's, likeliest first. Pure.

    `init`: /proc/1/cgroup. `slices`: those of the host.
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
    """The directory that init's cgroup lies in, relative to the mount: "docker/7f" of "0::/docker/7f/init.scope"."""
    for line in init.splitlines():
        if line.startswith("0::/"):
            return line[4:].rpartition("/")[0]
    return ""


def sample_cgroup(node, job_id, uid, root=ROOT, sluid="", init="/proc/1/cgroup"):
    """Facts `mem_peak_mib` (anonymous and shared, now), `mem_high_mib` (the kernel's own peak, with the page cache),
    `oom_kills`, `oom_events` (version 2: how often the limit left no way out) and `cpu_s`; {} without a cgroup.

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
    """The site's own slices, which one of CgroupSlice may be."""
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
    found.update(_high(_number(directory, "memory.peak")))  # Linux 5.19
    found.update(_counted("oom_kills", _field(directory, "memory.events", "oom_kill")))
    found.update(_counted("oom_events", _field(directory, "memory.events", "oom")))
    found.update(_counted("cpu_s", _field(directory, "cpu.stat", "usage_usec"), 1e-6))
    return found


def _version_1(root, below):
    memory = os.path.join(root, "memory", below)
    found = _memory(_field(memory, "memory.stat", "total_rss"), _field(memory, "memory.stat", "total_shmem"))
    found.update(_high(_number(memory, "memory.max_usage_in_bytes")))
    found.update(_counted("oom_kills", oom_kills_below(memory)))
    spent = _counted("cpu_s", _number(os.path.join(root, "cpuacct", below), "cpuacct.usage"), 1e-9)
    found.update(spent or (_counted("cpu_s", _ticks(memory), TICK_S) if found else {}))
    return found


def oom_kills_below(directory: str) -> "int | None":
    """OOM kills of a version 1 cgroup and all within, None without one: the kernel counts where the victim was, which
    for a job is the task's cgroup, and names no parent (Linux 6.18). What a step counted is gone with the step."""
    kills = None
    for place, _, files in os.walk(directory):
        if "memory.oom_control" in files:
            kills = (kills or 0) + (_field(place, "memory.oom_control", "oom_kill") or 0)
    return kills


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


# Memory and CPU time of a job, read from its cgroup while it runs: at the Epilog Slurm has removed it.
#
# The Prolog leaves the sampler behind in a session of its own. It lives as long as the job's mark, which the Epilog takes
# away, looks once a second (four times at first: most failing jobs are short) and keeps the highest values in one file.
# Anonymous and shared memory count; the page cache, which cgroup peaks include, does not.
# A job whose cgroup does not show up by then, or is gone for that long, is not waited for.
PATIENCE_S = 900
SHORT_S, LONG_S, EARLY_S = 0.25, 1.0, 20.0
# The file is renewed at least so often while anything changes.
WRITE_S = 30.0


def start(settings, job_id, uid, root=ROOT, sluid=""):
    """Leaves the sampler behind. OSError when the process cannot be made; the mark must be there already."""
    mark = node_state.mark_path(settings.node_state_dir, job_id)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            _alone()
            kept = node_state.usage_path(settings.node_state_dir, job_id)
            watch(mark, kept, settings.node, job_id, uid, root, sluid=sluid)
    finally:
        os._exit(0)


def watch(mark, kept, node, job_id, uid, root=ROOT, sleep=time.sleep, clock=time.monotonic, sluid=""):
    """Samples until the mark is gone or another one (the job runs again). Writes `kept`."""
    began = last_seen = written_at = clock()
    first, highest, written = _identity(mark), {}, None
    while first is not None and _identity(mark) == first and clock() - last_seen < PATIENCE_S:
        sample = sample_cgroup(node, job_id, uid, root, sluid)
        if sample:
            last_seen = clock()
            highest = dict((key, max(value, highest.get(key, 0))) for key, value in sample.items())
        if highest and (_grew(highest, written) or (highest != written and clock() - written_at > WRITE_S)):
            node_state.write(kept, json.dumps(highest).encode("utf-8"))
            written, written_at = highest, clock()
        sleep(SHORT_S if clock() - began < EARLY_S else LONG_S)


def _grew(highest, written):
    """Worth a write: the Epilog may come at any moment, yet a file in memory is not written for every kilobyte."""
    if written is None:
        return True
    more = highest.get("mem_peak_mib", 0) > 1.01 * written.get("mem_peak_mib", 0) + 1
    killed = any(highest.get(name) != written.get(name) for name in ("oom_kills", "oom_events"))
    return more or killed or highest.get("cpu_s", 0) > 1.05 * written.get("cpu_s", 0)


def _identity(path):
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _alone():
    """Nothing of slurmd's is held open, and the job's own work comes first."""
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.closerange(3, 1024)
    os.chdir("/")
    os.nice(10)
