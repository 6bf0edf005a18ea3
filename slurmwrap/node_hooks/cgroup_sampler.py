"""Edge: memory and CPU time of a job, read from its cgroup while it runs: at the Epilog Slurm has removed it.

The Prolog leaves the sampler behind in a session of its own. It lives as long as the job's mark, which the Epilog takes
away, looks once a second (four times at first: most failing jobs are short) and keeps the highest values in one file.
Anonymous and shared memory count; the page cache, which cgroup peaks include, does not.
"""
import json
import os
import time

from . import job_cgroup, node_state

PATIENCE_S = 900  # a job whose cgroup does not show up by then, or is gone for that long, is not waited for
SHORT_S, LONG_S, EARLY_S = 0.25, 1.0, 20.0
WRITE_S = 30.0  # the file is renewed at least so often while anything changes


def start(settings, job_id, uid, root=job_cgroup.ROOT, sluid=""):
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


def watch(mark, kept, node, job_id, uid, root=job_cgroup.ROOT, sleep=time.sleep, clock=time.monotonic, sluid=""):
    """Samples until the mark is gone or another one (the job runs again). Writes `kept`."""
    began = last_seen = written_at = clock()
    first, highest, written = _identity(mark), {}, None
    while first is not None and _identity(mark) == first and clock() - last_seen < PATIENCE_S:
        sample = job_cgroup.sample_cgroup(node, job_id, uid, root, sluid)
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
