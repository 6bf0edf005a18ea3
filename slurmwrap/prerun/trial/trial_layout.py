"""Write the shims and the step counter to the trial's directory, and make the command line of the script (adapter).

Shims stand in for Slurm's commands, launchers, Python and commands that change files; for sh there are functions of the
same names. protection.py decides what is protected; supervisor.py runs the script.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurmwrap.prerun.isolation import file_effects
from slurmwrap.prerun.static.container_calls import RUNTIMES
from slurmwrap.prerun.trial.container_rewrite import ENTER, INSIDE
from slurmwrap.prerun.trial.trial_environment import read_shim_environment
from slurmwrap.prerun.trial.trial_spec import TrialSpec

_RELAYED = ("python", "python3", "torchrun", "accelerate", "deepspeed")
_LAUNCHED = (
    *("srun", "mpirun", "mpiexec", "mpiexec.hydra", "mpirun_rsh", "orterun", "prterun", "horovodrun", "jsrun", "aprun"),
    *(f"{name}.{kind}" for name in ("mpirun", "mpiexec") for kind in ("mpich", "openmpi")),
)
# The shim of env, and what it starts.
_ENVIRONMENT = ("env", "with_counter")
_REFUSED = ("sbatch", "salloc", "scancel")
# Programs that send something to other machines; those that also change files have the shim `touch`.
_REMOTE = (
    *("ssh", "sftp", "mail", "mailx", "sendmail", "mutt"),
    *("gcloud", "az", "azcopy", "s3cmd", "s5cmd", "globus", "hf", "huggingface-cli", "dvc"),
)
_CONTAINING = tuple(RUNTIMES)
_SHIMMED = (*_RELAYED, *_LAUNCHED, *_REFUSED, "scontrol", *_CONTAINING)


def write_trial_files(spec: TrialSpec, environment: Mapping[str, str]) -> None:
    """Write shims and the step counter to the trial's directory.

    They are copied because containers usually mount home directories but may not contain slurmwrap's installation.
    """
    package_dir, trial = Path(__file__).parent, Path(spec.trial_dir)
    shims, inject = trial / "shims", trial / "inject"
    for folder in (shims, inject, Path(spec.step_dir)):
        folder.mkdir(mode=0o700, exist_ok=True)
    kinds = {"relay": _RELAYED, "launch": _LAUNCHED, "refuse": _REFUSED, "scontrol": ("scontrol",), "remote": _REMOTE}
    kinds |= {name: (name,) for name in _ENVIRONMENT}
    for kind, names in {**kinds, "contain": _CONTAINING}.items():
        text = _embed_environment((package_dir / "shims" / kind).read_text(encoding="utf-8"), environment)
        if kind in ("launch", "contain") and os.access("/bin/bash", os.X_OK):
            # dash drops functions that the user exports, so use bash if it is installed.
            text = f"#!/bin/bash -p\n{text.partition(chr(10))[2]}"
        for name in names:
            (shims / name).write_text(text, encoding="utf-8", errors="surrogateescape")
            (shims / name).chmod(0o700)
    _write_functions(shims, _SHIMMED)
    for name in ("bash_env.sh", "remote_check"):
        shutil.copyfile(package_dir / "shims" / name, shims / name)
    for program in sorted((package_dir.parents[1] / "inject").glob("*.py")):
        shutil.copyfile(program, inject / program.name)
    _write_touch_shims(package_dir, shims)
    _write_inside_shims(package_dir / "shims", trial / INSIDE)
    Path(spec.output).touch(mode=0o600)


def _write_touch_shims(package_dir: Path, shims: Path) -> None:
    """Write the shims of rm, cp, mv, ... and the program that they call."""
    for program in ("touch_shim.py", "file_effects.py", "writable_paths.py"):
        shutil.copyfile(package_dir.parent / "isolation" / program, shims / program)
    shutil.copyfile(package_dir / "shims" / "redirect", shims / "redirect")
    (shims / "redirect").chmod(0o700)
    for name in file_effects.SHIMMED:
        shutil.copyfile(package_dir / "shims" / "touch", shims / name)
        (shims / name).chmod(0o700)
    shutil.copyfile(package_dir / "shims" / "tee", shims / "tee")
    (shims / "tee").chmod(0o700)


def _write_inside_shims(shims: Path, folder: Path) -> None:
    """Write the shims for the inside of containers. They need a shell, and nothing of slurmwrap's installation."""
    folder.mkdir(mode=0o700, exist_ok=True)
    kinds = {"relay": _RELAYED, "launch_inside": _LAUNCHED, "refuse": _REFUSED, "enter": (ENTER,)}
    kinds["remote"] = (*_REMOTE, "scp", "curl", "wget", "aria2c", "rsync", "aws", "gsutil", "rclone", "git")
    for kind, names in {**kinds, **{name: (name,) for name in ("bash_env.sh", "remote_check")}}.items():
        for name in names:
            shutil.copyfile(shims / kind, folder / name)
            (folder / name).chmod(0o700)
    _write_functions(folder, (*_RELAYED, *_LAUNCHED, *_REFUSED))


def _write_functions(folder: Path, names: Sequence[str]) -> None:
    functions = (f'{name}() {{ "$SLURMWRAP_SHIMS/{name}" "$@"; }}' for name in names if not set(".-") & set(name))
    (folder / "sh_env.sh").write_text("\n".join(functions) + "\n", encoding="utf-8")


def _embed_environment(shim: str, environment: Mapping[str, str]) -> str:
    """Return the shim with the trial's variables after its first line, for callers that cleared their environment."""
    first, _, rest = shim.partition("\n")
    known = (
        f"{name}={shlex.quote(value)}; export {name}" for name, value in read_shim_environment(environment).items()
    )
    return "\n".join((first, *known, rest))


def put_over(spec: TrialSpec, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the bind mounts (source, target) for a mount namespace of the trial.

    First the real Slurm commands are mounted in shims/real, then the shims in place of the commands. So the shims are
    also called with `env -i`, from login shells, and by absolute paths in any language.
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
            # Not executable, so that it is not taken for the command if the mount fails.
            (kept / name).touch(mode=0o600)
            aside.append((os.path.realpath(found), str(kept / name)))
            over.append((str(kept.parent / name), os.path.realpath(found)))
    return [*aside, *over]


def make_command_line(spec: TrialSpec) -> tuple[str, ...]:
    """Return the command line of the trial: --prerun-command if given, else the script with its interpreter.

    If the job's script runs in a container, the shim of srun starts it there.

    sh has no equivalent of BASH_ENV for scripts. So functions with the names of the shims are defined before the
    script, which is then read by `.`, so that $0, $@ and line numbers are those of the script. The functions still
    apply if the script changes PATH.
    """
    container: tuple[str, ...] = ()
    if spec.container:
        cpus = (f"--cpus-per-task={spec.cpus}",) if spec.cpus else ()
        container = (f"{spec.trial_dir}/shims/srun", *spec.container, *cpus)
    if spec.command:
        return (*container, "/bin/bash", "-c", spec.command, spec.script_name or "prerun-command", *spec.args)
    interpreter, *options, script = read_interpreter_line(Path(spec.script))
    if os.path.basename(interpreter) in ("sh", "dash", "ash", "ksh") and all(_is_plain_option(o) for o in options):  # noqa: PTH119
        functions = f"{spec.trial_dir}/{INSIDE if spec.container else 'shims'}/sh_env.sh"
        read = f'. {shlex.quote(functions)}; . "$0"'
        return (*container, interpreter, *options, "-c", read, script, *spec.args)
    return (*container, interpreter, *options, script, *spec.args)


def _is_plain_option(option: str) -> bool:
    return option.startswith("-") and "c" not in option and "s" not in option and not option.startswith("--")


def read_interpreter_line(script: Path) -> tuple[str, ...]:
    """Return the command line that the kernel makes from the #! line: interpreter, at most one argument, the script.

    The kernel is not used for this because a home directory may be mounted noexec. slurmd's spool, from which
    Slurm runs batch scripts, is not. Raise ValueError if there is no #! line.
    """
    with script.open("rb") as stream:
        first = stream.readline(4096)
    if not first.startswith(b"#!"):
        raise ValueError(f"{script} does not start with #!")
    words = os.fsdecode(first[2:].strip()).split(None, 1)
    if not words:
        raise ValueError(f"{script} names no interpreter")
    return (*words, str(script))


# scontrol calls by absolute path that change something. No variable or reservation makes Slurm refuse them.
_CHANGING_CALL = re.compile(
    r"(?:^|[\s;&|(\"'`])(/[\w./+-]+/scontrol\s+(?:-\S+\s+)*(?:requeue\w*|update|u?hold|release|suspend|resume|reboot"
    r"|create|delete|shutdown|reconfigure|top|power|setdebug)\b)",
    re.MULTILINE,
)


def find_unshimmed_call(spec: TrialSpec) -> str:
    """Return why the script must not run without a mount namespace: it changes jobs by an absolute path; "" if not.

    In bash such a call is intercepted by a function of that name (shims/bash_env.sh), so bash scripts are exempt.
    """
    try:
        shell = read_interpreter_line(Path(spec.script))
        found = _CHANGING_CALL.search(spec.command or Path(spec.script).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return ""
    if found is None or spec.command or any(os.path.basename(word) == "bash" for word in shell):  # noqa: PTH119
        return ""
    return f"would call '{' '.join(found[1].split())}'; call it by its name alone, so that a pre-run can skip it"
