"""Read the PCI addresses of a node's GPUs: NVIDIA's from the driver's files in /proc, AMD's from sysfs (adapter).

A child process reads those of NVIDIA, because the driver may hang.
"""
import json
import os
import time

from . import driver_guard

SECONDS = 1.0


def addresses(settings, deadline):
    """Return PCI addresses by Slurm's GPU index, which is NVIDIA's device minor: {"0": "0000:05:00.0"}.

    {} without a driver or when it hangs.
    """
    directory = os.path.join(settings.nvidia_proc, "gpus")
    if not os.path.isdir(directory):
        return _read_amd(settings)
    late = min(deadline, time.monotonic() + SECONDS)

    def look(send):
        send(json.dumps(_read(directory)).encode("utf-8"))

    found = driver_guard.ask(settings, look, late, 1 << 20, lambda _: directory)
    return json.loads(found.data.decode("utf-8")) if found.data and not found.error else {}


def has_amd(settings):
    """Return whether the node has GPUs of AMD's driver."""
    return bool(_read_amd(settings))


def _read_amd(settings):
    if not os.path.isdir(os.path.join(settings.sysfs, "drm")):
        return {}
    # Imported here, as each module takes a part of the hook's time.
    from . import amd_gpus

    return amd_gpus.addresses(settings.sysfs)


def _read(directory):
    found = {}
    for name in sorted(os.listdir(directory)):
        try:
            with open(os.path.join(directory, name, "information"), "rb") as stream:
                fields = parse(stream.read(65536).decode("utf-8", "replace"))
        except OSError:
            # The other GPUs may still be readable.
            continue
        if fields.get("Device Minor", "").isdigit():
            found[str(int(fields["Device Minor"]))] = fields.get("Bus Location") or name
    return found


def parse(text):
    """Return the `Key: value` lines of /proc/driver/nvidia/gpus/*/information as a dict."""
    pairs = [line.partition(":") for line in text.splitlines()]
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}
