"""The Prolog gate: refuses a node that has a conclusive fault. It is off by default; in doubt, the job starts.

It reads the known faults (written by root on this node, or published by the reconciler) and the kernel lines that are
new since it last looked. NVML is asked only on suspicion. The gate refuses a node only while a fresh permit of the
reconciler states that the cap on nodes taken out of service is not used up: an error in slurmwrap must not drain a
cluster.
"""
import json
import os
import stat
import time

from . import deadline_child, nvml, node_state
from . import kernel_log

READ_S, NVML_S = 1.0, 3.0
FILE = 1 << 20
PERMIT, FAULTS, KEPT = "gate-permit.json", "faults.json", "gate.json"
# CLOCK_BOOTTIME, for which Python 3.6 has no name.
BOOTTIME = 7
# A permit that is valid for longer is not accepted: one of the clocks must be wrong.
LONGEST_S = 3600
# Xids for which NVIDIA's catalog or the driver requires a reset, a reboot or service.
SUSPECT = frozenset((46, 48, 61, 62, 64, 74, 79, 95, 109, 110, 119, 120, 123, 136, 140, 143, 151, 154, 155, 156, 158))


def look(settings, own, deadline):
    """Return the fact `gate`; {} when no fault was found.

    Its keys: "refused", "cause", "text", "source", "gpu", "since", and "why_not" when the node was not refused.
    `own`: [(index, PCI address or None)] of the job's GPUs.
    """
    addresses = [address for _, address in own if address]
    shared = _read_published(settings, min(deadline, time.monotonic() + READ_S))
    local = node_state.read_json(os.path.join(node_state.ensure(settings.node_state_dir), FAULTS))
    faults = _valid_faults(local, settings.node, "node")
    faults += _valid_faults(shared.get("faults"), settings.node, "published")
    now, booted = time.time(), time.time() - time.clock_gettime(BOOTTIME)
    faults = [fault for fault in faults if _concerns(fault, addresses) and fault["since"] <= now + 60]
    # The reboot may have cleared a fault from before it. Such a fault is only a suspicion that NVML has to confirm.
    standing = [fault for fault in faults if fault["since"] >= booted]
    found = standing[0] if standing else _ask_kernel_and_nvml(settings, own, bool(faults), deadline)
    if not found:
        return {}
    why_not = _why_no_permit(shared.get("permit"), now)
    return dict(found, refused=not why_not, **({"why_not": why_not} if why_not else {}))


def _read_published(settings, deadline):
    """Return {"permit", "faults"} from the published directory; {} when it cannot be read in time.

    A child reads it, because the directory may be on a remote file system that hangs.
    """
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
    """Return the JSON object in the file `name`; None unless only `trusted` uids can write file and directory."""
    try:
        if not _only_writable_by(os.stat(directory), trusted):
            return None
        descriptor = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or not _only_writable_by(found, trusted) or found.st_size > FILE:
                return None
            content = json.loads(stream.read(FILE).decode("utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("version") == 1 else None


def _only_writable_by(found, trusted):
    return found.st_uid in trusted and not found.st_mode & 0o022


def _why_no_permit(permit, now):
    """Return why the permit is not valid; "" when it is."""
    if not isinstance(permit, dict):
        return "no permit"
    until = permit.get("until")
    if not isinstance(until, (int, float)) or not now < until < now + LONGEST_S:
        return "the permit is stale"
    return "" if permit.get("allowed") is True else "the cap on nodes is used up"


def _valid_faults(content, node, source):
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
    """Return whether a fault matters for the job: a fault of one GPU matters only for jobs that were given that GPU."""
    return not fault["gpu"] or kernel_log.bus_address(fault["gpu"]) in _bus_addresses(addresses)


def _bus_addresses(addresses):
    return [kernel_log.bus_address(address) for address in addresses]


def _ask_kernel_and_nvml(settings, own, suspected, deadline):
    """Return the fault that the kernel log or NVML reports for the job's GPUs; {} without one.

    `suspected`: a fault from before the last boot was reported and may still be there. If a GPU of the job fell off the
    bus (Xid 79), that is conclusive by itself. Otherwise NVML decides, unless another GPU of the node fell off the bus:
    then NVML may hang and is not asked.
    """
    lines, suspects = _read_kernel(settings, deadline)
    fallen = nvml.fallen(settings, lines)
    addresses = [address for _, address in own if address]
    own_buses = _bus_addresses(addresses)
    concerning = [fault for fault in suspects if fault["gpu"] and kernel_log.bus_address(fault["gpu"]) in own_buses]
    lost = [fault for fault in concerning if fault["cause"] == "xid_79"]
    if lost:
        return lost[0]
    if not own or fallen or not (concerning or suspected):
        return {}
    facts = nvml.states(settings, own, min(deadline, time.monotonic() + NVML_S))
    found = [conclusive_fault(gpu) for gpu in facts.get("gpu", ())]
    if not facts.get("gpu_error"):
        _forget_suspects(settings, suspects, concerning)
    return next((fault for fault in found if fault), {})


def conclusive_fault(gpu):
    """Return NVIDIA's own statement that this GPU needs a reset, a reboot or to be replaced; {} without one."""
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


def _read_kernel(settings, deadline):
    """Return (lines since the last look, or since boot; [suspect]). Suspects are remembered until the next boot."""
    path = os.path.join(settings.node_state_dir, KEPT)
    kept = node_state.read_json(path)
    boot = kernel_log.boot()
    suspects = kept.get("suspects", []) if kept.get("boot") == boot else []
    mark = kept.get("mark") or {"source": settings.kernel_log, "boot": ""}
    now = kernel_log.mark(settings.kernel_log)
    lines = kernel_log.since(settings.kernel_log, mark, None, deadline).lines if _is_age_known(settings, kept) else []
    suspects = (suspects + [one for one in map(_suspect, lines) if one])[-64:]
    node_state.write(path, json.dumps({"boot": boot, "mark": now, "suspects": suspects}).encode("utf-8"))
    return lines, suspects


def _is_age_known(settings, kept):
    """Return whether the age of the lines is known. A file may hold lines of many boots, so it needs a mark."""
    return bool(kept.get("mark")) or not settings.kernel_log.startswith("file:")


def _suspect(line):
    text, at = line
    code = 79 if kernel_log.fell_off(text) else kernel_log.xid(text)
    if code not in SUSPECT:
        return None
    since = int(at if at is not None else time.time())
    return {"cause": "xid_%d" % code, "text": text[:500], "source": "kernel", "since": since, "gpu": _gpu_in_line(text)}


def _gpu_in_line(text):
    address = kernel_log.bus_address(text)
    return "%04x:%02x:%02x" % address if address else ""


def _forget_suspects(settings, suspects, asked):
    """Forget the kernel's suspicions about the GPUs for which NVML answered: its answer is newer than those lines."""
    path = os.path.join(settings.node_state_dir, KEPT)
    kept = dict(node_state.read_json(path), suspects=[one for one in suspects if one not in asked])
    node_state.write(path, json.dumps(kept).encode("utf-8"))


def refuse(settings):
    """Request exit code 1 from the shim, by a file that is named after the token that the shim gave this run."""
    path = os.path.join(node_state.ensure(settings.node_state_dir), "%s.refused" % settings.token)
    node_state.write(path, b"")
