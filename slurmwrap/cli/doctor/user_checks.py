"""Checks of this user's configuration, state directory, cached answers and completion, and of NVML on this host."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from slurmwrap.cli.completion import MARK, Shell, find_completion_place
from slurmwrap.cli.doctor.check_records import FAIL, OK, SKIP, WARN, CheckContext, CheckResult
from slurmwrap.config.config_check import find_remarks
from slurmwrap.config.config_paths import find_other_writers, is_site_process
from slurmwrap.config.key_origins import find_unknown_variables
from slurmwrap.config.load_config import find_site_file, find_user_file, find_user_state_dir
from slurmwrap.slurm.response_cache import find_cache_folder, is_private_to

CONTROL = "/dev/nvidiactl"
_NOT_CACHED = "Until then each gsub asks Slurm by itself."
# Where administrators install the completion for all users.
_SITE_WIDE_FILES = {
    "bash": ("/usr/share/bash-completion/completions/gsub", "/etc/bash_completion.d/gsub"),
    "zsh": ("/usr/local/share/zsh/site-functions/_gsub", "/usr/share/zsh/site-functions/_gsub"),
    "fish": ("/usr/share/fish/vendor_completions.d/gsub.fish", "/etc/fish/completions/gsub.fish"),
}


def check_configuration(context: CheckContext) -> CheckResult:
    """Check the configuration files that were read, who may write them, and variables that set no key."""
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
    """Check NVIDIA's library on this host. (check_node_drivers checks the nodes by the records of their Epilogs.)"""
    if not Path(CONTROL).exists():
        return CheckResult(name="NVML", state=SKIP, text="no NVIDIA driver on this host")
    try:
        import pynvml
    except ImportError:
        hint = "pip install nvidia-ml-py: the hooks' zipapp includes the copy of this host."
        return CheckResult(name="NVML", state=WARN, text="nvidia-ml-py is not installed", hint=hint)
    try:
        pynvml.nvmlInit()
        release, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        hint = "Does `nvidia-smi` work? After an update of the driver the old module stays until a reboot."
        return CheckResult(name="NVML", state=FAIL, text=str(error), hint=hint)
    return CheckResult(name="NVML", state=OK, text=f"driver {release}, {count} GPUs")


def check_state_directory(context: CheckContext) -> CheckResult:
    """Check that this user's state directory, or its nearest existing parent, can be written to."""
    path = find_user_state_dir(context.environ)
    there = next(one for one in (path, *path.parents) if one.exists())
    if not os.access(there, os.W_OK) and is_site_process(context.config):
        return CheckResult(name="state", state=SKIP, text="SlurmUser uses the site's, and submits no jobs")
    if not os.access(there, os.W_OK):
        hint = "Set XDG_STATE_HOME to a directory that you may write to. gsub submits without it."
        return CheckResult(name="state", state=WARN, text=f"{there} cannot be written to", hint=hint)
    return CheckResult(name="state", state=OK, text=str(path))


def check_answer_cache(context: CheckContext) -> CheckResult:
    """Check gsub's cache of Slurm's answers: gsub trusts only a directory that is private to this user."""
    try:
        folder = find_cache_folder(context.environ, context.uid)
        # Not stat(): a symbolic link is not accepted as the directory.
        found = os.lstat(folder)
    except FileNotFoundError:
        return CheckResult(name="kept answers", state=OK, text="none yet: the first gsub makes a private directory")
    except OSError as error:
        return CheckResult(name="kept answers", state=WARN, text=str(error), hint=_NOT_CACHED)
    if not stat.S_ISDIR(found.st_mode) or not is_private_to(found, context.uid):
        hint = f"Remove it, or ask uid {found.st_uid} about it. {_NOT_CACHED}"
        return CheckResult(name="kept answers", state=WARN, text=f"{folder} is not this user's alone", hint=hint)
    return CheckResult(name="kept answers", state=OK, text=folder)


def check_completion(context: CheckContext) -> CheckResult:
    """Check whether slurmwrap's completion file is installed for this user's shell."""
    name = Path(context.environ.get("SHELL", "")).name
    if name not in {shell.value for shell in Shell}:
        return CheckResult(name="completion", state=SKIP, text=f"the shell is {name or 'not known'}")
    place = find_completion_place(Shell(name), context.environ)
    own = place.directory / place.names["gsub"]
    files = (own, *(Path(one) for one in _SITE_WIDE_FILES.get(name, ())))
    installed = [
        path for path in files if path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")
    ]
    if not installed:
        hint = f"`slurmwrap completion {name} --install` completes gsub's options, partitions, nodes on TAB."
        return CheckResult(name="completion", state=OK, text=f"{name}: not installed", hint=hint)
    return CheckResult(name="completion", state=OK, text=f"{name}: {installed[0]}")
