"""Turns hooks.json, written at installation, into the Settings of this node. Reads one file of root's."""
import json
import os
import re

KEYS = ("cluster", "spool", "node_state_dir", "munge", "munge_socket", "kernel_log", "nvidia_proc")
# Absent in files of older installations.
ADDED = {"nvidia_control": "/dev/nvidiactl", "gate": "off", "published": "", "release": ""}


class HookSettings:
    """What installation fixed. `%n` in a path has become the name of this node.

    `token`: the shim's number for this run, which the gate needs; "" where the gate is off.
    """

    # Where the hooks' files lie, as far as it is known.
    directory = ""

    def __init__(self, node, values, token=""):
        self.node = node
        self.token = token
        for key in KEYS:
            setattr(self, key, str(values[key]).replace("%n", node))
        for key, default in ADDED.items():
            setattr(self, key, str(values.get(key, default)).replace("%n", node))


def load(path, environ, token=""):
    """Settings from the JSON file at `path`. OSError, ValueError or KeyError when it cannot be used."""
    with open(path, "rb") as stream:
        values = json.loads(stream.read().decode("utf-8"))
    found = HookSettings(node_name(environ), values, token)
    found.directory = os.path.dirname(path)
    return found


def node_name(environ):
    """SLURMD_NODENAME where it can be part of a path, else "unknown"."""
    name = environ.get(b"SLURMD_NODENAME", b"").decode("utf-8", "replace")
    return name if re.match(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,250}$", name) else "unknown"
