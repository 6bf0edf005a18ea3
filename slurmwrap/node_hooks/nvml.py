"""Collect the state of the job's GPUs through NVML (adapter). Does nothing without NVIDIA's driver.

nvml_ask.py contains the queries; driver_guard.py runs them in a child. A GPU that fell off the bus makes the whole
driver hang sooner or later. Once the kernel reported this, NVML is not asked on this node until the next boot.
"""
import json
import os

from . import driver_guard, nvml_ask, node_state
from . import kernel_log

LIMIT = 1 << 20
FALLEN = "gpu.fallen"
COUNTERS = "gpu.counters"


def states(settings, gpus, deadline, started_at=None, lost="", checks=nvml_ask.CHECKS):
    """Return the facts `gpu` (one object per GPU of the job), `gpu_error` and `driver_hung`; {} without a driver.

    `gpus`: [(index, PCI address or None)]. NVML numbers GPUs in a different order, so a GPU without an address is not
    asked. `lost`: the result of `fallen`; if it is not "", no GPU is asked. `checks`: as nvml_ask.CHECKS.
    """
    if not os.path.exists(settings.nvidia_control):
        return {}
    if lost:
        return {"gpu_error": "not asked: the kernel says that a GPU of this node fell off the bus"}
    known = [(index, address) for index, address in gpus if address]
    if not known:
        return _facts_without_addresses(settings) if gpus else {}
    answer = driver_guard.ask(
        settings, lambda send: nvml_ask.run(known, started_at, send, checks), deadline, LIMIT, driver_guard.find_last_call
    )
    lines = driver_guard.parse_lines(answer.data)
    facts = {"gpu": _by_gpu(known, lines)}
    errors = ["NVML: %s" % line["failed"] for line in lines if "failed" in line] + [answer.error]
    if len(known) < len(gpus):
        errors.append("the PCI address of %d GPUs is unknown" % (len(gpus) - len(known)))
    if any(errors):
        facts["gpu_error"] = "; ".join(error for error in errors if error)
    if answer.hung:
        facts["driver_hung"] = _driver_hung_fact(answer.hung)
    _add_new_errors(settings, facts["gpu"])
    return facts


def _facts_without_addresses(settings):
    """Return the facts when no PCI address is known, which may be because the driver hung when asked for them."""
    stuck = driver_guard.hung(node_state.ensure(settings.node_state_dir))
    if stuck:
        return {"gpu_error": driver_guard.said(stuck), "driver_hung": _driver_hung_fact(stuck)}
    return {"gpu_error": "which GPUs the job had is unknown"}


def _driver_hung_fact(stuck):
    return dict((key, stuck.get(key)) for key in ("pid", "since", "call"))


def fallen(settings, lines):
    """Return the kernel line since the last boot that reports that a GPU of this node fell off the bus; "" without one.

    `lines`: (text, at) of the kernel, about any GPU. A line that is found is saved on the node for later hooks.
    """
    path = os.path.join(settings.node_state_dir, FALLEN)
    boot = kernel_log.boot()
    found_lines = [text for text, _ in lines if kernel_log.fell_off(text)]
    if not found_lines:
        remembered = node_state.read_json(path)
        return str(remembered.get("text")) if remembered.get("boot") == boot else ""
    try:
        node_state.ensure(settings.node_state_dir)
        node_state.write(path, json.dumps({"boot": boot, "text": found_lines[0][:500]}).encode("utf-8"))
    except OSError:
        # Only this hook knows it then.
        pass
    return found_lines[0]


def _by_gpu(known, lines):
    """Return [{"index", "bus_id", <check>: value, ..., "error", "error_code"}] of the GPUs with any result."""
    found = {}
    for line in lines:
        if "check" not in line:
            continue
        one = found.setdefault(line["index"], {"index": line["index"], "bus_id": dict(known)[line["index"]]})
        if "value" in line:
            one[line["check"]] = line["value"]
        elif line["code"] == nvml_ask.LOST or line["check"] == "handle":
            one.update(error=line["error"], error_code=line["code"])
        else:
            one.setdefault("errors", {})[line["check"]] = line["error"]
    return [found[index] for index in sorted(found)]


def _add_new_errors(settings, gpus):
    """Add the errors that are new since a hook last read the counters, which only grow; save the new values."""
    path = os.path.join(settings.node_state_dir, COUNTERS)
    kept = node_state.read_json(path)
    before = dict(kept)
    for gpu in gpus:
        now = _counters(gpu)
        if now:
            _compare_counters(gpu, before.get(gpu["bus_id"]), now)
            kept[gpu["bus_id"]] = now
    try:
        if kept != before:
            node_state.write(path, json.dumps(kept).encode("utf-8"))
    except OSError:
        # The next hook compares with older values.
        pass


def _counters(gpu):
    now = dict(("nvlink." + name, value) for name, value in gpu.get("nvlink", {}).get("errors", {}).items())
    if "nvlink" in gpu:
        now["active"] = gpu["nvlink"]["active"]
    if "replays" in gpu.get("pcie", {}):
        now["replays"] = gpu["pcie"]["replays"]
    return now


def _compare_counters(gpu, before, now):
    if not isinstance(before, dict):
        return
    new = dict((key, value - before[key]) for key, value in now.items() if isinstance(before.get(key), int))
    links = dict((key[7:], value) for key, value in new.items() if key.startswith("nvlink.") and value > 0)
    if links:
        gpu["nvlink"]["new_errors"] = links
    if new.get("active", 0) < 0:
        gpu["nvlink"]["was_active"] = before["active"]
    if new.get("replays", 0) > 0:
        gpu["pcie"]["new_replays"] = new["replays"]
