"""Read link state and error counters of a node's InfiniBand and Ethernet ports from sysfs, before and after a job.

Each job has its own reading from its Prolog in its mark, so that jobs that share the node, and the runs of a requeued
job, do not disturb each other. Only what can be a fault of this node's port, cable or adapter is read: state, rate, and
the counters below. Counters of congestion (port_xmit_wait, port_xmit_discards, dropped packets), of the subnet manager
(VL15_dropped), of packets that another port damaged (port_rcv_remote_physical_errors) and of time-outs, which a program
that died on another node causes as well (hw_counters/local_ack_timeout_err), are not read.

Each counter of an InfiniBand port is a question to the adapter's firmware, which may hang. So a child reads, and is
abandoned at its deadline.
"""
import json
import os
import re
import time

from . import driver_guard, kernel_log

SECONDS = 1.0
LIMIT = 1 << 18
# Ports that are read, of each kind. A virtual function or a container's interface is not a port.
PORTS = 64
# Name of the counter: its largest value, at which it stays (drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR).
IB_COUNTERS = (
    ("link_downed", 0xFF),
    ("link_error_recovery", 0xFF),
    ("symbol_error", 0xFFFF),
    ("port_rcv_errors", 0xFFFF),
    ("local_link_integrity_errors", 0xF),
    ("excessive_buffer_overrun_errors", 0xF),
)
FULL = dict(IB_COUNTERS)
NET_STATISTICS = ("rx_crc_errors", "rx_errors", "tx_errors")
ETHERNET = "1"  # ARPHRD_ETHER; IP over InfiniBand has 32, and its port is read as such


def read(settings, deadline, before=None):
    """Return ({"ticks", "boot", "ports": {name: port}}, "" or why the ports could not all be read).

    A port: {"link": "infiniband" or "ethernet", "up", "state"}, and "rate" and "counters" if it is up, or was in
    `before`, an earlier reading.
    """
    earlier = before.get("ports", {}) if isinstance(before, dict) else {}
    names = find_ports(settings.sysfs)
    found = {"ticks": time.clock_gettime(time.CLOCK_MONOTONIC), "boot": kernel_log.boot(), "ports": {}}
    if not names:
        return found, ""

    def look(send):
        for link, name, path in names:
            send(json.dumps({"asking": name}).encode("utf-8") + b"\n")
            was_up = bool(earlier.get(name, {}).get("up"))
            one = (_read_infiniband if link == "infiniband" else _read_ethernet)(path, was_up)
            send(json.dumps({"name": name, "port": dict(one, link=link)}).encode("utf-8") + b"\n")

    late = min(deadline, time.monotonic() + SECONDS)
    answer = driver_guard.ask(settings, look, late, LIMIT, _find_last_name, "network")
    for line in driver_guard.parse_lines(answer.data):
        if "port" in line:
            found["ports"][line["name"]] = line["port"]
    return found, answer.error


def find_ports(sysfs):
    """Return [(link, name, path)] of the physical ports, e.g. ("infiniband", "mlx5_0/1", path of its directory)."""
    found = []
    for adapter in _list_directory(os.path.join(sysfs, "infiniband")):
        device = os.path.join(sysfs, "infiniband", adapter)
        if os.path.exists(os.path.join(device, "device", "physfn")):
            continue
        for number in _list_directory(os.path.join(device, "ports")):
            path = os.path.join(device, "ports", number)
            # A port with Ethernet (RoCE) is read by its network interface: its InfiniBand counters stay at 0.
            if _read(os.path.join(path, "link_layer")) == "InfiniBand":
                found.append(("infiniband", "%s/%s" % (adapter, number), path))
    for name in _list_directory(os.path.join(sysfs, "net")):
        path = os.path.join(sysfs, "net", name)
        device = os.path.join(path, "device")
        if os.path.exists(device) and not os.path.exists(os.path.join(device, "physfn")):
            # An interface on USB leads to the node's management controller.
            if _read(os.path.join(path, "type")) == ETHERNET and "/usb" not in os.path.realpath(device):
                found.append(("ethernet", name, path))
    return found[:PORTS]


def _list_directory(path):
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _read_infiniband(path, was_up):
    state = _read(os.path.join(path, "state")).partition(":")[2].strip()
    up = state.startswith("ACTIVE")
    if not up and not was_up:
        return {"up": False, "state": state}
    counters = dict((name, _read(os.path.join(path, "counters", name))) for name, _ in IB_COUNTERS)
    return {"up": up, "state": state, "rate": _read(os.path.join(path, "rate")), "counters": _parse_numbers(counters)}


def _read_ethernet(path, was_up):
    state = _read(os.path.join(path, "operstate"))
    up = state in ("up", "unknown")
    if not up and not was_up:
        return {"up": False, "state": state}
    counters = dict((name, _read(os.path.join(path, "statistics", name))) for name in NET_STATISTICS)
    # Linux 4.16 and later; before, only the changes in both directions are counted.
    counters["carrier_down_count"] = _read(os.path.join(path, "carrier_down_count"))
    found = _parse_numbers(counters)
    changes = _parse_numbers({"": _read(os.path.join(path, "carrier_changes"))})
    if "carrier_down_count" not in found and changes:
        found["carrier_down_count"] = changes[""] // 2
    # -1: unknown, as of virtual adapters. The file of an interface that is down cannot be read.
    speed = _read(os.path.join(path, "speed")) if up else ""
    return {"up": up, "state": state, "rate": speed + " Mb/s" if speed.isdigit() else "", "counters": found}


def _parse_numbers(texts):
    """Return the counters that are numbers: a firmware without them prints "N/A (no PMA)"."""
    return dict((name, int(text)) for name, text in texts.items() if text.isdigit())


def _read(path):
    # Without a buffered stream it takes half the time, and a node may have hundreds of such files.
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 256).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _find_last_name(data):
    return "the counters of %s" % driver_guard.find_last_call(data, "a port")


def compare(before, now, complete=True):
    """Return the fact `network` (docs/records.md) of the time between two readings; {} without an earlier one.

    A port that was down before is left out: a second port without a cable is common. `complete`: all ports that exist
    are in `now`.
    """
    if not isinstance(before, dict) or not isinstance(before.get("ports"), dict) or before.get("boot") != now["boot"]:
        return {}
    changed = []
    for name in sorted(before["ports"]):
        was, present = before["ports"][name], now["ports"].get(name)
        if not was.get("up"):
            continue
        if present is not None:
            found = _compare_port(was, present)
        else:
            # A network interface may have been renamed, or be in a container.
            found = {"gone": True} if complete and was["link"] == "infiniband" else {}
        if found:
            changed.append(dict(found, port=name, link=was["link"]))
    return {"ports": len(now["ports"]), "s": round(now["ticks"] - before["ticks"], 1), "changed": changed}


def _compare_port(was, now):
    found = _compare_counters(was["counters"], now["counters"])
    if not now["up"]:
        found.update(state=now["state"] or "unknown", was=was["state"])
    elif 0 < _parse_speed(now["rate"]) < _parse_speed(was["rate"]):
        found.update(rate=now["rate"], was_rate=was["rate"])
    return found


def _compare_counters(was, now):
    new, reset, full = {}, [], []
    for name, value in sorted(now.items()):
        earlier = was.get(name, value)
        if value < earlier:
            # It was set to 0 meanwhile, or it wrapped: at least `value` are new.
            reset.append(name)
            earlier = 0
        if value > earlier:
            new[name] = value - earlier
        if value == FULL.get(name):
            full.append(name)
    found = dict((key, value) for key, value in (("new", new), ("reset", reset), ("full", full)) if value)
    if not new and not reset:
        return {}
    downs = [now[name] for name in ("link_downed", "carrier_down_count") if new.get(name)]
    return dict(found, downs=downs[0]) if downs else found


def _parse_speed(rate):
    """Return the number of "200 Gb/sec (4X HDR)" or "25000 Mb/s"; 0 when it is unknown."""
    found = re.match(r"[\d.]+", rate)
    return float(found.group(0)) if found else 0.0
