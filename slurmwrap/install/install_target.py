"""Determine what to install where: from the options, else the earlier installation, else slurm.conf and the system.

Pure, except for the functions that read /etc/os-release and /etc/passwd of the target system.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurmwrap.config.load_config import Config
from slurmwrap.errors import SlurmwrapError, UsageError
from slurmwrap.fast_dataclasses import asdict, dataclass
from slurmwrap.host.hook_archive import InstalledHookSettings
from slurmwrap.install.safe_files import FileTree
from slurmwrap.install.slurm_conf import SlurmConfSetting, named

DIRECTORY = "/usr/local/lib/slurmwrap/hooks"
CONF_PLACES = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
)
_NO = ("", "no", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallTarget:
    """All settings that the installation fixes. Paths are those of the installed system; "": not wanted."""

    slurm_conf: str
    cluster: str
    slurm_user: str
    directory: str = DIRECTORY
    spool: str
    published: str
    state_dir: str = "/var/lib/slurmwrap"
    node_state_dir: str = "/run/slurmwrap"
    config: str = "/etc/slurmwrap/config.toml"
    units: str = "/etc/systemd/system"  # "": no systemd
    command: str = "/usr/bin/slurmwrap"
    python: str = "/usr/bin/python3"
    munge: str = "/usr/bin/munge"
    munge_socket: str = ""
    kernel_log: str = "/dev/kmsg"
    nvidia_proc: str = "/proc/driver/nvidia"
    dcgmi: str = ""
    gate: str = "off"
    cli_filter: str = "off"  # "files": cli_filter.lua is installed; "on": slurm.conf names it too
    slurm_bin: str = ""  # directory of Slurm's commands when it is not in the PATH of systemd's services
    edit: bool = True  # False: slurmwrap does not edit slurm.conf; an administrator adds the lines
    become_users: bool = False  # the reconciler may read users' files as these users although SlurmUser is not root

    @property
    def hooks(self) -> InstalledHookSettings:
        """The settings with which the hooks' files are rendered."""
        return InstalledHookSettings(
            directory=Path(self.directory), python=self.python, spool=Path(self.spool), cluster=self.cluster,
            controller_dir=Path(self.state_dir) / "controller", node_state_dir=Path(self.node_state_dir),
            munge=self.munge, munge_socket=self.munge_socket, kernel_log=self.kernel_log,
            nvidia_proc=self.nvidia_proc, gate=self.gate, published=self.published, dcgmi=self.dcgmi,
        )  # fmt: skip

    def to_plain(self) -> dict[str, Any]:
        """Return the settings as a dict for the manifest."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemAccount:
    """A user of the installed system."""

    name: str
    uid: int
    gid: int


def resolve_install_target(
    asked: Mapping[str, Any], before: Mapping[str, Any], detected: Mapping[str, Any], config: Config, shared: str
) -> InstallTarget:
    """Merge the settings from all sources; a later one has priority: `detected`, `config`, `before`, `asked`.

    `asked`: options (None: not given). `before`: the manifest's settings. `detected`: from slurm.conf and distribution.
    `shared`: a directory for spool and published files, or "". Raise UsageError when no shared directory is known.
    """
    site = {"spool": config.site.spool, "published": config.site.published, "state_dir": config.site.state_dir}
    site |= {"munge_socket": config.site.munge_socket}
    below = {"spool": f"{shared}/spool", "published": f"{shared}/published"} if shared else {}
    layers = (detected, {key: value for key, value in site.items() if value}, before, below, asked)
    known = set(InstallTarget.__dataclass_fields__)
    values: dict[str, Any] = {}
    for layer in layers:
        values |= {key: value for key, value in layer.items() if value is not None and key in known}
    # It has no option, so a change of the configuration must reach nodes that are installed already.
    values["dcgmi"] = config.site.dcgmi
    if not values.get("spool") or not values.get("published"):
        raise UsageError(
            "nodes and controller need a shared directory for the observations of the hooks",
            hint="Name it: --shared /shared/slurmwrap (or site.spool and site.published in the configuration).",
        )
    return InstallTarget(**values)


def read_system_settings(settings: tuple[SlurmConfSetting, ...], tree: FileTree, slurm_conf: Path) -> dict[str, Any]:
    """Return the settings from slurm.conf and the system. Raise SlurmwrapError when slurm.conf has no ClusterName."""

    def value(key: str, default: str = "") -> str:
        found = named(settings, key)
        return found[-1].value if found else default

    if not value("ClusterName"):
        raise SlurmwrapError(f"{slurm_conf} has no ClusterName", hint="Is that the whole slurm.conf?")
    socket = re.search(r"(?:^|,)\s*socket=([^,\s]+)", value("AuthInfo"))
    return {
        "slurm_conf": str(slurm_conf),
        "cluster": value("ClusterName").lower(),  # slurmctld converts it to lower case
        "slurm_user": value("SlurmUser", "root"),
        "munge_socket": socket[1] if socket else None,
        "python": _find_python(tree),
    }


def _find_python(tree: FileTree) -> str:
    """Return the path of Python. RHEL 8 has platform-python; python3 is there only if it was installed."""
    for path in ("/usr/bin/python3", "/usr/libexec/platform-python"):
        if (tree.root / path.lstrip("/")).exists():
            return path
    return "/usr/bin/python3"


def find_os_family(tree: FileTree) -> str:
    """Return "debian", "rhel" or "other", according to /etc/os-release."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        text = tree.root / path.lstrip("/")
        if text.is_file():
            words = set(
                re.findall(r'(?m)^ID(?:_LIKE)?="?([^"\n]*)', text.read_text(encoding="utf-8", errors="replace"))
            )
            named_ = " ".join(words).lower().split()
            if {"debian", "ubuntu"} & set(named_):
                return "debian"
            if {"rhel", "fedora", "centos", "rocky", "almalinux"} & set(named_):
                return "rhel"
    return "other"


def find_account(tree: FileTree, user: str) -> SystemAccount:
    """Return a user's account on the target system, from the image's own /etc/passwd for an image.

    Raise SlurmwrapError when the user does not exist.
    """
    if tree.root == Path("/"):
        import pwd

        try:
            entry = pwd.getpwnam(user)
            return SystemAccount(name=user, uid=entry.pw_uid, gid=entry.pw_gid)
        except KeyError:
            raise _make_unknown_user_error(user, tree) from None
    passwd = tree.root / "etc/passwd"
    for line in passwd.read_text(encoding="utf-8", errors="replace").splitlines() if passwd.is_file() else ():
        fields = line.split(":")
        if fields[0] == user and len(fields) >= 4 and fields[2].isdigit() and fields[3].isdigit():
            return SystemAccount(name=user, uid=int(fields[2]), gid=int(fields[3]))
    if user == "root":
        return SystemAccount(name="root", uid=0, gid=0)
    raise _make_unknown_user_error(user, tree)


def _make_unknown_user_error(user: str, tree: FileTree) -> SlurmwrapError:
    make = f"useradd --system --no-create-home --shell /usr/sbin/nologin {user}"
    if find_os_family(tree) == "rhel":
        make = f"useradd --system --no-create-home --shell /sbin/nologin {user}"
    return SlurmwrapError(
        f"SlurmUser={user} of slurm.conf is not known on this system",
        hint=f"slurmctld could not run either. Slurm's package makes it; by hand, with the same uid everywhere: {make}",
    )
