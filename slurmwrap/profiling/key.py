"""Names what a profile and a passed pre-run belong to. Pure.

`derive_key` is coarse on purpose: it survives edits of the program, since its needs mostly do. `fingerprint` is exact:
one changed byte of script, code, argument or option makes another.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from hashlib import sha256

from slurmwrap.job.request import JobRequest

# Options that change what Slurm does with the job, not what the program does on one GPU.
_WITHOUT_EFFECT = frozenset(
    (
        *("begin", "comment", "deadline", "delay-boot", "dependency", "error", "exclude", "hold", "job-name"),
        *("kill-on-invalid-dep", "mail-type", "mail-user", "nice", "nodelist", "open-mode", "output", "parsable"),
        *("priority", "quiet", "requeue", "no-requeue", "switches", "test-only", "time-min", "verbose", "wait"),
    )
)
# Variables that decide which code runs; the rest of the environment changes with every login.
_CODE_VARIABLES = ("CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")


def derive_key(request: JobRequest, entry_program: str, gpu_type: str) -> str:
    """Such as "train-a100x8-3f2a91c04be7": entry program (else the script itself), GPU type, GPUs per node.

    `entry_program` is a path, relative ones from where the job runs; the script's own name means that there is none.
    """
    shape, script = request.shape, request.script
    gpus = shape.gpus_per_node or shape.gpus
    if entry_program and entry_program != script.name:
        program = posixpath.normpath(posixpath.join(request.chdir, entry_program))
    else:
        entry_program, program = script.name, sha256(script.content).hexdigest()
    readable = re.sub(r"[^a-z0-9]+", "-", posixpath.basename(entry_program).rpartition(".")[0].lower()).strip("-")
    name = readable or re.sub(r"[^a-z0-9]+", "-", entry_program.lower()).strip("-") or "job"
    kind = re.sub(r"[^a-z0-9]+", "-", gpu_type.lower()).strip("-") or "gpu"
    return f"{name[:40]}-{kind[:20]}x{gpus}-{_digest([program, script.name, gpu_type, gpus])[:12]}"


def fingerprint(request: JobRequest, files: Mapping[str, bytes]) -> str:
    """64 hexadecimal digits over script, arguments, options that matter, environment of the code, and `files`.

    `files`: the entry files' contents by path, as the pre-run would run them.
    """
    in_force = {setting.option: setting.value for setting in request.settings}
    parts = [
        sha256(request.script.content).hexdigest(),
        list(request.args),
        request.chdir,
        sorted((option, value or "") for option, value in in_force.items() if option not in _WITHOUT_EFFECT),
        [(name, request.environ.get(name, "")) for name in _CODE_VARIABLES],
        sorted((path, sha256(content).hexdigest()) for path, content in files.items()),
    ]
    return _digest(parts)


def _digest(parts: object) -> str:
    # ASCII: arguments may hold lone surrogates, from bytes that are no UTF-8
    return sha256(json.dumps(parts, ensure_ascii=True).encode("ascii")).hexdigest()
