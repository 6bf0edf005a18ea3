"""Edge: which PCI address a GPU of the job has, by the NVIDIA driver's own files. In a child: the driver may hang."""
import json
import os
import time

from . import child

SECONDS = 1.0


def addresses(nvidia_proc, deadline):
    """{"0": "0000:05:00.0"} by device minor, which is Slurm's GPU index; {} without the driver or when it hangs."""
    directory = os.path.join(nvidia_proc, "gpus")
    if not os.path.isdir(directory):
        return {}
    late = min(deadline, time.monotonic() + SECONDS)
    found = child.call(lambda send: send(json.dumps(_read(directory)).encode("utf-8")), late, 1 << 20)
    return json.loads(found.data.decode("utf-8")) if found.complete else {}


def _read(directory):
    found = {}
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name, "information"), "rb") as stream:
            fields = parse(stream.read(65536).decode("utf-8", "replace"))
        if fields.get("Device Minor", "").isdigit():
            found[str(int(fields["Device Minor"]))] = fields.get("Bus Location") or name
    return found


def parse(text):
    """The `Key: value` lines of /proc/driver/nvidia/gpus/*/information."""
    pairs = [line.partition(":") for line in text.splitlines()]
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}
