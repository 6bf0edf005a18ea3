"""Sample the GPUs, CPUs and memory of a running job with GPUs once a minute, and send the samples to the spool.

The memory sampler (job_cgroup.py) starts it as a process of its own, so that a slow driver does not delay the samples
of memory. Each query runs in a child of driver_guard.py: a driver that hangs is abandoned, and none is asked while a
query of any hook is stuck. The sampler ends when the Epilog removes the job's mark.

Sample N is taken in the middle of minute N of the job. A message has the samples since the last message that arrived;
a reader recognises one that it has by its number.
"""

import json
import os
import time

from . import amd_gpus, driver_guard, gpu_clocks, gpu_shares, gpu_use_query, job_cgroup, munge_spool, node_state, nvml
from . import watch_gpus

PERIOD_S = 60.0
# The job's mark is looked at once in this many seconds.
POLL_S = 1.0
# Seconds for one query. Without persistence mode, the first call for a GPU without any process takes 1 to 3 s.
QUERY_S = 15.0
# After a query of T seconds, if that is more than SLOW_S, the next one begins SLOWER * T later at the earliest.
SLOW_S, SLOWER = 1.0, 20
SEND_S = 5.0
ANSWER = 1 << 18  # bytes
# Seconds between two messages in the first minutes of a job, while one of its GPUs is not in use, and otherwise. What
# the rule `early` waits for must arrive soon; a GPU that works is in no hurry.
YOUNG_S, SOON_S, UNUSED_S, LATER_S = 600.0, 60.0, 120.0, 300.0
IN_USE = 1.0  # percent
# Samples of each GPU that are kept while the spool cannot be reached.
KEPT = 60
# Largest number of GPUs and MIG instances of a job on a node.
MOST = 64
LISTS = ("use", "mem_mib", "processes")
HOST = -1  # stands for the number of a GPU in the samples of the job's CPUs and memory


def watch(
    settings, job_id, facts, gpus, others=(), sluid="", sleep=time.sleep, clock=time.monotonic, query=None, send=None
):
    """Sample until the mark of the job is removed or replaced. Return the number of queries.

    `facts`: `restarts` and `uid` of the run. `gpus`, `others`: [(device minor, PCI address)] of the job and of the rest
    of the node. `query` and `send` stand in for the driver and the spool.
    """
    mark = node_state.mark_path(settings.node_state_dir, job_id)
    first, start = job_cgroup.device_and_inode(mark), clock()
    query = query or (lambda: ask(settings, gpus, others, job_id, sluid))
    send = send or (lambda found: _send(settings, job_id, found))
    host = HostUse(lambda: job_cgroup.sample_cgroup(settings.node, job_id, facts.get("uid"), sluid=sluid), start)
    pending, number, queries = PendingSamples(dict(facts, began=time.time())), 0, 0
    clocks = gpu_clocks.ClockCounts()
    # An earlier run of the job may have left a file.
    node_state.take_clocks(settings, job_id)
    while first is not None and job_cgroup.device_and_inode(mark) == first:
        due = start + (number + 0.5) * PERIOD_S
        if clock() < due:
            sleep(min(POLL_S, due - clock()))
            continue
        found = host.sample(clock())
        if host.is_gone:
            break
        asked, queries = clock(), queries + 1
        gpu_samples = query()
        pending.add(number, found + gpu_samples)
        clocks.add(gpu_samples)
        if job_cgroup.device_and_inode(mark) == first:
            _save_clocks(clocks, settings, job_id)
        ran, took = clock() - start, clock() - asked
        number = max(number + 1, int((ran + (SLOWER * took if took > SLOW_S else 0.0)) / PERIOD_S))
        if pending.series and ran - pending.sent_at >= pending.wait_s(ran) and send(clocks.add_to(pending.message())):
            pending.clear(ran)
    if pending.series:
        send(clocks.add_to(pending.message()))
    return queries


def _save_clocks(clocks, settings, job_id):
    try:
        clocks.save(settings, job_id)
    except OSError:
        # The Epilog then finds the counts of an earlier minute.
        pass


def ask(settings, gpus, others, job_id, sluid):
    """Return a list of what gpu_use_query.py sent of each GPU; [] when the driver gives no answer."""

    def query(send):
        if not os.path.exists(settings.nvidia_control) and watch_gpus.find_amd_gpus(settings.sysfs):
            amd_gpus.send_samples(settings.sysfs, gpus, send)
        else:
            gpu_use_query.run(gpus, others, job_id, sluid, send, bool(settings.dcgmi))

    try:
        if nvml.fallen(settings, ()):
            return []
        answer = driver_guard.ask(settings, query, time.monotonic() + QUERY_S, ANSWER, driver_guard.find_last_call)
    except OSError:
        # Without its private directory a node cannot remember a stuck driver, so the driver is not asked.
        return []
    found = {}
    for line in driver_guard.parse_lines(answer.data):
        if "gpu" in line:
            found.setdefault((line["gpu"], line.get("mig", "")), {}).update(line)
    _add_dcgm_shares(settings, gpus, found)
    return list(found.values())[:MOST]


def _add_dcgm_shares(settings, gpus, found):
    """Ask DCGM for the shares of GPUs that have no GPM; no other hook waits for the driver meanwhile."""
    bandwidths = dict((key, one.pop("bandwidths")) for key, one in found.items() if "bandwidths" in one)
    rows = gpu_shares.read_dcgm(settings.dcgmi) if bandwidths else {}
    for minor, address in gpus:
        if address in rows and (minor, "") in bandwidths:
            found[minor, ""]["shares"] = gpu_shares.dcgm_shares(bandwidths[minor, ""], rows[address])


def _send(settings, job_id, found):
    """Send one message; return whether it is in the spool. It is not kept on the node: the next message has it too."""
    try:
        seen = munge_spool.observation(settings, job_id, "samples", found)
        return munge_spool.send(seen, settings, time.monotonic() + SEND_S, keep=False)
    except OSError:
        return False


class HostUse:
    """The job's CPUs and memory on this node, from its cgroup. `read`: as job_cgroup.sample_cgroup()."""

    def __init__(self, read, start):
        self.read = read
        self.before = (start, 0.0)  # time and CPU time of the last sample, in seconds
        self.had_any = False
        self.is_gone = False  # a job whose Epilog never ran here leaves its mark, but no cgroup

    def sample(self, now):
        """Return [sample] in the form of a GPU's, [] without a cgroup. `use` is 100 for each busy CPU."""
        found = self.read()
        self.is_gone = self.had_any and not found
        self.had_any = bool(found)
        if "mem_peak_mib" not in found:
            return []
        one = {"gpu": HOST, "mem_mib": found["mem_peak_mib"]}
        if "cpu_s" in found:
            at, spent = self.before
            one["use"] = round(max(0.0, found["cpu_s"] - spent) / max(1.0, now - at) * 100, 1)
            self.before = (now, found["cpu_s"])
        return [one]


class PendingSamples:
    """The samples that are not sent yet, of each GPU or MIG instance. -1 stands for what is not known."""

    def __init__(self, facts):
        self.facts = facts
        self.first = 0  # number of the first pending sample
        self.count = 0
        self.sent_at = -LATER_S  # seconds since the start of the sampler
        self.unused = False  # a GPU was not in use in the last sample
        self.series = {}  # (GPU, UUID of the MIG instance) -> {name of LISTS: values}
        self.total = {}  # -> memory in MiB
        self.energy = {}  # -> (last value of the counter in mJ, mJ since its first value)
        self.shares = {}  # -> {name of gpu_shares.NAMES: (sum, number of values)} since the start of the sampler

    def add(self, number, answers):
        """Add sample `number`; samples between the last one and this are unknown."""
        if not self.count:
            self.first = number
        self.count = number + 1 - self.first
        self.unused = False
        for one in answers:
            key = (one["gpu"], one.get("mig", ""))
            lists = self.series.setdefault(key, dict((name, []) for name in LISTS))
            for name, values in lists.items():
                values += [-1] * (self.count - 1 - len(values)) + [one.get(name, -1)]
            self.total[key] = one.get("mem_total_mib", 0)
            self._add_energy(key, one.get("energy_mj"))
            sums = self.shares.setdefault(key, {})
            for name, share in one.get("shares", {}).items():
                before, count = sums.get(name, (0.0, 0))
                sums[name] = (before + share, count + 1)
            if one["gpu"] != HOST:
                self.unused = self.unused or not one.get("processes", 1) or one.get("use", IN_USE) < IN_USE
        self._drop_oldest()

    def _add_energy(self, key, counter):
        if counter is not None:
            before, used = self.energy.get(key, (counter, 0))
            # A reset of the GPU sets the counter to 0.
            self.energy[key] = (counter, used + (counter - before if counter >= before else counter))

    def _drop_oldest(self):
        extra = self.count - KEPT
        if extra > 0:
            self.first, self.count = self.first + extra, KEPT
            for lists in self.series.values():
                for name in LISTS:
                    lists[name] = lists[name][extra:]

    def wait_s(self, ran):
        """Return how long to wait after the last message, `ran` seconds after the start of the sampler."""
        return SOON_S if ran < YOUNG_S else UNUSED_S if self.unused else LATER_S

    def message(self):
        """Return the pending samples as the facts of an observation (docs/records.md)."""
        gpus = []
        for key, lists in sorted(self.series.items()):
            padded = dict((name, values + [-1] * (self.count - len(values))) for name, values in lists.items())
            one = dict(padded, gpu=key[0], mig=key[1], mem_total_mib=self.total[key])
            if key in self.energy:
                one["energy_j"] = round(self.energy[key][1] / 1000.0, 1)
            if self.shares.get(key):
                sums = self.shares[key]
                one["shares"] = dict((name, round(sums[name][0] / sums[name][1], 4)) for name in sums)
                one["share_samples"] = max(count for _, count in sums.values())
            gpus.append(one)
        return dict(self.facts, first=self.first, interval_s=PERIOD_S, samples=gpus)

    def clear(self, ran):
        """Forget the samples that were sent."""
        self.sent_at, self.count = ran, 0
        self.series = {}
