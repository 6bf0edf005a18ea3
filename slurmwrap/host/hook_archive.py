"""Build the hooks that Slurm runs: shims with their paths filled in, one zipapp, one settings file (adapter).

All files go into one directory on the local disk. Each is written under another name and renamed, so that a hook that
is just being started sees the old or the new file. slurm.conf is changed by slurmwrap/install, not here.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import stat
import tempfile
import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import slurmwrap.node_hooks
from slurmwrap import __version__
from slurmwrap.errors import SlurmwrapError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.host.run_command import run
from slurmwrap.package_files import shipped
from slurmwrap.store.atomic_write import replace_file

MAIN = "import sys\n\nfrom node_hooks.hook_main import main\n\nsys.exit(main(sys.argv))\n"
# Fixed time stamp: the same input gives the same zipapp, byte for byte.
STAMP = (1980, 1, 1, 0, 0, 0)
# Program for the nodes' interpreter. Byte code is unchecked, as a zip has no exact times (PEP 552, Python 3.7).
COMPILE = (
    "import pathlib, py_compile, sys\n"
    "for path in pathlib.Path(sys.argv[1]).rglob('*.py'):\n"
    "    py_compile.compile(str(path), str(path) + 'c', str(path.name), doraise=True,\n"
    "                       invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledHookSettings:
    """Settings that are fixed at installation. `%n` in node_state_dir, kernel_log and nvidia_proc: name of the node."""

    directory: Path  # where the files go, on every node and on the controller
    python: str  # absolute; Python 3.6 or newer, on the nodes' local disk
    spool: Path  # shared by nodes and controller, mode 1733
    controller_dir: Path  # private to SlurmUser, local to the controller
    node_state_dir: Path  # private to root on each node; does not survive a reboot if it is below /run
    cluster: str
    munge: str  # absolute
    munge_socket: str  # "" = MUNGE's default
    kernel_log: str  # "/dev/kmsg" | "journal" | "file:PATH"
    nvidia_proc: str  # /proc/driver/nvidia
    nvidia_control: str = "/dev/nvidiactl"  # NVML is used only if it exists
    gate: str = "off"  # "on": the Prolog refuses a node with a conclusive fault, while the reconciler permits it
    published: str = ""  # site.published, which the gate reads
    dcgmi: str = ""  # site.dcgmi, which the sampler of GPUs asks; "": never
    sysfs: str = "/sys/class"  # where network ports and AMD's GPUs are read


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFiles:
    """Paths of the written files that slurm.conf names."""

    prolog: Path
    epilog: Path
    epilog_slurmctld: Path
    zipapp: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Chained:
    """A script `name` that runs slurmwrap's hook `first` and then replaces itself by the site's program."""

    name: str
    first: str
    site: str  # absolute


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One file of the hooks' directory."""

    name: str
    content: bytes
    mode: int


def install(settings: InstalledHookSettings, chains: tuple[Chained, ...] = ()) -> HookFiles:
    """Write all files into `settings.directory`, which must belong to this user and be writable by no other."""
    files = render_hook_files(settings, chains)
    settings.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    _reject_shared_directory(settings.directory)
    for file in files:
        replace_file(settings.directory / file.name, file.content, file.mode)
    return make_hook_files(settings.directory)


def render_hook_files(settings: InstalledHookSettings, chains: tuple[Chained, ...] = ()) -> tuple[Rendered, ...]:
    """Return the files of the hooks' directory without writing them; what a hook needs comes before the hook.

    Raises SlurmwrapError for an invalid setting.
    """
    _check(settings)
    files = make_hook_files(settings.directory)
    own = (
        Rendered(name=files.zipapp.name, content=_build_zipapp(settings.python), mode=0o644),
        Rendered(
            name=_make_settings_path(settings.directory).name, content=_render_settings_json(settings), mode=0o644
        ),
    )
    shims = (*_render_shims(settings, files), *(_render_chain(settings.directory, chain) for chain in chains))
    return (*own, *(Rendered(name=path.name, content=text.encode(), mode=0o755) for path, text in shims))


def _render_chain(directory: Path, chain: Chained) -> tuple[Path, str]:
    template = (shipped("hooks") / "site_chain.sh").read_text(encoding="utf-8")
    values = {"HOOK": shlex.quote(str(directory / chain.first)), "SITE": shlex.quote(chain.site)}
    return directory / chain.name, _fill(template, values)


def make_hook_files(directory: Path) -> HookFiles:
    """Return the paths of the hooks' files."""
    return HookFiles(
        prolog=directory / "prolog",
        epilog=directory / "epilog",
        epilog_slurmctld=directory / "epilog_slurmctld",
        zipapp=directory / "node_hooks.pyz",
    )


def _make_settings_path(directory: Path) -> Path:
    return directory / "hooks.json"


def _check(settings: InstalledHookSettings) -> None:
    """Check the settings. Relative paths would depend on a hook's working directory, and hooks have no PATH."""
    paths: dict[str, str | Path] = {"directory": settings.directory, "python": settings.python, "spool": settings.spool}
    paths |= {"controller_dir": settings.controller_dir, "node_state_dir": settings.node_state_dir}
    paths |= {"munge": settings.munge, "nvidia_proc": settings.nvidia_proc, "nvidia_control": settings.nvidia_control}
    paths |= {name: value for name in ("published", "dcgmi") if (value := getattr(settings, name))}
    for name, path in paths.items():
        if not Path(path).is_absolute() or "\n" in str(path):
            raise SlurmwrapError(f"hooks: {name} '{path}' is not an absolute path", hint="Give the full path.")
    if settings.kernel_log not in ("/dev/kmsg", "journal") and not settings.kernel_log.startswith("file:/"):
        raise SlurmwrapError(
            f"hooks: kernel_log '{settings.kernel_log}' is unknown", hint="It is /dev/kmsg, journal or file:/PATH."
        )
    if settings.gate not in ("off", "on"):
        raise SlurmwrapError(f"hooks: gate '{settings.gate}' is unknown", hint="It is off or on.")
    if settings.gate == "on" and not settings.published:
        raise SlurmwrapError(
            "hooks: the gate is on and published is not set",
            hint="Give the directory of site.published: without the reconciler's permit there the gate never refuses.",
        )
    if any(character.isspace() for character in str(settings.directory)):
        raise SlurmwrapError(f"hooks: slurm.conf cannot name '{settings.directory}'", hint="Use a path without blanks.")


def _reject_shared_directory(directory: Path) -> None:
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise SlurmwrapError(
            f"{directory} is not a directory that only uid {os.geteuid()} can write; Slurm would run its files as root",
            hint=f"Run: chown root {directory} && chmod 755 {directory}",
        )


def _render_shims(settings: InstalledHookSettings, files: HookFiles) -> tuple[tuple[Path, str], ...]:
    sleep = shutil.which("sleep", path="/usr/bin:/bin") or "/bin/sleep"
    values = {
        "PYTHON": shlex.quote(settings.python),
        "ZIPAPP": shlex.quote(str(files.zipapp)),
        "SETTINGS": shlex.quote(str(_make_settings_path(settings.directory))),
        "SLEEP": shlex.quote(sleep),
        "STATE": '"${SLURMD_NODENAME-}"'.join(map(shlex.quote, str(settings.node_state_dir).split("%n"))),
        "CLUSTER": shlex.quote(settings.cluster),
        "CONTROLLER_DIR": shlex.quote(str(settings.controller_dir)),
    }
    node = (shipped("prolog") / "node_hook.sh").read_text(encoding="utf-8")
    controller = (shipped("hooks") / "epilog_slurmctld.sh").read_text(encoding="utf-8")
    return (
        (files.prolog, _fill(node, {**values, "CONTEXT": "prolog", "GATE": settings.gate})),
        (files.epilog, _fill(node, {**values, "CONTEXT": "epilog", "GATE": "off"})),
        (files.epilog_slurmctld, _fill(controller, values)),
    )


def _fill(template: str, values: dict[str, str]) -> str:
    # One pass, so that values are not expanded as templates.
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], template)


def _render_settings_json(settings: InstalledHookSettings) -> bytes:
    names = ["cluster", "spool", "node_state_dir", "munge", "munge_socket", "kernel_log", "nvidia_proc"]
    names += ["nvidia_control", "gate", "published", "dcgmi", "sysfs"]
    values = {name: str(getattr(settings, name)) for name in names}
    return json.dumps({**values, "release": __version__, "made_by": "slurmwrap"}, indent=1).encode() + b"\n"


@cache
def _build_zipapp(python: str) -> bytes:
    """Build the zipapp: the package node_hooks, NVIDIA's binding if it is installed, and byte code for speed.

    Byte code belongs to one Python release; another one on a node reads the sources instead.
    """
    with tempfile.TemporaryDirectory() as stage:
        root = Path(stage)
        shutil.copytree(
            Path(slurmwrap.node_hooks.__file__).parent,
            root / "node_hooks",
            ignore=shutil.ignore_patterns("__pycache__", ".*"),
        )
        (root / "__main__.py").write_text(MAIN, encoding="utf-8")
        binding = find_spec("pynvml")
        if binding is not None and binding.origin and not binding.submodule_search_locations:  # nvidia-ml-py's one file
            shutil.copyfile(binding.origin, root / "pynvml.py")
        run([python, "-I", "-S", "-c", COMPILE, stage], timeout_s=30)
        return _zip(root)


def _zip(root: Path) -> bytes:
    buffer = io.BytesIO()
    # Stored without compression: decompression costs more time than it saves.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            archive.writestr(zipfile.ZipInfo(path.relative_to(root).as_posix(), STAMP), path.read_bytes())
    return buffer.getvalue()
