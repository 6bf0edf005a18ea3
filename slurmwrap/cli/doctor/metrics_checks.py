"""Whether the reconciler can write, and does write, the figures for monitoring."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from slurmwrap.cli.doctor.check_records import OK, SKIP, WARN, CheckContext, CheckResult

_NAME = "metrics"
_LATE = 5  # times metrics.every_s


def check_textfile(ground: CheckContext) -> CheckResult:
    """The file of [metrics] textfile: its library, its directory, its age."""
    wanted = ground.config.metrics.textfile
    if not wanted:
        return CheckResult(name=_NAME, state=SKIP, text="metrics.textfile is not configured")
    if importlib.util.find_spec("prometheus_client") is None:
        hint = "pip install 'slurmwrap[metrics]', or Debian's python3-prometheus-client."
        return CheckResult(
            name=_NAME, state=WARN, text="prometheus_client is not installed: nothing is written", hint=hint
        )
    path = Path(wanted)
    if not path.parent.is_dir():
        hint = f"Make it, for SlurmUser to write: install -d -o SLURMUSER {path.parent}"
        return CheckResult(name=_NAME, state=WARN, text=f"{path.parent} is not there", hint=hint)
    try:
        age = ground.now - path.stat().st_mtime
    except OSError as error:
        hint = "The reconciler says why in its log: journalctl -u slurmwrap-reconcile"
        return CheckResult(name=_NAME, state=WARN, text=f"{path}: {os.strerror(error.errno or 0)}", hint=hint)
    if age > max(60.0, _LATE * ground.config.metrics.every_s):
        hint = "Does the reconciler run, and from the configuration as it is now?"
        return CheckResult(name=_NAME, state=WARN, text=f"{path} was written {age:.0f} s ago", hint=hint)
    return CheckResult(name=_NAME, state=OK, text=f"{path}, {max(0.0, age):.0f} s old")
