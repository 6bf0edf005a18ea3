"""A node whose Prolog gate is on, for the tests of the gate."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hook_site import Site, add_gpu, append, only

XID_79 = "NVRM: Xid (PCI:0000:05:00): 79, pid=7, name=python, GPU has fallen off the bus."
XID_95 = "NVRM: Xid (PCI:0000:05:00): 95, pid=7, name=python, Uncontained memory error"


@dataclass
class Gate:
    """A node whose gate is on, with the directory that the reconciler publishes in."""

    site: Site
    published: Path

    def permit(self, **changed: Any) -> Path:
        content = {"version": 1, "until": time.time() + 300, "allowed": True}
        return self.write("gate-permit.json", {**content, **changed})

    def fault(self, **changed: Any) -> Path:
        fault = {"node": "n0", "cause": "gpu_lost", "since": time.time() - 5, "text": "GPU 0 is lost"}
        return self.write("faults.json", {"version": 1, "at": time.time(), "faults": [{**fault, **changed}]})

    def write(self, name: str, content: Any) -> Path:
        path = self.published / name
        path.write_text(json.dumps(content))
        path.chmod(0o644)
        return path

    def prolog(self, refused: bool, **changed: str) -> dict[str, Any]:
        """Runs the Prolog, which must refuse the node or not, and returns fact `gate`."""
        self.site.hook(self.site.files.prolog, int(refused), **changed)
        fact: dict[str, Any] = dict(only(self.site.arrived()).facts.get("gate", {}))
        fact.pop("since", None)
        assert fact.get("refused", False) == refused
        return fact


def enable_gate(site: Site, library: str) -> Gate:
    published = site.root / "published"
    published.mkdir(mode=0o755)
    site.setting("gate", "on")
    site.setting("published", str(published))
    site.setting("nvidia_control", "/dev/null")
    site.edit(site.files.prolog, "gate=off", "gate=on")
    for minor, address in enumerate(("0000:05:00.0", "0000:06:00.0", "0000:07:00.0")):
        add_gpu(site, minor, address)
    site.environ["LD_LIBRARY_PATH"] = library
    append(site.kernel_log, "before")
    made = Gate(site=site, published=published)
    assert made.prolog(False, SLURM_JOB_ID="40") == {}  # leaves the gate's mark in the kernel log
    return made
