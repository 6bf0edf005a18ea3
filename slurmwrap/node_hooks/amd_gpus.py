"""Read the state of AMD's GPUs from the files of the amdgpu driver in sysfs (adapter). Does nothing without that driver.

Not through libamd_smi: for these values amdsmi reads the same files, it is not on every node, its structures change
with each release, and it opens every GPU of the node. amdsmi would add the use of each process, clocks and throttling
(gpu_metrics), and energy.

The reading of RAS counters asks the GPU's firmware, which may hang, so a child reads and is abandoned at its deadline.
It also makes the driver print counters that are not 0 to the kernel's log. So it comes after the Epilog has read that
log, and no Prolog does it: the lines would else lie within the time of the next job.
"""
import json
import os
import re
import time

from . import driver_guard, node_state
from .watch_gpus import find_amd_gpus, list_amd_processes, list_directory, read_number, read_text

COUNTERS = "amd.counters"
LIMIT = 1 << 18
LEFT = 16
# Names of the blocks that are counted are those of the files ras/BLOCK_err_count (older kernels) or ras/aca_BLOCK.
RAS = re.compile(r"^(?:aca_)?([a-z_0-9]+?)(?:_err_count)?\Z")
NOT_BLOCKS = ("features", "version", "schema", "event_state", "gpu_vram_bad_pages")


def addresses(sysfs):
    """Return PCI addresses by Slurm's index, as gpu_addresses.addresses does: {"0": "0000:c1:00.0"}."""
    return dict((str(index), address) for index, address, _ in find_amd_gpus(sysfs))


def states(settings, gpus, deadline):
    """Return the facts `gpu` and `gpu_error` about a job's GPUs, [(index, PCI address)]; {} without AMD's GPUs."""
    devices = dict((address, device) for _, address, device in find_amd_gpus(settings.sysfs))
    if not devices:
        return {}
    wanted = [(index, address) for index, address in gpus if address]

    def look(send):
        for index, address in wanted:
            send(json.dumps({"asking": "GPU %d" % index}).encode("utf-8") + b"\n")
            one = {"index": index, "bus_id": address, "vendor": "amd"}
            if address not in devices:
                one["error"] = "the GPU has no files of the driver any more"
            else:
                one.update(_read_state(settings.sysfs, devices[address]))
            send(json.dumps(one).encode("utf-8") + b"\n")

    answer = driver_guard.ask(settings, look, deadline, LIMIT, _find_last_call)
    found = [line for line in driver_guard.parse_lines(answer.data) if "asking" not in line]
    facts = {"gpu": found}
    if answer.error:
        facts["gpu_error"] = answer.error
    if answer.hung:
        facts["driver_hung"] = dict((key, answer.hung.get(key)) for key in ("pid", "since", "call"))
    _add_new_errors(settings, found)
    return facts


def _read_state(sysfs, device):
    found = {"processes": list_amd_processes(sysfs, device)[:LEFT]}
    if found["processes"]:
        # The driver frees the memory of an ended process a moment later.
        time.sleep(0.3)
        found["processes"] = list_amd_processes(sysfs, device)[:LEFT]
    memory = [read_number(os.path.join(device, "mem_info_vram_" + name)) for name in ("used", "total")]
    if None not in memory:
        found["memory"] = {"used_mib": memory[0] >> 20, "total_mib": memory[1] >> 20}
    errors = read_ras(device)
    if errors:
        found["ras"] = errors
    pages = [line.rpartition(":")[2].strip() for line in read_text(os.path.join(device, "ras", "gpu_vram_bad_pages")).split("\n")]
    pages = dict((flag, pages.count(flag)) for flag in ("R", "P", "F") if flag in pages)
    if pages:
        # R: reserved and not used any more; P: reserved at the next reset; F: could not be reserved.
        found["bad_pages"] = {"retired": pages.get("R", 0), "pending": pages.get("P", 0), "failed": pages.get("F", 0)}
    return found


def read_ras(device):
    """Return {block: uncorrectable errors since the driver was loaded}, without those that have none."""
    found = {}
    for name in list_directory(os.path.join(device, "ras")):
        block = RAS.match(name)
        if block is None or name in NOT_BLOCKS:
            continue
        count = re.search(r"^ue:\s*(\d+)", read_text(os.path.join(device, "ras", name)), re.MULTILINE)
        if count and int(count.group(1)):
            found[block.group(1)] = int(count.group(1))
    return found


def send_samples(sysfs, gpus, send):
    """Send one sample of each of `gpus`, [(index, PCI address)], as gpu_use_query.run() does."""
    devices = dict((address, device) for _, address, device in find_amd_gpus(sysfs))
    for index, address in gpus:
        if address not in devices:
            continue
        send(json.dumps({"asking": "GPU %d" % index}).encode("ascii") + b"\n")
        device = devices[address]
        one = {"gpu": index, "use": read_number(os.path.join(device, "gpu_busy_percent"))}
        for name, file in (("mem_mib", "mem_info_vram_used"), ("mem_total_mib", "mem_info_vram_total")):
            value = read_number(os.path.join(device, file))
            one[name] = None if value is None else value >> 20
        one["processes"] = len(list_amd_processes(sysfs, device))
        known = dict((key, value) for key, value in one.items() if value is not None)
        send(json.dumps(known).encode("ascii") + b"\n")


def _add_new_errors(settings, gpus):
    """Add the errors that are new since a hook last read the counters; save the new values."""
    path = os.path.join(settings.node_state_dir, COUNTERS)
    kept = node_state.read_json(path)
    before = dict(kept)
    for gpu in gpus:
        now, earlier = gpu.get("ras", {}), before.get(gpu["bus_id"])
        if isinstance(earlier, dict):
            new = dict((name, count - _earlier(earlier, name, count)) for name, count in now.items())
            new = dict((name, count) for name, count in new.items() if count > 0)
            if new:
                gpu["new_ras"] = new
        if "error" not in gpu:
            kept[gpu["bus_id"]] = now
    try:
        if kept != before:
            node_state.write(path, json.dumps(kept).encode("utf-8"))
    except OSError:
        # The next hook compares with older values.
        pass


def _earlier(earlier, name, count):
    value = earlier.get(name, 0)
    # A reset, or a newly loaded driver, counts from 0.
    return value if isinstance(value, int) and value <= count else 0


def _find_last_call(data):
    return "the counters of %s" % driver_guard.find_last_call(data, "a GPU")
