"""Count how long the clocks of a job's GPUs were held down by heat or power while it ran. Part of the sampler.

The Epilog comes too late for this: the GPU is idle then, and its clock low. So the sampler asks once a minute, counts,
and leaves the result in the node's private directory, where the Epilog finds it. A limit of power that an administrator
set (SW_POWER_CAP) and idling (GPU_IDLE) are normal and not counted.
"""
import ctypes
import json

from . import node_state

# nvmlClocksEventReason*: HW_SLOWDOWN is set together with one of the other reasons of hardware.
REASONS = (("hw_slowdown", 0x8), ("sw_thermal", 0x20), ("hw_thermal", 0x40), ("hw_power_brake", 0x80))
SM = 1  # NVML_CLOCK_SM
THERMAL = 1  # NVML_PERF_POLICY_THERMAL
# Percent of use from which a GPU counts as busy: an idle GPU lowers its clock by itself.
BUSY = 50.0


class _Violation(ctypes.Structure):
    _fields_ = [("reference_us", ctypes.c_ulonglong), ("violation_ns", ctypes.c_ulonglong)]


def read(reader, handle):
    """Return {"held": [reason], "sm": share of the largest SM clock, "thermal_ns"} of a GPU, as far as it is known.

    `reader`: a watch_gpus.Nvml. `thermal_ns`: time that heat has held the clock down since the driver was loaded.
    """
    found, reasons, violation = {}, ctypes.c_ulonglong(0), _Violation()
    # The second name is that before R535.
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        if reader.call(name, handle, ctypes.byref(reasons)):
            held = [reason for reason, bit in REASONS if reasons.value & bit]
            found.update({"held": held} if held else {})
            break
    now = reader.number("nvmlDeviceGetClockInfo", handle, ctypes.c_uint(SM))
    most = reader.number("nvmlDeviceGetMaxClockInfo", handle, ctypes.c_uint(SM))
    if now and most:
        found["sm"] = round(min(1.0, float(now) / most), 3)
    if reader.call("nvmlDeviceGetViolationStatus", handle, ctypes.c_uint(THERMAL), ctypes.byref(violation)):
        found["thermal_ns"] = violation.violation_ns
    return found


class ClockCounts:
    """What was counted since the start of the job, for each whole GPU by its device minor."""

    def __init__(self):
        self.gpus = {}

    def add(self, answers):
        """Add one sample of all GPUs, as gpu_use_query.py sends them."""
        for one in answers:
            if one.get("mig") or "clocks" not in one:
                continue
            counted = self.gpus.setdefault(one["gpu"], {"busy": 0, "slowed": 0, "held": {}, "sm": 0.0, "known": 0})
            clocks = one["clocks"]
            self._add_thermal(counted, clocks.get("thermal_ns"))
            if one.get("use", 0.0) < BUSY:
                continue
            counted["busy"] += 1
            counted["slowed"] += bool(clocks.get("held"))
            for reason in clocks.get("held", ()):
                counted["held"][reason] = counted["held"].get(reason, 0) + 1
            if "sm" in clocks:
                counted["sm"] += clocks["sm"]
                counted["known"] += 1

    def _add_thermal(self, counted, value):
        if value is not None:
            before, spent = counted.get("thermal", (value, 0))
            # A reset of the GPU sets the counter to 0.
            counted["thermal"] = (value, spent + (value - before if value >= before else value))

    def facts(self):
        """Return {device minor: {"busy", "slowed", one for each reason, "sm", "thermal_s"}} (docs/records.md)."""
        found = {}
        for minor, counted in self.gpus.items():
            one = dict(counted["held"], busy=counted["busy"], slowed=counted["slowed"])
            if counted["known"]:
                one["sm"] = round(counted["sm"] / counted["known"], 3)
            if "thermal" in counted:
                one["thermal_s"] = round(counted["thermal"][1] / 1e9, 1)
            found[minor] = one
        return found

    def add_to(self, message):
        """Return a message of gpu_use_sampler.PendingSamples with what was counted."""
        counted = self.facts()
        for one in message["samples"]:
            if not one["mig"] and one["gpu"] in counted:
                one["clocks"] = counted[one["gpu"]]
        return message

    def save(self, settings, job_id):
        """Leave the counts for the Epilog."""
        if self.gpus:
            path = node_state.clocks_path(settings.node_state_dir, job_id)
            node_state.write(path, json.dumps(self.facts()).encode("ascii"))
