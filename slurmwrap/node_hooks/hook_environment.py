"""Convert the environment variables that Slurm sets for a hook into facts. Pure.

Measured on Slurm 22.05.8; all values are text.
"""
import re


def text(environ: dict, key: str) -> str:
    """Return the variable `key` as text that every JSON parser accepts; "" when it is not set."""
    return environ.get(key.encode("ascii"), b"").decode("utf-8", "replace")


def number(environ: dict, key: str):
    """Return the variable `key` as an integer; None when it is not set or is not an integer of 64 bits."""
    try:
        found = int(environ.get(key.encode("ascii"), b"")[:24])
    except ValueError:
        return None
    # Databases and C programs hold 64 bits.
    return found if -(1 << 63) <= found < 1 << 63 else None


def job_id(environ):
    """Return the raw job id. Raise ValueError when there is none, because nothing can be recorded without it."""
    found = number(environ, "SLURM_JOB_ID")
    if found is None or not 0 < found < 1 << 32:
        raise ValueError("SLURM_JOB_ID is not a job id")
    return found


def common(environ):
    """Return the facts that Prolog and Epilog have in common (docs/records.md)."""
    return {
        "restarts": number(environ, "SLURM_JOB_RESTART_COUNT"),
        "uid": number(environ, "SLURM_JOB_UID"),
        "nodes": text(environ, "SLURM_NODELIST") or text(environ, "SLURM_JOB_NODELIST"),
        "gpus": text(environ, "SLURM_JOB_GPUS"),
    }


def ending(environ):
    """Return how the job ended, as far as Slurm reports it to the hook.

    Slurm also reports 0:0 for a job that was cancelled or reached its time limit.
    """
    return {
        "exit": text(environ, "SLURM_JOB_EXIT_CODE2"),
        "wait_status": number(environ, "SLURM_JOB_EXIT_CODE"),
        "derived": number(environ, "SLURM_JOB_DERIVED_EC"),
    }


def gpu_indices(environ):
    """Return the physical indices of the job's GPUs on this node; empty without GPUs.

    SLURM_JOB_GPUS may be a list ("0,2") or contain ranges ("0-3,6").
    """
    found = []
    for part in text(environ, "SLURM_JOB_GPUS").split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found.extend(range(int(first), min(int(last or first), int(first) + 1023) + 1))
    return found


def sluid(environ):
    """Return the job's SLUID ("s" and 13 characters of base 32), which Slurm 26.05 passes to hooks; "" without one."""
    found = text(environ, "SLURM_JOB_SLUID")
    return found if re.match(r"^s[0-9A-Z]{13}\Z", found) else ""


def first_node(node_list):
    """Return the first node of a Slurm host list, which runs the batch script: "n03" for "n[03-5,9],x"."""
    name, depth, skipping = [], 0, False
    for character in node_list:
        if character == "[":
            depth, skipping = 1, False
        elif character == "]":
            depth, skipping = 0, False
        elif depth and character in ",-":
            skipping = True
        elif not depth and character == ",":
            break
        elif not skipping:
            name.append(character)
    return "".join(name)
