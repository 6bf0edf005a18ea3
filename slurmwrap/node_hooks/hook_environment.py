"""Turns the environment Slurm gives a hook into facts. Pure. Measured on Slurm 22.05.8; all values are text."""
import re


def text(environ: dict, key: str) -> str:
    """The value of `key` as text that any JSON reader takes; "" when unset."""
    return environ.get(key.encode("ascii"), b"").decode("utf-8", "replace")


def number(environ: dict, key: str):
    """The value of `key` as an integer, None when it is none."""
    try:
        found = int(environ.get(key.encode("ascii"), b"")[:24])
    except ValueError:
        return None
    # What a database and a C program can hold.
    return found if -(1 << 63) <= found < 1 << 63 else None


def job_id(environ):
    """The raw job id. ValueError when there is none: then nothing can be recorded."""
    found = number(environ, "SLURM_JOB_ID")
    if found is None or not 0 < found < 1 << 32:
        raise ValueError("SLURM_JOB_ID is not a job id")
    return found


def common(environ):
    """Facts of both node hooks (docs/records.md)."""
    return {
        "restarts": number(environ, "SLURM_JOB_RESTART_COUNT"),
        "uid": number(environ, "SLURM_JOB_UID"),
        "nodes": text(environ, "SLURM_NODELIST") or text(environ, "SLURM_JOB_NODELIST"),
        "gpus": text(environ, "SLURM_JOB_GPUS"),
    }


def ending(environ):
    """How the job ended, as far as Slurm says at this moment: 0:0 also stands for cancelled and time limit."""
    return {
        "exit": text(environ, "SLURM_JOB_EXIT_CODE2"),
        "wait_status": number(environ, "SLURM_JOB_EXIT_CODE"),
        "derived": number(environ, "SLURM_JOB_DERIVED_EC"),
    }


def gpu_indices(environ):
    """Physical indices of the job's GPUs on this node: "0,2" and "0-3,6" both occur. Empty without GPUs."""
    found = []
    for part in text(environ, "SLURM_JOB_GPUS").split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found.extend(range(int(first), min(int(last or first), int(first) + 1023) + 1))
    return found


def sluid(environ):
    """The job's SLUID, which Slurm 26.05 gives hooks ("s" and 13 characters of base 32); "" where there is none."""
    found = text(environ, "SLURM_JOB_SLUID")
    return found if re.match(r"^s[0-9A-Z]{13}\Z", found) else ""


def first_node(node_list):
    """The first node of Slurm's host list: "n[03-5,9],x" gives "n03", where the batch script ran."""
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
