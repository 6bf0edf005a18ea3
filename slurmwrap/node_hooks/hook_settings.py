"""Read hooks.json, which the installation writes and root owns, into the settings of this node."""
import json
import os
import re

KEYS = ("cluster", "spool", "node_state_dir", "munge", "munge_socket", "kernel_log", "nvidia_proc")
# Keys that files of older installations lack, with their defaults.
ADDED = {"nvidia_control": "/dev/nvidiactl", "gate": "off", "published": "", "release": "", "dcgmi": ""}
# Where tests and the lab have trees of their own.
ADDED["sysfs"] = "/sys/class"


class HookSettings:
    """The settings that were fixed at installation. `%n` in a path has been replaced with the name of this node.

    `token`: a random identifier that the shim creates for this run, which the gate needs; "" where the gate is off.
    """

    # Directory of the hooks' files; "" while it is not known.
    directory = ""

    def __init__(self, node, values, token=""):
        self.node = node
        self.token = token
        for key in KEYS:
            setattr(self, key, str(values[key]).replace("%n", node))
        for key, default in ADDED.items():
            setattr(self, key, str(values.get(key, default)).replace("%n", node))


def load(path, environ, token=""):
    """Return the settings from the JSON file `path`. Raise OSError, ValueError or KeyError when it cannot be used."""
    with open(path, "rb") as stream:
        values = json.loads(stream.read().decode("utf-8"))
    found = HookSettings(node_name(environ), values, token)
    found.directory = os.path.dirname(path)
    return found


def node_name(environ):
    """Return SLURMD_NODENAME when it is safe as part of a path, else "unknown"."""
    name = environ.get(b"SLURMD_NODENAME", b"").decode("utf-8", "replace")
    return name if re.match(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,250}$", name) else "unknown"
