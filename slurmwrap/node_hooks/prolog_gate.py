"""The Prolog gate, off until switched on: refuses a node on which a conclusive fault stands. Any doubt: the job starts.

It reads the standing faults (written by root on this node, or published by the reconciler) and the kernel lines that
are new since it last looked. NVML is asked only on suspicion. And it refuses only while a fresh permit of the
reconciler says that the cap on nodes taken out is not used up: a fault of slurmwrap's must not drain a cluster.
"""
import json
import os
import stat
import time

from . import deadline_child, nvml, node_state
from . import kernel_log
from . import kernel_log

READ_S, NVML_S = 1.0, 3.0
FILE = 1 << 20
PERMIT, FAULTS, KEPT = "gate-permit.json", "faults.json", "gate.json"
# CLOCK_BOOTTIME, which Python 3.6 does not name.
BOOTTIME = 7
LONGEST_S = 3600  # a permit that claims to hold longer is no permit: one of the clocks is wrong
# Xids after which NVIDIA's catalog or the driver asks for a reset, a reboot or service.
SUSPECT = frozenset((46, 48, 61, 62, 64, 74, 79, 95, 109, 110, 119, 120, 123, 136, 140, 143, 151, 154, 155, 156, 158))


def look(settings, own, deadline):
    """Fact `gate`, {} where nothing is suspected: {"refused", "cause", "text", "source", "gpu", "since", "why_not"}.

    `own`: [(index, PCI address or None)] of the job's GPUs.
    """
    addresses = [address for _, address in own if address]
    shared = _shared(settings, min(deadline, time.monotonic() + READ_S))
    local = node_state.read_json(os.path.join(node_state.ensure(settings.node_state_dir), FAULTS))
    faults = _faults(local, settings.node, "node") + _faults(shared.get("faults"), settings.node, "published")
    now, booted = time.time(), time.time() - time.clock_gettime(BOOTTIME)
    faults = [fault for fault in faults if _concerns(fault, addresses) and fault["since"] <= now + 60]
    standing = [fault for fault in faults if fault["since"] >= booted]
    found = standing[0] if standing else _asked(settings, own, bool(faults), deadline)
    if not found:
        return {}
    why_not = _no_permit(shared.get("permit"), now)
    return dict(found, refused=not why_not, **({"why_not": why_not} if why_not else {}))


def _shared(settings, deadline):
    """{"permit", "faults"} of the published directory; {} when it does not answer. The directory may be remote."""
    if not settings.published:
        return {}

    def read(send):
        trusted = (0, os.stat(settings.spool).st_uid)
        found = {"permit": believed(settings.published, PERMIT, trusted)}
        found["faults"] = believed(settings.published, FAULTS, trusted)
        send(json.dumps(found).encode("utf-8"))

    answer = deadline_child.call(read, deadline, 4 * FILE)
    return json.loads(answer.data.decode("utf-8")) if answer.complete else {}


def believed(directory, name, trusted):
    """The JSON object in a regular file that only `trusted` uids can write, in a directory of theirs; else None."""
    try:
        if not _theirs(os.stat(directory), trusted):
            return None
        descriptor = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or not _theirs(found, trusted) or found.st_size > FILE:
                return None
            content = json.loads(stream.read(FILE).decode("utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("version") == 1 else None


def _theirs(found, trusted):
    return found.st_uid in trusted and not found.st_mode & 0o022


def _no_permit(permit, now):
    """Why the permit does not hold, "" when it does."""
    if not isinstance(permit, dict):
        return "no permit"
    until = permit.get("until")
    if not isinstance(until, (int, float)) or not now < until < now + LONGEST_S:
        return "the permit is stale"
    return "" if permit.get("allowed") is True else "the cap on nodes is used up"


def _faults(content, node, source):
    found = []
    if not isinstance(content, dict) or content.get("version") != 1 or not isinstance(content.get("faults"), list):
        return found
    for fault in content["faults"]:
        if not isinstance(fault, dict) or fault.get("node") != node or not isinstance(fault.get("cause"), str):
            continue
        if isinstance(fault.get("since"), (int, float)):
            one = {"cause": fault["cause"][:100], "text": str(fault.get("text", ""))[:500], "source": source}
            one.update({"since": fault["since"], "gpu": str(fault.get("gpu") or "")[:40]})
            found.append(one)
    return found


def _concerns(fault, addresses):
    """A fault of one GPU stands only against jobs that got that GPU."""
    return not fault["gpu"] or kernel_log.bus_address(fault["gpu"]) in _tuples(addresses)


def _tuples(addresses):
    return [kernel_log.bus_address(address) for address in addresses]


def _asked(settings, own, told, deadline):
    """What kernel and NVML say of the job's GPUs. `told`: a fault of before the last boot may stand still."""
    lines, suspects = _kernel(settings, deadline)
    fallen = nvml.fallen(settings, lines)
    addresses = [address for _, address in own if address]
    ours = [one for one in suspects if one["gpu"] and kernel_log.bus_address(one["gpu"]) in _tuples(addresses)]
    lost = [one for one in ours if one["cause"] == "xid_79"]
    if lost:
        return lost[0]
    if not own or fallen or not (ours or told):
        return {}
    facts = nvml.states(settings, own, min(deadline, time.monotonic() + NVML_S))
    found = [_conclusive(gpu) for gpu in facts.get("gpu", ())]
    if not facts.get("gpu_error"):
        _forget(settings, suspects, ours)
    return next((one for one in found if one), {})


def _conclusive(gpu):
    """NVIDIA's own statement that this GPU needs a reset, a reboot or to be replaced; {} when it gives none."""
    action = gpu.get("recovery_action", "none")
    if gpu.get("error_code") == 15:
        cause, text = "gpu_lost", "the GPU is lost"
    elif action != "none":
        cause, text = "recovery_action", "it asks for recovery action %s" % action
    elif gpu.get("remapped_rows", {}).get("failed"):
        cause, text = "row_remap_failed", "a row could not be remapped"
    else:
        return {}
    return {"cause": cause, "text": text, "source": "nvml", "since": int(time.time()), "gpu": gpu["bus_id"]}


def _kernel(settings, deadline):
    """(lines since the last look, or since boot, [suspect]); suspects are remembered until the next boot."""
    path = os.path.join(settings.node_state_dir, KEPT)
    kept = node_state.read_json(path)
    boot = kernel_log.boot()
    suspects = kept.get("suspects", []) if kept.get("boot") == boot else []
    mark = kept.get("mark") or {"source": settings.kernel_log, "boot": ""}
    now = kernel_log.mark(settings.kernel_log)
    lines = kernel_log.since(settings.kernel_log, mark, None, deadline).lines if _readable(settings, kept) else []
    suspects = (suspects + [one for one in map(_suspect, lines) if one])[-64:]
    node_state.write(path, json.dumps({"boot": boot, "mark": now, "suspects": suspects}).encode("utf-8"))
    return lines, suspects


def _readable(settings, kept):
    """A file may hold lines of many boots: without a mark in it nothing is known of their age."""
    return bool(kept.get("mark")) or not settings.kernel_log.startswith("file:")


def _suspect(line):
    text, at = line
    code = 79 if kernel_log.fell_off(text) else kernel_log.xid(text)
    if code not in SUSPECT:
        return None
    since = int(at if at is not None else time.time())
    return {"cause": "xid_%d" % code, "text": text[:500], "source": "kernel", "since": since, "gpu": _gpu_of(text)}


def _gpu_of(text):
    address = kernel_log.bus_address(text)
    return "%04x:%02x:%02x" % address if address else ""


def _forget(settings, suspects, asked):
    """NVML answered for these GPUs: its word is newer than those lines."""
    path = os.path.join(settings.node_state_dir, KEPT)
    kept = dict(node_state.read_json(path), suspects=[one for one in suspects if one not in asked])
    node_state.write(path, json.dumps(kept).encode("utf-8"))


def refuse(settings):
    """Tells the shim, which alone can exit 1: by the word that it gave this run of the hook."""
    path = os.path.join(node_state.ensure(settings.node_state_dir), "%s.refused" % settings.token)
    node_state.write(path, b"")
