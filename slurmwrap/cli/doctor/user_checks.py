"""Checks of what is this user's: configuration, state directory, kept answers, completion; and NVML on this host."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from slurmwrap.cli.completion import MARK, Shell, place_of
from slurmwrap.cli.doctor.check_records import FAIL, OK, SKIP, WARN, CheckContext, CheckResult
from slurmwrap.config.config_check import find_remarks
from slurmwrap.config.config_paths import find_other_writers, is_site_process
from slurmwrap.config.key_origins import find_unknown_variables
from slurmwrap.config.load_config import find_site_file, find_user_file, find_user_state_dir
from slurmwrap.slurm.response_cache import find_cache_folder, is_ours_alone

CONTROL = "/dev/nvidiactl"
_ASKED = "Until then each gsub asks Slurm by itself."
_FOR_ALL = {  # where administrators put it
    "bash": ("/usr/share/bash-completion/completions/gsub", "/etc/bash_completion.d/gsub"),
    "zsh": ("/usr/local/share/zsh/site-functions/_gsub", "/usr/share/zsh/site-functions/_gsub"),
    "fish": ("/usr/share/fish/vendor_completions.d/gsub.fish", "/etc/fish/completions/gsub.fish"),
}


def check_configuration(context: CheckContext) -> CheckResult:
    """Which files were read, who could have written them, and variables that set nothing."""
    read = [path for path in (find_site_file(context.environ), find_user_file(context.environ)) if path.exists()]
    loose = [f"{path}: {why}" for path in read if (why := find_other_writers(path.stat()))]
    odd = (*loose, *find_unknown_variables(context.environ), *find_remarks(context.config))
    text = ", ".join(map(str, read)) or "defaults: there is no file"
    if loose:
        hint = "Check who changed it, then: chown root: FILE; chmod 644 FILE. Root and SlurmUser refuse it as it is."
        return CheckResult(name="configuration", state=WARN, text=text, hint=hint, details=odd)
    hint = "`slurmwrap config show` shows the source of each value." if odd else ""
    return CheckResult(name="configuration", state=WARN if odd else OK, text=text, hint=hint, details=odd)


def check_nvml(context: CheckContext) -> CheckResult:
    """NVIDIA's library on this host; nodes are looked at by what their Epilogs say."""
    if not Path(CONTROL).exists():
        return CheckResult(name="NVML", state=SKIP, text="no NVIDIA driver on this host")
    try:
        import pynvml
    except ImportError:
        hint = "pip install nvidia-ml-py: the hooks' zipapp takes it along from here."
        return CheckResult(name="NVML", state=WARN, text="nvidia-ml-py is not installed", hint=hint)
    try:
        pynvml.nvmlInit()
        release, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        hint = "Does `nvidia-smi` work? After an update of the driver the old module stays until a reboot."
        return CheckResult(name="NVML", state=FAIL, text=str(error), hint=hint)
    return CheckResult(name="NVML", state=OK, text=f"driver {release}, {count} GPUs")


def state_dir(context: CheckContext) -> CheckResult:
    """Where this user's own records go: on a network file system SQLite's locks may not hold."""
    path = find_user_state_dir(context.environ)
    there = next(one for one in (path, *path.parents) if one.exists())
    if not os.access(there, os.W_OK) and is_site_process(context.config):
        return CheckResult(name="state", state=SKIP, text="SlurmUser uses the site's, and submits no jobs")
    if not os.access(there, os.W_OK):
        hint = "Set XDG_STATE_HOME to a directory that you may write to. gsub submits without it."
        return CheckResult(name="state", state=WARN, text=f"{there} cannot be written to", hint=hint)
    return CheckResult(name="state", state=OK, text=str(path))


def check_answer_cache(context: CheckContext) -> CheckResult:
    """Where gsub keeps Slurm's answers for some seconds: only a directory that is this user's alone is believed."""
    try:
        folder = find_cache_folder(context.environ, context.uid)
        found = os.lstat(folder)  # a link is none
    except FileNotFoundError:
        return CheckResult(name="kept answers", state=OK, text="none yet: the first gsub makes a private directory")
    except OSError as error:
        return CheckResult(name="kept answers", state=WARN, text=str(error), hint=_ASKED)
    if not stat.S_ISDIR(found.st_mode) or not is_ours_alone(found, context.uid):
        hint = f"Remove it, or ask uid {found.st_uid} about it. {_ASKED}"
        return CheckResult(name="kept answers", state=WARN, text=f"{folder} is not this user's alone", hint=hint)
    return CheckResult(name="kept answers", state=OK, text=folder)


def check_completion(context: CheckContext) -> CheckResult:
    """Whether this user's shell completes gsub by our file."""
    name = Path(context.environ.get("SHELL", "")).name
    if name not in {shell.value for shell in Shell}:
        return CheckResult(name="completion", state=SKIP, text=f"the shell is {name or 'not known'}")
    place = place_of(Shell(name), context.environ)
    own = place.directory / place.names["gsub"]
    files = (own, *(Path(one) for one in _FOR_ALL.get(name, ())))
    ours = [path for path in files if path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")]
    if not ours:
        hint = f"`slurmwrap completion {name} --install` completes gsub's options, partitions, nodes on TAB."
        return CheckResult(name="completion", state=OK, text=f"{name}: not installed", hint=hint)
    return CheckResult(name="completion", state=OK, text=f"{name}: {ours[0]}")
