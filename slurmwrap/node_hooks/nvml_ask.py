"""What the child asks NVIDIA's driver, through nvidia-ml-py's `pynvml` in the zipapp; only reads, only the job's GPUs.

Check by check over all GPUs, what decides first, so that a hang costs the least. Before each call a line says which one
comes, after it a line brings the result. What a GPU, driver or binding does not support is left out, it is no error.
"""
import json
import os
import time

# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, by number: older bindings have no name for it.
RECOVERY_ACTION = 230
ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset")
ACTIONS += ("recover_imex_domain", "bus_reset", "system_reboot")
LOST = 15  # NVML_ERROR_GPU_IS_LOST
MISSING = 13  # NVML_ERROR_FUNCTION_NOT_FOUND
# INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND, NO_DATA, ARGUMENT_VERSION_MISMATCH,
# DEPRECATED, NOT_READY
UNSUPPORTED = frozenset((2, 3, 4, 6, 13, 21, 25, 26, 27))
NVLINK_ERRORS = (("crc_flit", 38), ("crc_data", 45), ("replay", 52), ("recovery", 59))  # totals over the links
LINKS = 36
HOLDS = (("hw_slowdown", 0x8), ("hw_thermal", 0x40), ("hw_power_brake", 0x80))  # a power cap and idling are normal
LEFT = 16  # processes named per GPU
ACCOUNTED, KEPT = 256, 64  # processes that accounting is asked about, and that are sent, per GPU


def run(gpus, started_at, send):
    """Sends JSON lines about `gpus`, [(index, PCI address)]. `started_at`: Unix time of the job's start, or None."""

    def say(item):
        send(json.dumps(item).encode("utf-8") + b"\n")

    say({"asking": "the library"})
    try:
        import pynvml
    except ImportError as error:
        say({"failed": "nvidia-ml-py is not in the zipapp: %s" % error})
        return
    say({"asking": "nvmlInit"})
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        say({"failed": str(error), "code": error.value})
        return
    handles = {}
    for index, address in gpus:
        say({"asking": "nvmlDeviceGetHandleByPciBusId of GPU %d" % index})
        bus = address.encode("ascii")
        _try(pynvml, say, handles, index, "handle", lambda: pynvml.nvmlDeviceGetHandleByPciBusId(bus))
    for name, read in CHECKS:
        for index in sorted(handles):
            say({"asking": "%s of GPU %d" % (name, index)})
            _try(pynvml, say, handles, index, name, lambda: read(pynvml, handles[index], started_at))
    say({"done": True})


def _try(pynvml, say, handles, index, name, read):
    try:
        value = read()
    except AttributeError:  # an older binding
        return
    except pynvml.NVMLError as error:
        if error.value in UNSUPPORTED and name != "handle":
            return
        say({"index": index, "check": name, "error": str(error), "code": error.value})
        # Every further call would end the same way, or hang.
        if error.value == LOST:
            handles.pop(index, None)
        return
    except Exception as error:
        # The binding's own trouble costs this check only.
        say({"index": index, "check": name, "error": "%s: %s" % (type(error).__name__, error), "code": 0})
        return
    if name == "handle":
        handles[index] = value
    else:
        say({"index": index, "check": name, "value": value})


def _recovery_action(pynvml, handle, _):
    value = _field(pynvml, handle, [RECOVERY_ACTION])[0]
    if value is None:
        raise AttributeError
    return ACTIONS[value] if value < len(ACTIONS) else str(value)


def _field(pynvml, handle, numbers):
    """Counters and flags of nvmlDeviceGetFieldValues, None where one is not supported. The value's type is NVML's."""
    names = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
    found = pynvml.nvmlDeviceGetFieldValues(handle, numbers)
    return [getattr(one.value, names.get(one.valueType, "uiVal")) if one.nvmlReturn == 0 else None for one in found]


def _remapped_rows(pynvml, handle, _):
    corrected, uncorrected, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return {"correctable": corrected, "uncorrectable": uncorrected, "pending": bool(pending), "failed": bool(failed)}


def _ecc_uncorrected(pynvml, handle, _):
    """Since the driver was loaded or the GPU reset, and since it was made."""
    kind = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return {
        "volatile": pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC),
        "aggregate": pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_AGGREGATE_ECC),
    }


def _sram(pynvml, handle, _):
    found = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    # The binding takes a pointer here.
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, pynvml.byref(found))
    return {
        "volatile": found.volatileUncParity + found.volatileUncSecDed,
        "aggregate": found.aggregateUncParity + found.aggregateUncSecDed,
        "threshold_exceeded": bool(found.bThresholdExceeded),
    }


def _retired_pages(pynvml, handle, _):
    """Before Ampere, which remaps rows instead."""
    single, double = (len(pynvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in (0, 1))
    pending = bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    return {"single_bit": single, "double_bit": double, "pending": pending}


def _processes(pynvml, handle, _):
    """At the Epilog Slurm has ended the job's processes: what is still there a moment later was left over."""
    found = _running(pynvml, handle)
    if found:
        time.sleep(0.3)
        found = _running(pynvml, handle)
    return [_process(one) for one in found[:LEFT]]


def _running(pynvml, handle):
    """By version: the binding's name without one raises an error of another kind on drivers before R510."""
    for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
        try:
            return getattr(pynvml, name)(handle)
        except pynvml.NVMLError as error:
            if error.value != MISSING:
                raise
    raise AttributeError


def _process(one):
    found = {"pid": one.pid, "mib": None if one.usedGpuMemory is None else one.usedGpuMemory >> 20}
    try:
        found["uid"] = os.stat("/proc/%d" % one.pid).st_uid
    except OSError:
        # In a container of its own, or gone.
        pass
    return found


def _nvlink(pynvml, handle, _):
    states = []
    for link in range(LINKS):
        try:
            states.append(pynvml.nvmlDeviceGetNvLinkState(handle, link))
        except pynvml.NVMLError as error:
            if error.value not in UNSUPPORTED:
                raise
            break
    if not states:
        raise AttributeError
    found = {"links": len(states), "active": sum(1 for state in states if state), "errors": {}}
    try:
        values = _field(pynvml, handle, [number for _, number in NVLINK_ERRORS])
    except pynvml.NVMLError as error:
        if error.value not in UNSUPPORTED:
            raise
        values = []
    counted = zip(NVLINK_ERRORS, values)
    found["errors"] = dict((name, value) for (name, _), value in counted if value is not None)
    return found


def _pcie(pynvml, handle, _):
    """The width only: an idle GPU lowers its generation, and none of the job's work runs any more."""
    found = {
        "width": pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "max_width": pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
    }
    try:
        found["replays"] = pynvml.nvmlDeviceGetPcieReplayCounter(handle)
    except pynvml.NVMLError as error:
        if error.value not in UNSUPPORTED:
            raise
    return found


def _clock_reasons(pynvml, handle, _):
    try:
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except (AttributeError, pynvml.NVMLError) as error:
        if getattr(error, "value", MISSING) != MISSING:
            raise
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)  # its name before R535
    return [name for name, bit in HOLDS if reasons & bit]


def _persistence(pynvml, handle, _):
    return bool(pynvml.nvmlDeviceGetPersistenceMode(handle))


def _accounting(pynvml, handle, started_at):
    """What each process used at most, by the driver's own accounting, where an administrator switched it on."""
    if not pynvml.nvmlDeviceGetAccountingMode(handle):
        raise AttributeError
    found = []
    for pid in pynvml.nvmlDeviceGetAccountingPids(handle)[-ACCOUNTED:]:
        stats = pynvml.nvmlDeviceGetAccountingStats(handle, pid)
        if started_at is None or _unix(stats.startTime) >= started_at - 2.0:
            found.append(_accounted(pid, stats))
    return sorted(found, key=lambda one: -(one["max_mib"] or 0))[:KEPT]


def _unix(start):
    """NVML says "CPU timestamp in usec": Unix time, or counted from boot where the number is too small for that."""
    seconds = start / 1e6
    return seconds if seconds > 1e9 else seconds + time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)


def _accounted(pid, stats):
    most = stats.maxMemoryUsage
    return {
        "pid": pid,
        "max_mib": None if most is None else most >> 20,
        "gpu_percent": stats.gpuUtilization,
        "memory_percent": stats.memoryUtilization,
        "ms": stats.time,
    }


CHECKS = (
    ("recovery_action", _recovery_action),
    ("remapped_rows", _remapped_rows),
    ("ecc_uncorrected", _ecc_uncorrected),
    ("sram", _sram),
    ("retired_pages", _retired_pages),
    ("processes", _processes),
    ("nvlink", _nvlink),
    ("pcie", _pcie),
    ("clock_reasons", _clock_reasons),
    ("persistence", _persistence),
    ("accounting", _accounting),
)
