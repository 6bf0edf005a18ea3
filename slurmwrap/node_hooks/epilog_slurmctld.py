"""Convert a record of the EpilogSlurmctld shim into the facts of an observation. Pure.

The shim writes raw values and starts no Python, since its budget on the controller is 10 ms. The reader of the spool
calls this module to parse them; the hook does not.
"""
from . import hook_environment

HEADER = b"slurmwrap-environment-1"
END = b"end"


def parse(data: bytes) -> dict:
    """Return the variables of one record; {} unless the record is complete.

    A complete record is a header, `name=value` items and `end`, each terminated by NUL.
    """
    items = data.split(b"\0")
    if len(items) < 3 or items[0] != HEADER or items[-2:] != [END, b""]:
        return {}
    return dict(item.split(b"=", 1) for item in items[1:-2] if b"=" in item)


def facts(environ: dict) -> dict:
    """Return the facts of context `epilog_slurmctld` (docs/records.md)."""
    found = hook_environment.common(environ)
    del found["gpus"]
    found.update(hook_environment.ending(environ))
    for name in ("user", "name", "account", "partition", "work_dir"):
        value = hook_environment.text(environ, "SLURM_JOB_" + name.upper())
        found[name] = "" if value == "(null)" else value
    for name in ("array_job_id", "array_task_id"):
        found[name] = hook_environment.number(environ, "SLURM_" + name.upper())
    return found
