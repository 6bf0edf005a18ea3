"""Read the state of the job's GPUs through nvidia-ml-py's `pynvml` in the zipapp; runs in a child and changes nothing.

Each check is made on all GPUs before the next check, and the most important checks come first, so that a hang loses as
little as possible. Before each call the child sends a line that names the call, and after it a line with the result.
A check that the GPU, driver or binding does not support is omitted; that is no error.
"""
import json
import os
import time

# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, for which older bindings have no name.
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
# Reasons for a lowered clock that show a fault. A power cap and idling are normal and not among them.
HOLDS = (("hw_slowdown", 0x8), ("hw_thermal", 0x40), ("hw_power_brake", 0x80))
LEFT = 16  # processes sent per GPU that are still running
# Processes per GPU whose accounting data are read, and processes that are sent.
ACCOUNTED, KEPT = 256, 64


def run(gpus, started_at, send, checks=()):
    """Send JSON lines about `gpus`, [(index, PCI address)]. `started_at`: Unix time of the job's start, or None.

    `checks`: [(name, function)], as in CHECKS, which is the default.
    """

    def send_line(item):
        send(json.dumps(item).encode("utf-8") + b"\n")

    send_line({"asking": "the library"})
    try:
        import pynvml
    except ImportError as error:
        send_line({"failed": "nvidia-ml-py is not in the zipapp: %s" % error})
        return
    send_line({"asking": "nvmlInit"})
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        send_line({"failed": str(error), "code": error.value})
        return
    handles = {}
    for index, address in gpus:
        send_line({"asking": "nvmlDeviceGetHandleByPciBusId of GPU %d" % index})
        bus = address.encode("ascii")
        _run_check(pynvml, send_line, handles, index, "handle", lambda: pynvml.nvmlDeviceGetHandleByPciBusId(bus))
    for name, read in checks or CHECKS:
        for index in sorted(handles):
            send_line({"asking": "%s of GPU %d" % (name, index)})
            _run_check(pynvml, send_line, handles, index, name, lambda: read(pynvml, handles[index], started_at))
    send_line({"done": True})


def _run_check(pynvml, send_line, handles, index, name, read):
    try:
        value = read()
    except AttributeError:  # an older binding
        return
    except pynvml.NVMLError as error:
        if error.value in UNSUPPORTED and name != "handle":
            return
        send_line({"index": index, "check": name, "error": str(error), "code": error.value})
        # Every further call for a lost GPU would fail in the same way or hang.
        if error.value == LOST:
            handles.pop(index, None)
        return
    except Exception as error:
        # An error in the binding ends only this check.
        send_line({"index": index, "check": name, "error": "%s: %s" % (type(error).__name__, error), "code": 0})
        return
    if name == "handle":
        handles[index] = value
    else:
        send_line({"index": index, "check": name, "value": value})


def _recovery_action(pynvml, handle, _):
    value = _field(pynvml, handle, [RECOVERY_ACTION])[0]
    if value is None:
        raise AttributeError
    return ACTIONS[value] if value < len(ACTIONS) else str(value)


def _field(pynvml, handle, numbers):
    """Return the values of nvmlDeviceGetFieldValues, in NVML's types; None for a field that is not supported."""
    names = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
    found = pynvml.nvmlDeviceGetFieldValues(handle, numbers)
    return [getattr(one.value, names.get(one.valueType, "uiVal")) if one.nvmlReturn == 0 else None for one in found]


def _remapped_rows(pynvml, handle, _):
    corrected, uncorrected, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return {"correctable": corrected, "uncorrectable": uncorrected, "pending": bool(pending), "failed": bool(failed)}


def _ecc_uncorrected(pynvml, handle, _):
    """Return errors since the driver was loaded or the GPU was reset (volatile), and in its lifetime (aggregate)."""
    kind = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return {
        "volatile": pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC),
        "aggregate": pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_AGGREGATE_ECC),
    }


def _sram(pynvml, handle, _):
    found = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    # The binding expects a pointer for this call.
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, pynvml.byref(found))
    return {
        "volatile": found.volatileUncParity + found.volatileUncSecDed,
        "aggregate": found.aggregateUncParity + found.aggregateUncSecDed,
        "threshold_exceeded": bool(found.bThresholdExceeded),
    }


def _retired_pages(pynvml, handle, _):
    """Return the counts of retired pages, which GPUs before Ampere have; later GPUs remap rows instead."""
    single, double = (len(pynvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in (0, 1))
    pending = bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    return {"single_bit": single, "double_bit": double, "pending": pending}


def _processes(pynvml, handle, _):
    """Return processes that still run on the GPU. At the Epilog, Slurm has already ended the job's processes.

    A process counts when it is still there after 0.3 s.
    """
    found = _running(pynvml, handle)
    if found:
        time.sleep(0.3)
        found = _running(pynvml, handle)
    return [_process(one) for one in found[:LEFT]]


def _running(pynvml, handle):
    """Return the running processes by a versioned function.

    The binding's function without a version raises another kind of error on drivers before R510.
    """
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
        # The process has ended, or it is in another PID namespace (a container).
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
    """Return the link width and the replay counter. The generation is not read, because an idle GPU lowers it."""
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
    """Return the peak usage of each process by the driver's accounting mode, if an administrator has enabled it."""
    if not pynvml.nvmlDeviceGetAccountingMode(handle):
        raise AttributeError
    found = []
    for pid in pynvml.nvmlDeviceGetAccountingPids(handle)[-ACCOUNTED:]:
        stats = pynvml.nvmlDeviceGetAccountingStats(handle, pid)
        if started_at is None or _unix_time(stats.startTime) >= started_at - 2.0:
            found.append(_accounted(pid, stats))
    return sorted(found, key=lambda one: -(one["max_mib"] or 0))[:KEPT]


def _unix_time(start):
    """Convert NVML's "CPU timestamp in usec" to Unix seconds.

    A number that is too small for Unix time counts from boot.
    """
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
