"""Read use, memory, processes, energy and shares of a job's GPUs through NVML; runs in a child process and changes nothing.

Before each GPU the child sends a line that names it, so that a hang can be attributed. A value that GPU or driver does
not support is omitted. Of a GPU in MIG mode, only the instances are read on which a process of the job runs: NVML does
not count the use of the whole GPU then, and Slurm's numbers of such devices are not those of the driver.
"""

import ctypes
import json
import time

from . import gpu_clocks, gpu_shares, job_cgroup, watch_gpus

UTILIZATION_SAMPLES = 1  # NVML_GPU_UTILIZATION_SAMPLES
READINGS = 1024  # largest number of the driver's own samples that are read
RECENT_US = 60 * 10**6  # samples that are older than this before the newest one are from an earlier minute
PROCESSES = 256  # largest number of processes of a MIG instance that are read
# Seconds between the two samples that GPM compares. It refreshes them every 0.1 s; other hooks wait for the driver.
GPM_PAUSE_S = 0.2


class _Reading(ctypes.Structure):
    _fields_ = [("at_us", ctypes.c_ulonglong), ("value", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class UseReader(watch_gpus.Nvml):
    """NVML's calls for one query. A value that is not supported is None."""

    def __init__(self):
        watch_gpus.Nvml.__init__(self)
        self.shares = gpu_shares.ShareReader(self.call)

    def handle(self, address):
        found = ctypes.c_void_p()
        known = self.call("nvmlDeviceGetHandleByPciBusId_v2", address.encode("ascii"), ctypes.byref(found))
        return found if known else None

    def mean_use(self, handle):
        """Return the mean use in percent over the driver's own samples (some seconds), else that of its last one."""
        kind, count = ctypes.c_uint(0), ctypes.c_uint(READINGS)
        found = (_Reading * READINGS)()
        arguments = (ctypes.c_uint(UTILIZATION_SAMPLES), ctypes.c_ulonglong(0))
        arguments += (ctypes.byref(kind), ctypes.byref(count), found)
        if self.call("nvmlDeviceGetSamples", handle, *arguments) and 0 < count.value <= READINGS:
            newest = max(one.at_us for one in found[: count.value])
            values = [one.value for one in found[: count.value] if one.at_us + RECENT_US > newest]
            if max(values) <= 100:
                return round(float(sum(values)) / len(values), 1)
        return self.percent(handle)

    def energy_mj(self, handle):
        found = ctypes.c_ulonglong(0)
        known = self.call("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(found))
        return found.value if known else None

    def is_split(self, handle):
        """Return whether the GPU is in MIG mode."""
        now, pending = ctypes.c_uint(0), ctypes.c_uint(0)
        return self.call("nvmlDeviceGetMigMode", handle, ctypes.byref(now), ctypes.byref(pending)) and now.value == 1

    def instances(self, handle):
        """Return the handles of the MIG instances of a GPU."""
        found = []
        for index in range(self.number("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            one = ctypes.c_void_p()
            if self.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, ctypes.c_uint(index), ctypes.byref(one)):
                found.append(one)
        return found

    def pids(self, handle):
        found, count = (_Process * PROCESSES)(), ctypes.c_uint(PROCESSES)
        known = self.call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), found)
        return [one.pid for one in found[: count.value]] if known else []


def run(gpus, others, job_id, sluid, send, with_bandwidths=False):
    """Send a JSON line for each GPU of `gpus`, [(device minor, PCI address)], or for each of its MIG instances in use.

    `others`: further GPUs of the node, which are looked at only if a GPU of the job is in MIG mode. The
    shares come last, in lines of their own, so that nothing else is lost when their counters hang. `with_bandwidths`:
    where no GPU has such counters, those of its links are sent instead.
    """

    def say(plain):
        send(json.dumps(plain).encode("ascii") + b"\n")

    say({"asking": "nvmlInit"})
    try:
        reader = UseReader()
    except (OSError, RuntimeError) as error:
        say({"failed": str(error)})
        return
    split = [_read_gpu(reader, minor, address, job_id, sluid, say) for minor, address in gpus]
    for minor, address in others if any(split) else ():
        _read_gpu(reader, minor, address, job_id, sluid, say, whole=False)
    _read_shares(reader, [gpu for gpu, is_split in zip(gpus, split) if not is_split], with_bandwidths, say)


def _read_gpu(reader, minor, address, job_id, sluid, say, whole=True):
    """Send what is known of one GPU; return whether it is in MIG mode. `whole`: the job has the GPU if it is not."""
    say({"asking": "GPU %d" % minor})
    handle = reader.handle(address)
    if handle is None:
        return False
    if reader.is_split(handle):
        for one in _read_instances(reader, handle, job_id, sluid):
            say(dict(one, gpu=minor))
        return True
    if whole:
        found = _read_device(reader, handle, reader.mean_use(handle), reader.programs(handle))
        energy, clocks = reader.energy_mj(handle), gpu_clocks.read(reader, handle)
        found.update({} if energy is None else {"energy_mj": energy})
        say(dict(found, gpu=minor, **({"clocks": clocks} if clocks else {})))
    return False


def _read_instances(reader, handle, job_id, sluid):
    used = []
    for one in reader.instances(handle):
        own = [pid for pid in reader.pids(one) if _is_of_job(pid, job_id, sluid)]
        if own:
            used.append((one, reader.number("nvmlDeviceGetGpuInstanceId", one), len(own)))
    numbers = sorted(set(number for _, number, _ in used if number is not None))
    shares = _compare_samples(reader, [((handle.value, number), handle, number) for number in numbers])
    found = []
    for one, number, own in used:
        share = shares.get((handle.value, number), {})
        use = round(100 * share[gpu_shares.SM_ACTIVE], 1) if gpu_shares.SM_ACTIVE in share else None
        device = _read_device(reader, one, use, own)
        found.append(dict(device, mig=reader.uuid(one), **({"shares": share} if share else {})))
    return found


def _read_shares(reader, gpus, with_bandwidths, say):
    """Send the shares of whole GPUs, [(device minor, PCI address)], or their bandwidths."""
    handles = dict((minor, reader.handle(address)) for minor, address in gpus)
    say({"asking": "the shares of GPUs"})
    found = _compare_samples(reader, [(minor, one, None) for minor, one in handles.items() if one is not None])
    for minor in sorted(found):
        if found[minor]:
            say({"gpu": minor, "shares": found[minor]})
        elif with_bandwidths and not any(found.values()):
            say({"gpu": minor, "bandwidths": reader.shares.bandwidths(minor, handles[minor])})


def _compare_samples(reader, asked):
    """Return {key: shares} of `asked`, [(key, handle of a GPU, number of its MIG instance or None)]."""
    for one in asked:
        reader.shares.read(*one)
    if any(one[0] not in reader.shares.refused for one in asked):
        time.sleep(GPM_PAUSE_S)
    return dict((one[0], reader.shares.read(*one)) for one in asked)


def _read_device(reader, handle, use, processes):
    total, used = reader.memory(handle)
    found = {"use": use, "mem_mib": used, "mem_total_mib": total, "processes": processes}
    return dict((name, value) for name, value in found.items() if value is not None)


def _is_of_job(pid, job_id, sluid):
    try:
        with open("/proc/%d/cgroup" % pid) as stream:
            return any(job_cgroup.job_directory(line, job_id, sluid) for line in stream)
    except OSError:
        return False
