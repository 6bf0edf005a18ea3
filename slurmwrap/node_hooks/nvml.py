"""Edge: the state of the job's GPUs through NVML (nvml_ask.py asks, driver_guard.py guards). Off without the driver.

A GPU that fell off the bus makes the whole driver hang sooner or later: once the kernel said so, NVML is not asked on
this node until the next boot.
"""
import json
import os

from . import driver_guard, nvml_ask, node_state
from . import kernel_log
from . import kernel_log

LIMIT = 1 << 20
FALLEN = "gpu.fallen"
COUNTERS = "gpu.counters"


def states(settings, gpus, deadline, started_at=None, lost=""):
    """Facts `gpu` (one object per GPU of the job), `gpu_error` and `driver_hung`; {} where there is no driver.

    `gpus`: [(index, PCI address or None)]. NVML counts GPUs in an order of its own: without its address none is asked.
    `lost`: what `fallen` found; then nothing is asked.
    """
    if not os.path.exists(settings.nvidia_control):
        return {}
    if lost:
        return {"gpu_error": "not asked: the kernel says that a GPU of this node fell off the bus"}
    known = [(index, address) for index, address in gpus if address]
    if not known:
        return _unknown(settings) if gpus else {}
    answer = driver_guard.ask(settings, lambda send: nvml_ask.run(known, started_at, send), deadline, LIMIT, _doing)
    lines = list(_lines(answer.data))
    facts = {"gpu": _by_gpu(known, lines)}
    errors = ["NVML: %s" % line["failed"] for line in lines if "failed" in line] + [answer.error]
    if len(known) < len(gpus):
        errors.append("the PCI address of %d GPUs is unknown" % (len(gpus) - len(known)))
    if any(errors):
        facts["gpu_error"] = "; ".join(error for error in errors if error)
    if answer.hung:
        facts["driver_hung"] = _told(answer.hung)
    _count(settings, facts["gpu"])
    return facts


def _unknown(settings):
    """Perhaps because the driver hung when it was asked for the addresses."""
    stuck = driver_guard.hung(node_state.ensure(settings.node_state_dir))
    if stuck:
        return {"gpu_error": driver_guard.said(stuck), "driver_hung": _told(stuck)}
    return {"gpu_error": "which GPUs the job had is unknown"}


def _told(stuck):
    return dict((key, stuck.get(key)) for key in ("pid", "since", "call"))


def fallen(settings, lines):
    """The kernel's line that says that a GPU of this node fell off the bus, since the last boot; "" when none does.

    `lines`: (text, at) of the kernel, about any GPU. What is found is remembered on the node.
    """
    path = os.path.join(settings.node_state_dir, FALLEN)
    boot = kernel_log.boot()
    said = [text for text, _ in lines if kernel_log.fell_off(text)]
    if not said:
        remembered = node_state.read_json(path)
        return str(remembered.get("text")) if remembered.get("boot") == boot else ""
    try:
        node_state.ensure(settings.node_state_dir)
        node_state.write(path, json.dumps({"boot": boot, "text": said[0][:500]}).encode("utf-8"))
    except OSError:
        # Known now, and the next hook will not know.
        pass
    return said[0]


def _lines(data):
    for line in data.split(b"\n")[:-1]:
        yield json.loads(line.decode("utf-8"))


def _doing(data):
    asked = [line["asking"] for line in _lines(data) if "asking" in line]
    return asked[-1] if asked else "the start"


def _by_gpu(known, lines):
    """[{"index", "bus_id", <check>: value, ..., "error", "error_code"}] of the GPUs that said anything."""
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


def _count(settings, gpus):
    """Error counters only grow: what is new since a hook last looked is reported next to them."""
    path = os.path.join(settings.node_state_dir, COUNTERS)
    kept = node_state.read_json(path)
    before = dict(kept)
    for gpu in gpus:
        now = _counters(gpu)
        if now:
            _compare(gpu, before.get(gpu["bus_id"]), now)
            kept[gpu["bus_id"]] = now
    try:
        if kept != before:
            node_state.write(path, json.dumps(kept).encode("utf-8"))
    except OSError:
        # The next look compares with an older one.
        pass


def _counters(gpu):
    now = dict(("nvlink." + name, value) for name, value in gpu.get("nvlink", {}).get("errors", {}).items())
    if "nvlink" in gpu:
        now["active"] = gpu["nvlink"]["active"]
    if "replays" in gpu.get("pcie", {}):
        now["replays"] = gpu["pcie"]["replays"]
    return now


def _compare(gpu, before, now):
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
