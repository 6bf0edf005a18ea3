"""Lays what a trial's script meets next to it, and says how the script is started among it. Edge: the trial's files.

Between protection.py, which says what is kept from the user's files, and supervisor.py, which runs it: shims before
Slurm's commands, launchers, Python and what changes files; functions of the same names for sh; the step counter.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from slurmwrap.prerun.isolation import file_effects
from slurmwrap.prerun.trial.trial_environment import read_shim_environment
from slurmwrap.prerun.trial.trial_spec import TrialSpec

_RELAYED = ("python", "python3", "torchrun", "accelerate", "deepspeed")
_LAUNCHED = (
    *("srun", "mpirun", "mpiexec", "mpiexec.hydra", "mpirun_rsh", "orterun", "prterun", "horovodrun", "jsrun", "aprun"),
    *(f"{name}.{kind}" for name in ("mpirun", "mpiexec") for kind in ("mpich", "openmpi")),
)
_REFUSED = ("sbatch", "salloc", "scancel")
_SHIMMED = (*_RELAYED, *_LAUNCHED, *_REFUSED, "scontrol")


def write_trial_files(spec: TrialSpec, environment: Mapping[str, str]) -> None:
    """Lays shims and the step counter next to the script: home directories are there in containers, ours may not be."""
    here, trial = Path(__file__).parent, Path(spec.trial_dir)
    shims, inject = trial / "shims", trial / "inject"
    for folder in (shims, inject, Path(spec.step_dir)):
        folder.mkdir(mode=0o700, exist_ok=True)
    for kind, names in (("relay", _RELAYED), ("launch", _LAUNCHED), ("refuse", _REFUSED), ("scontrol", ("scontrol",))):
        text = _embed_environment((here / "shims" / kind).read_text(encoding="utf-8"), environment)
        if kind == "launch" and os.access("/bin/bash", os.X_OK):
            # Dash drops the functions that a user exports.
            text = f"#!/bin/bash -p\n{text.partition(chr(10))[2]}"
        for name in names:
            (shims / name).write_text(text, encoding="utf-8", errors="surrogateescape")
            (shims / name).chmod(0o700)
    functions = (f'{name}() {{ "$SLURMWRAP_SHIMS/{name}" "$@"; }}' for name in _SHIMMED if "." not in name)
    (shims / "sh_env.sh").write_text("\n".join(functions) + "\n", encoding="utf-8")
    shutil.copyfile(here / "shims" / "bash_env.sh", shims / "bash_env.sh")
    for program in sorted((here.parents[1] / "inject").glob("*.py")):
        shutil.copyfile(program, inject / program.name)
    _write_touch_shims(here, shims)
    Path(spec.output).touch(mode=0o600)


def _write_touch_shims(here: Path, shims: Path) -> None:
    """The shims of rm, cp, mv, ... and the program behind them."""
    for program in ("touch_shim.py", "file_effects.py", "writable_paths.py"):
        shutil.copyfile(here.parent / "isolation" / program, shims / program)
    shutil.copyfile(here / "shims" / "redirect", shims / "redirect")
    (shims / "redirect").chmod(0o700)
    for name in file_effects.SHIMMED:
        shutil.copyfile(here / "shims" / "touch", shims / name)
        (shims / name).chmod(0o700)
    shutil.copyfile(here / "shims" / "tee", shims / "tee")
    (shims / "tee").chmod(0o700)


def _embed_environment(shim: str, environment: Mapping[str, str]) -> str:
    """The shim with the trial's variables behind its first line, for callers that cleared their environment."""
    first, _, rest = shim.partition("\n")
    known = (
        f"{name}={shlex.quote(value)}; export {name}" for name, value in read_shim_environment(environment).items()
    )
    return "\n".join((first, *known, rest))


def put_over(spec: TrialSpec, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """(source, target) of files that a mount namespace of the trial's own shows elsewhere: the real Slurm commands in
    shims/real, then our shims in their place. That reaches `env -i`, login shells and absolute paths in any language.
    """
    folders = [
        f for f in environment.get("PATH", "").split(":") if f.startswith("/") and f != environment["SLURMWRAP_SHIMS"]
    ]
    aside, over = [], []
    kept = Path(spec.trial_dir) / "shims" / "real"
    kept.mkdir(mode=0o700, exist_ok=True)
    for name in ("srun", *_REFUSED, "scontrol"):
        found = shutil.which(name, path=":".join((*folders, "/usr/bin", "/usr/local/bin", "/opt/slurm/bin")))
        if found is not None:
            # Not executable: without the mount no one takes it for the command.
            (kept / name).touch(mode=0o600)
            aside.append((os.path.realpath(found), str(kept / name)))
            over.append((str(kept.parent / name), os.path.realpath(found)))
    return [*aside, *over]


def make_command_line(spec: TrialSpec) -> tuple[str, ...]:
    """What to start: --prerun-command where there is one, else the script with its interpreter.

    sh knows nothing like BASH_ENV for scripts: functions named as the shims go before the script, which is read in
    place (`.`), so that $0, $@ and line numbers stay its own. They outlive what the script does to PATH.
    """
    if spec.command:
        return ("/bin/bash", "-c", spec.command, spec.script_name or "prerun-command", *spec.args)
    interpreter, *options, script = read_interpreter_line(Path(spec.script))
    if os.path.basename(interpreter) in ("sh", "dash", "ash", "ksh") and all(_is_plain_option(o) for o in options):  # noqa: PTH119
        read = f'. {shlex.quote(f"{spec.trial_dir}/shims/sh_env.sh")}; . "$0"'
        return (interpreter, *options, "-c", read, script, *spec.args)
    return (interpreter, *options, script, *spec.args)


def _is_plain_option(option: str) -> bool:
    return option.startswith("-") and "c" not in option and "s" not in option and not option.startswith("--")


def read_interpreter_line(script: Path) -> tuple[str, ...]:
    """What the kernel makes of the script's #! line: interpreter, at most one argument, the script.

    Done here because a home directory may be mounted noexec; slurmd's spool, where sbatch runs it, is not.
    """
    with script.open("rb") as stream:
        first = stream.readline(4096)
    if not first.startswith(b"#!"):
        raise ValueError(f"{script} does not start with #!")
    words = os.fsdecode(first[2:].strip()).split(None, 1)
    if not words:
        raise ValueError(f"{script} names no interpreter")
    return (*words, str(script))


# Neither a variable nor a reservation holds it back where it is called past the shims.
_CHANGES = re.compile(
    r"(?:^|[\s;&|(\"'`])(/[\w./+-]+/scontrol\s+(?:-\S+\s+)*(?:requeue\w*|update|u?hold|release|suspend|resume|reboot"
    r"|create|delete|shutdown|reconfigure|top|power|setdebug)\b)",
    re.MULTILINE,
)


def find_unshimmed_call(spec: TrialSpec) -> str:
    """Why a script must not run without a namespace of its own: it would change jobs by a path that no shim meets.

    bash is met by a function of that name (shims/bash_env.sh).
    """
    try:
        shell = read_interpreter_line(Path(spec.script))
        found = _CHANGES.search(spec.command or Path(spec.script).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return ""
    if found is None or spec.command or any(os.path.basename(word) == "bash" for word in shell):  # noqa: PTH119
        return ""
    return f"would call '{' '.join(found[1].split())}'; a pre-run can leave it out when it is called by its name alone"
