"""Read use, memory, processes and energy of a job's GPUs through NVML; runs in a child process and changes nothing.

Before each GPU the child sends a line that names it, so that a hang can be attributed. A value that GPU or driver does
not support is omitted. Of a GPU in MIG mode, only the instances are read on which a process of the job runs: NVML does
not count the use of the whole GPU then, and Slurm's numbers of such devices are not those of the driver.
"""

import ctypes
import json
import time

from . import job_cgroup, watch_gpus

UTILIZATION_SAMPLES = 1  # NVML_GPU_UTILIZATION_SAMPLES
READINGS = 1024  # largest number of the driver's own samples that are read
RECENT_US = 60 * 10**6  # samples that are older than this before the newest one are from an earlier minute
PROCESSES = 256  # largest number of processes of a MIG instance that are read
GPM_SM_UTIL = 2  # NVML_GPM_METRIC_SM_UTIL
GPM_METRICS = 512  # more than NVML_GPM_METRIC_MAX of any release
GPM_PAUSE_S = 0.2  # between the two samples that GPM compares


class _Reading(ctypes.Structure):
    _fields_ = [("at_us", ctypes.c_ulonglong), ("value", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _GpmMetric(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_double),
        ("names", ctypes.c_char_p * 3),
    ]


class _GpmMetrics(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("samples", ctypes.c_void_p * 2),
        ("metrics", _GpmMetric * GPM_METRICS),
    ]


class UseReader(watch_gpus.Nvml):
    """NVML's calls for one query. A value that is not supported is None."""

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

    def instance_use(self, handle, instances):
        """Return {GPU instance id: use of its multiprocessors in percent} by GPM; {} where it is not supported."""
        taken = [(one, self._gpm_sample(handle, one)) for one in instances]
        if any(sample is not None for _, sample in taken):
            time.sleep(GPM_PAUSE_S)
        found = {}
        for instance, before in taken:
            after = self._gpm_sample(handle, instance) if before is not None else None
            if after is not None:
                asked = _GpmMetrics(version=1, count=1, samples=(before, after))
                asked.metrics[0].number = GPM_SM_UTIL
                if self.call("nvmlGpmMetricsGet", ctypes.byref(asked)) and asked.metrics[0].code == 0:
                    found[instance] = round(asked.metrics[0].value, 1)
        return found

    def _gpm_sample(self, handle, instance):
        """Return a sample of GPM, which the end of the process frees."""
        found = ctypes.c_void_p()
        if not self.call("nvmlGpmSampleAlloc", ctypes.byref(found)):
            return None
        known = self.call("nvmlGpmMigSampleGet", handle, ctypes.c_uint(instance), found)
        return found.value if known else None


def run(gpus, others, job_id, sluid, send):
    """Send a JSON line for each GPU of `gpus`, [(device minor, PCI address)], or for each of its MIG instances in use.

    `others`: further GPUs of the node, which are looked at only if a GPU of the job is in MIG mode.
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
        energy = reader.energy_mj(handle)
        say(dict(found, gpu=minor, **({} if energy is None else {"energy_mj": energy})))
    return False


def _read_instances(reader, handle, job_id, sluid):
    used = []
    for one in reader.instances(handle):
        own = [pid for pid in reader.pids(one) if _is_of_job(pid, job_id, sluid)]
        if own:
            used.append((one, reader.number("nvmlDeviceGetGpuInstanceId", one), len(own)))
    rates = reader.instance_use(handle, sorted(set(number for _, number, _ in used if number is not None)))
    return [dict(_read_device(reader, one, rates.get(number), own), mig=reader.uuid(one)) for one, number, own in used]


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
