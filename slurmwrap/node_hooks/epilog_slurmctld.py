"""Turns a record of the EpilogSlurmctld shim into an observation's facts. Pure; read by the spool, not by the hook.

The shim writes the raw values and starts no Python (a budget of 10 ms on the controller), so they are taken apart here.
"""
from . import hook_environment

HEADER = b"slurmwrap-environment-1"
END = b"end"


def parse(data: bytes) -> dict:
    """The variables of one record, {} unless it is whole: header, `name=value` items and `end`, each ended by NUL."""
    items = data.split(b"\0")
    if len(items) < 3 or items[0] != HEADER or items[-2:] != [END, b""]:
        return {}
    return dict(item.split(b"=", 1) for item in items[1:-2] if b"=" in item)


def facts(environ: dict) -> dict:
    """The facts of context `epilog_slurmctld` (docs/records.md)."""
    found = hook_environment.common(environ)
    del found["gpus"]
    found.update(hook_environment.ending(environ))
    for name in ("user", "name", "account", "partition", "work_dir"):
        value = hook_environment.text(environ, "SLURM_JOB_" + name.upper())
        found[name] = "" if value == "(null)" else value
    for name in ("array_job_id", "array_task_id"):
        found[name] = hook_environment.number(environ, "SLURM_" + name.upper())
    return found
