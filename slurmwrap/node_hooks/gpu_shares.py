"""Measure which shares of a GPU its programs use: multiprocessors, memory bandwidth, PCIe and NVLink.

Hopper and later GPUs count this in hardware, and NVML gives the counters (GPM). For older GPUs DCGM reads them, if an
administrator names its client `dcgmi`: the counters of these GPUs can be read by one program at a time, so Nsight and
other profilers of users fail meanwhile. The sampler of nodes and that of the pre-run use this module.

A share is a number from 0 to 1. What a GPU does not support is omitted.
"""

import ctypes
import math
import re
import time

from . import deadline_child

SM_ACTIVE, DRAM, PCIE, NVLINK = NAMES = ("sm_active", "dram", "pcie", "nvlink")
# NVML_GPM_METRIC_*: percent of the multiprocessors and of the memory bandwidth, then MiB/s in each direction.
SM_UTIL, DRAM_UTIL, PCIE_TX, PCIE_RX, NVLINK_RX, NVLINK_TX = ASKED = (2, 10, 20, 21, 60, 61)
GPM_METRICS = 512  # more than NVML_GPM_METRIC_MAX of any release
# The speed of a link: NVML_FI_DEV_NVLINK_GET_SPEED, and NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON of older drivers.
LINK_SPEEDS = (164, 90)
LINKS = 36
# MB/s in one direction of a lane of PCI Express, by generation.
LANE_MB_PER_S = {1: 250.0, 2: 500.0, 3: 984.6, 4: 1969.2, 5: 3938.5, 6: 7563.0}
MIB, MB = 1048576.0, 1e6

# Fields of DCGM in the order in which they are asked for: the first two are ratios, the others bytes per second.
DCGM_FIELDS = ("1002", "1005", "1009", "1010", "1011", "1012")
# The first row of a field is often N/A, since DCGM starts to count with the question.
DCGM_ROWS, DCGM_PAUSE_MS = 3, 500
DCGM_S = 6.0  # seconds for both calls of dcgmi
DCGM_OUTPUT = 1 << 18  # bytes


class GpmMetric(ctypes.Structure):
    """One value, as nvmlGpmMetric_t."""

    _fields_ = [
        ("number", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_double),
        ("names", ctypes.c_char_p * 3),
    ]


class GpmMetrics(ctypes.Structure):
    """A question about two samples, as nvmlGpmMetricsGet_t of version 1."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("samples", ctypes.c_void_p * 2),
        ("metrics", GpmMetric * GPM_METRICS),
    ]


class FieldValue(ctypes.Structure):
    """A value of nvmlDeviceGetFieldValues, as nvmlFieldValue_t."""

    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    ]


class ShareReader(object):
    """Reads the shares of GPUs. `call(name, *arguments)` calls NVML and returns whether the call succeeded.

    A share is a mean since the GPU was read before. So the first call for a GPU returns nothing.
    """

    def __init__(self, call):
        self.call = call
        self.before = {}  # key -> the last sample
        self.spare = {}  # key -> a sample that may be overwritten
        self.rates = {}  # key -> (PCIe, NVLink) in bytes per second and direction; None: unknown
        self.refused = set()

    def read(self, key, handle, instance=None):
        """Return {name: share} of a GPU, or of the MIG instance with this number. `key` names it in later calls.

        The instances of a GPU share its PCIe and NVLink, so these are not known of an instance.
        """
        if key in self.refused:
            return {}
        now = self._take(key, handle, instance)
        before = self.before.get(key)
        if now is None:
            self.refused.add(key)
            return {}
        self.before[key], self.spare[key] = now, before
        if before is None:
            return {}
        found = self._compare(before, now)
        shares = {SM_ACTIVE: _scale(found.get(SM_UTIL), 100.0), DRAM: _scale(found.get(DRAM_UTIL), 100.0)}
        if instance is None:
            moved = [found.get(number) for number in (PCIE_TX, PCIE_RX, NVLINK_TX, NVLINK_RX)]
            moved = [None if rate is None else rate * MIB for rate in moved]
            shares.update(_compare_rates(self.bandwidths(key, handle), moved))
        return _drop_unknown(shares)

    def bandwidths(self, key, handle):
        """Return those of PCIe and NVLink of a GPU in bytes per second and direction; None: unknown."""
        if key not in self.rates:
            self.rates[key] = (self._pcie_rate(handle), self._nvlink_rate(handle))
        return self.rates[key]

    def _take(self, key, handle, instance):
        """Return a new sample; None where the GPU has no GPM."""
        found = ctypes.c_void_p(self.spare.get(key))
        if not found.value and not self.call("nvmlGpmSampleAlloc", ctypes.byref(found)):
            return None
        if instance is None:
            known = self.call("nvmlGpmSampleGet", handle, found)
        else:
            known = self.call("nvmlGpmMigSampleGet", handle, ctypes.c_uint(instance), found)
        if not known:
            self.call("nvmlGpmSampleFree", found)
        return found.value if known else None

    def _compare(self, before, now):
        """Return {number of the metric: value} of the values that are known."""
        asked = GpmMetrics(version=1, count=len(ASKED), samples=(before, now))
        for at, number in enumerate(ASKED):
            asked.metrics[at].number = number
        if not self.call("nvmlGpmMetricsGet", ctypes.byref(asked)):
            return {}
        return dict((one.number, one.value) for one in asked.metrics[: len(ASKED)] if one.code == 0)

    def _number(self, name, handle, *arguments):
        found = ctypes.c_uint(0)
        return found.value if self.call(name, handle, *(arguments + (ctypes.byref(found),))) else 0

    def _pcie_rate(self, handle):
        # An idle GPU lowers the generation but not the width, and a link with fewer lanes is a fault that lasts.
        generation = self._number("nvmlDeviceGetMaxPcieLinkGeneration", handle)
        return LANE_MB_PER_S.get(generation, 0.0) * self._number("nvmlDeviceGetCurrPcieLinkWidth", handle) * MB or None

    def _nvlink_rate(self, handle):
        active = sum(self._number("nvmlDeviceGetNvLinkState", handle, ctypes.c_uint(link)) for link in range(LINKS))
        if not active:
            return None
        asked = (FieldValue * len(LINK_SPEEDS))()
        for one, number in zip(asked, LINK_SPEEDS):
            one.field = number
        if not self.call("nvmlDeviceGetFieldValues", handle, ctypes.c_int(len(asked)), asked):
            return None
        # NVML returns the speed as an unsigned int, the low half of the union.
        speeds = [one.value & 0xFFFFFFFF for one in asked if one.code == 0]
        return active * max(speeds or [0]) * MB or None


def _compare_rates(bandwidths, moved):
    """Return the shares of PCIe and NVLink, given bytes/s: PCIe out and in, NVLink out and in."""
    pcie, nvlink = bandwidths
    return {PCIE: _busier(moved[:2], pcie), NVLINK: _busier(moved[2:], nvlink)}


def _busier(rates, most):
    known = [rate for rate in rates if rate is not None]
    return _scale(max(known), most) if known and most else None


def _scale(value, most):
    if value is None or not math.isfinite(value) or value < 0:
        return None
    return round(min(1.0, value / most), 4)


def _drop_unknown(shares):
    return dict((name, share) for name, share in shares.items() if share is not None)


def read_dcgm(program, wait_s=DCGM_S):
    """Return {PCI address: six numbers or None} by DCGM, in the order of DCGM_FIELDS; {} when DCGM does not answer.

    `program`: path of dcgmi. Its host engine, nv-hostengine, must run; dcgmi starts none.
    """
    deadline = time.monotonic() + wait_s
    found = deadline_child.run([program, "discovery", "-l"], b"", deadline, DCGM_OUTPUT)
    addresses = parse_discovery(_decode(found.data)) if found.complete else {}
    if not addresses:
        return {}
    argv = [program, "dmon", "-e", ",".join(DCGM_FIELDS), "-d", str(DCGM_PAUSE_MS), "-c", str(DCGM_ROWS)]
    rows = parse_dmon(_decode(deadline_child.run(argv, b"", deadline, DCGM_OUTPUT).data))
    return dict((addresses[number], row) for number, row in rows.items() if number in addresses)


def dcgm_shares(bandwidths, row):
    """Return {name: share} of one GPU from its bandwidths and its row of read_dcgm()."""
    ratios = {SM_ACTIVE: _scale(row[0], 1.0), DRAM: _scale(row[1], 1.0)}
    return _drop_unknown(dict(ratios, **_compare_rates(bandwidths, row[2:])))


def parse_discovery(text):
    """Return {number of the GPU for DCGM: PCI address as in sysfs} from `dcgmi discovery -l`."""
    found, number = {}, None
    for line in text.splitlines():
        first = re.match(r"\|\s*(\d+)\s*\|\s*Name:", line)
        number = int(first.group(1)) if first else number
        address = re.search(r"PCI Bus ID:\s*([0-9A-Fa-f:.]{12,16})\s*\|", line)
        if address and number is not None:
            found[number] = address.group(1)[-12:].lower()
    return found


def parse_dmon(text):
    """Return {number of the GPU: values} from `dcgmi dmon`: of each column the last number, None if there was none.

    Rows of MIG instances and of other devices ("GPU-I 0", "Switch 1") are ignored.
    """
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 + len(DCGM_FIELDS) and words[0] == "GPU" and words[1].isdigit():
            row = found.setdefault(int(words[1]), [None] * len(DCGM_FIELDS))
            for at, word in enumerate(words[2:]):
                value = _number_or_none(word)
                row[at] = row[at] if value is None else value
    return found


def _number_or_none(word):
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _decode(data):
    return data.decode("utf-8", "replace")
