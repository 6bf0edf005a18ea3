"""Rewrite the call of a container runtime in a trial: the trial's files are bound in and its variables passed. Pure.

Everything else of the user's command line is kept. container_shim.py and launcher_shim.py call this on the node.
docs/containers.md states for each runtime what is bound how, and where the writes of the container go.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.prerun.isolation.writable_paths import is_free
from slurmwrap.prerun.static.container_calls import (
    BoundPath,
    ContainerCall,
    join_call,
    list_bound_paths,
    map_to_host,
    parse_pyxis_mount,
    split_bindings,
)
from slurmwrap.prerun.static.launcher_args import SrunCall, make_one_task_arguments
from slurmwrap.prerun.trial.trial_environment import PASSED_INTO_CONTAINERS

# Directory of the trial with the shims for the inside of containers (trial_layout.py), and the program that starts the
# user's command there.
INSIDE, ENTER = "inside", "enter"
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Directories of the trial that are bound into containers whose user may be another than the trial's.
_SHARED = (INSIDE, "inject", "steps", "nv", "loggers", "mlruns")
SHARED_FOLDERS: Mapping[str, tuple[str, ...]] = {"podman": _SHARED, "docker": (*_SHARED, "outputs", "gone")}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFiles:
    """What a rewrite must know of the trial and of the host. `environ`: that of the call."""

    trial_dir: str
    environ: Mapping[str, str]
    cwd: str
    # A number of this container, unique in the trial.
    number: int
    # Whether the private overlay covers what the runtime binds: there is one, and the runtime works inside it.
    in_overlay: bool = False
    # Directories that the private overlay covers.
    overlay_roots: tuple[str, ...] = ()
    # Environment of the image; None if it cannot be known.
    image_environ: Mapping[str, str] | None = field(default_factory=dict)
    is_dir: Callable[[str], bool] = os.path.isdir
    # Returns two new directories, for what a container writes to this one: (upper, work); None: the runtime's own.
    make_layers: Callable[[str], tuple[str, str] | None] = lambda source: None

    def list_places(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return (free, held): where the container may write on the host. Without an overlay its roots are held."""
        free, held = (
            tuple(p for p in self.environ.get(f"SLURMWRAP_{name}", "").split(":") if p) for name in ("FREE", "HELD")
        )
        if self.in_overlay:
            return free, held
        return tuple(p for p in free if p not in self.overlay_roots), (*held, *self.overlay_roots)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenCall:
    """The new call: its words after the program, the runtime's environment, and what the supervisor must know."""

    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    bound: tuple[BoundPath, ...] = ()
    # File to which the runtime writes the container's id; "" if its processes are the trial's own.
    cidfile: str = ""


def rewrite_container_call(call: ContainerCall, files: TrialFiles) -> RewrittenCall:
    """Return the call with the trial's files and variables inside. Never fails: an unknown call is kept."""
    bound = list_bound_paths(call, files.cwd)
    return _REWRITERS[call.runtime.kind](call, files, bound)


def make_inside_environment(
    files: TrialFiles, bound: Sequence[BoundPath], *, own_root: bool, inside: str = "", closes: bool = False
) -> dict[str, str]:
    """Return the variables that the programs inside need.

    `own_root`: the container's root directory is discarded, so that only bound directories must be protected.
    `inside`: the trial's directory as it is called inside; "" if it has the same path. `closes`: what must not be
    written to is bound read-only.
    """
    environ, inside = files.environ, inside or files.trial_dir
    free, held = files.list_places()
    mapped = [(one.target, is_free(one.source, free, held)) for one in bound]
    closed = [target for target, is_ok in mapped if closes and not is_ok]
    free = ("/" if own_root else "", *(() if own_root else free), *(p for p, is_ok in mapped if is_ok))
    held = (*(() if own_root else held), *(p for p, is_ok in mapped if not is_ok))
    found = {name: environ[name] for name in environ if _is_passed(name)}
    found |= {name: value.replace(files.trial_dir, inside) for name, value in found.items()}
    return {
        **found,
        "SLURMWRAP_FREE": ":".join(dict.fromkeys(p for p in free if p)),
        "SLURMWRAP_HELD": ":".join(dict.fromkeys(held)),
        "SLURMWRAP_CLOSED": ":".join(closed),
        "SLURMWRAP_CONTAINER": str(files.number),
        # Where the home directory may be writable without an overlay, rm, cp and the like are checked as outside.
        "SLURMWRAP_SHIMS": f"{inside}/{INSIDE if own_root or files.in_overlay else 'shims'}",
    }


# Variables of the trial's own that mean nothing inside, or are set anew there.
_OUTSIDE_ONLY = ("PYTHON", "ALLOCATION", "CONFIG", "BASH_ENV", "OVERLAY", "CALLED", "REAL_JOB", "RELEASE_AT")


def _is_passed(name: str) -> bool:
    if name.startswith("SLURMWRAP_"):
        return name.removeprefix("SLURMWRAP_") not in _OUTSIDE_ONLY
    return name in PASSED_INTO_CONTAINERS


def _enter(command: Sequence[str], inside: str) -> tuple[str, ...]:
    return ("/bin/sh", f"{inside}/{INSIDE}/{ENTER}", *command)


def _rewrite_apptainer(call: ContainerCall, files: TrialFiles, bound: tuple[BoundPath, ...]) -> RewrittenCall:
    inside = make_inside_environment(files, bound, own_root=False, closes=not files.in_overlay)
    host = dict(files.environ)
    for prefix in ("APPTAINER", "SINGULARITY"):
        binds = [b for name in ("BIND", "BINDPATH") if (b := host.pop(f"{prefix}_{name}", ""))]
        host[f"{prefix}_BIND"] = ",".join(dict.fromkeys([*",".join(binds).split(","), files.trial_dir])).strip(",")
        host |= {f"{prefix}ENV_{name}": value for name, value in inside.items()}
    # The image's own PATH and PYTHONPATH are known only inside, so `enter` adds to them there.
    host.pop("PYTHONPATH", None) if host.get("PYTHONPATH") == host.get("SLURMWRAP_INJECT") else None
    options = call.options if files.in_overlay else _make_read_only(call, files)
    if call.image.startswith("instance://") or (not call.command and call.subcommand not in ("run",)):
        return RewrittenCall(arguments=join_call(call, options=options), environ=host, bound=bound)
    command = list(call.command)
    head = call.head
    if call.subcommand == "run":
        if call.given("app"):
            return RewrittenCall(arguments=join_call(call, options=options), environ=host, bound=bound)
        command, head = ["--runscript", *command], (*call.head[:-1], "exec")
    elif call.subcommand != "exec":
        return RewrittenCall(arguments=join_call(call, options=options), environ=host, bound=bound)
    changed = replace(call, head=head)
    arguments = join_call(changed, options=options, command=_enter(command, files.trial_dir))
    return RewrittenCall(arguments=arguments, environ=host, bound=bound)


def _make_read_only(call: ContainerCall, files: TrialFiles) -> list[tuple[str, str | None, tuple[str, ...]]]:
    """Return apptainer's options with the bindings of directories that the trial must not change made read-only.

    What Python writes there goes to the shadow tree; any other program meets a read-only file system.
    """
    free, held = files.list_places()
    found: list[tuple[str, str | None, tuple[str, ...]]] = []
    for name, value, words in call.options:
        if name != "bind" or value is None:
            found.append((name, value, words))
            continue
        parts = []
        for part in split_bindings(value):
            source, _, rest = part.partition(":")
            source = os.path.normpath(os.path.join(files.cwd, source))
            target, _, flags = rest.partition(":")
            keeps = is_free(source, free, held) or "ro" in re.split(r"[,+]", flags)
            parts.append(part if keeps else f"{part.partition(':')[0]}:{target or source}:ro")
        text = ",".join(parts)
        found.append((name, text, ("--bind", text)))
    return found


def _rewrite_engine(call: ContainerCall, files: TrialFiles, bound: tuple[BoundPath, ...]) -> RewrittenCall:
    """Rewrite a call of podman, docker or nerdctl."""
    is_docker = call.runtime.kind == "docker"
    inside = make_inside_environment(files, bound if is_docker else (), own_root=True, closes=is_docker)
    given = {**(files.image_environ or {}), **_read_engine_environment(call, files.environ)}
    paths = {
        "PATH": f"{inside['SLURMWRAP_SHIMS']}:{given.get('PATH') or _DEFAULT_PATH}",
        "PYTHONPATH": ":".join(p for p in (f"{files.trial_dir}/inject", given.get("PYTHONPATH", "")) if p),
    }
    if given.get("BASH_ENV"):
        inside["SLURMWRAP_BASH_ENV"] = given["BASH_ENV"]
    inside["BASH_ENV"] = f"{files.trial_dir}/{INSIDE}/bash_env.sh"
    added = [word for name, value in {**inside, **paths}.items() for word in ("-e", f"{name}={value}")]
    if call.subcommand == "exec":
        return RewrittenCall(arguments=join_call(call, added=added), environ=files.environ)
    for name in SHARED_FOLDERS[call.runtime.kind]:
        added += ["-v", f"{files.trial_dir}/{name}:{files.trial_dir}/{name}"]
    own = call.values("cidfile")
    cidfile = own[-1] if own else f"{files.trial_dir}/steps/container.{files.number}"
    added += [] if own else ["--cidfile", cidfile]
    protect = _make_volumes_private if call.runtime.kind == "podman" else _make_volumes_read_only
    options, private = protect(call, files)
    return RewrittenCall(
        arguments=join_call(call, options=options, added=added),
        environ=files.environ,
        bound=tuple(_redirect(one, private) for one in bound),
        cidfile=os.path.join(files.cwd, cidfile),
    )


def _redirect(one: BoundPath, private: Mapping[str, str]) -> BoundPath:
    return BoundPath(source=private.get(one.source, one.source), target=one.target, read_only=one.read_only)


def _read_engine_environment(call: ContainerCall, environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for value in call.values("env"):
        name, equals, text = value.partition("=")
        if equals or name in environ:
            found[name] = text if equals else environ[name]
    return {name: found[name] for name in ("PATH", "PYTHONPATH", "BASH_ENV") if name in found}


def _list_volumes(call: ContainerCall, files: TrialFiles) -> list[tuple[int, str, str, str]]:
    """Return (index of the option, source, target, flags) of the writable volumes that must not be changed."""
    free, held = files.list_places()
    found = []
    for at, (name, value, _) in enumerate(call.options):
        source = target = flags = ""
        if name == "volume" and value and ":" in value:
            source, _, rest = value.partition(":")
            target, _, flags = rest.partition(":")
        elif name == "mount" and value:
            fields = dict(part.partition("=")[::2] for part in value.split(","))
            if fields.get("type", "volume") not in ("bind", "volume"):
                continue
            source = fields.get("source") or fields.get("src") or ""
            target = fields.get("target") or fields.get("dst") or fields.get("destination") or ""
            flags = "ro" if {"ro", "readonly"} & fields.keys() else ""
        if not source or not target or {"ro", "O"} & set(flags.split(",")):
            continue
        if source.startswith(("/", ".")):
            source = os.path.normpath(os.path.join(files.cwd, source))
            if is_free(os.path.realpath(source), free, held):
                continue
        found.append((at, source, target, flags))
    return found


def _make_volumes_private(
    call: ContainerCall, files: TrialFiles
) -> tuple[list[tuple[str, str | None, tuple[str, ...]]], dict[str, str]]:
    """Return (podman's options, {directory: its upper layer}): each volume is a temporary overlay of the directory."""
    options, private = list(call.options), dict[str, str]()
    for at, source, target, _ in _list_volumes(call, files):
        flags = "O"
        if source.startswith("/") and not files.is_dir(source):
            flags = "ro"
        elif source.startswith("/") and (layers := files.make_layers(source)):
            flags, private[source] = f"O,upperdir={layers[0]},workdir={layers[1]}", layers[0]
        text = f"{source}:{target}:{flags}"
        options[at] = ("volume", text, ("-v", text))
    return options, private


def _make_volumes_read_only(
    call: ContainerCall, files: TrialFiles
) -> tuple[list[tuple[str, str | None, tuple[str, ...]]], dict[str, str]]:
    """Return docker's options with read-only volumes: its daemon mounts them outside of the trial's overlay."""
    options = list(call.options)
    for at, source, target, flags in _list_volumes(call, files):
        kept = [flag for flag in flags.split(",") if flag and flag != "rw"]
        text = f"{source}:{target}:{','.join([*kept, 'ro'])}"
        options[at] = ("volume", text, ("-v", text))
    return options, {}


def _rewrite_bwrap(call: ContainerCall, files: TrialFiles, bound: tuple[BoundPath, ...]) -> RewrittenCall:
    place = find_bwrap_place(call, files, bound)
    if not place or not call.command:
        return RewrittenCall(arguments=join_call(call), environ=files.environ, bound=bound)
    inside = make_inside_environment(files, bound, own_root=False, inside=place)
    added = ["--bind", files.trial_dir, place]
    added += [word for name, value in inside.items() for word in ("--setenv", name, value)]
    arguments = join_call(call, added=added, command=_enter(call.command, place))
    return RewrittenCall(arguments=arguments, environ=files.environ, bound=bound)


def find_bwrap_place(call: ContainerCall, files: TrialFiles, bound: Sequence[BoundPath]) -> str:
    """Return where bwrap can bind the trial's directory; "" if nowhere.

    bwrap creates a mount point in its own root and in a tmpfs. In what is bound, the directory must exist.
    """
    memory = [value for name, value, _ in call.options if name == "tmpfs" and value]
    targets = [*memory, *(one.target for one in bound)]
    places = (files.trial_dir, *(f"{folder.rstrip('/')}/slurmwrap" for folder in memory), "/slurmwrap", *_MOUNT_POINTS)
    for place in places:
        if any(target == place or target.startswith(f"{place}/") for target in targets):
            continue
        above = max((t for t in targets if t == "/" or place.startswith(t.rstrip("/") + "/")), key=len, default="")
        if not above or above in memory or files.is_dir(map_to_host(place, bound)):
            return place
    return ""


# Directories that most images have, and that jobs hardly use.
_MOUNT_POINTS = (*(f"/mnt/{number}" for number in range(9, -1, -1)), "/srv", "/media", "/mnt", "/opt")


def _rewrite_ch_run(call: ContainerCall, files: TrialFiles, bound: tuple[BoundPath, ...]) -> RewrittenCall:
    place = find_mount_point(call, files, bound)
    if not place or not call.command:
        return RewrittenCall(arguments=join_call(call), environ=files.environ, bound=bound)
    inside = make_inside_environment(files, bound, own_root=False, inside=place)
    added = [f"--bind={files.trial_dir}:{place}"]
    # ch-run expands a `$` in a value; switching that off would change the user's own --set-env too.
    inside = {name: value for name, value in inside.items() if "$" not in value}
    added += [f"--set-env={name}={value}" for name, value in inside.items()]
    arguments = join_call(call, added=added, command=_enter(call.command, place))
    return RewrittenCall(arguments=arguments, environ=files.environ, bound=bound)


def find_mount_point(call: ContainerCall, files: TrialFiles, bound: Sequence[BoundPath]) -> str:
    """Return where ch-run can bind the trial's directory: at a directory that the image has; "" if at none.

    Images of Charliecloud have /mnt/0 to /mnt/9 (ch-run(1), --bind).
    """
    if call.given("write", "write-fake"):
        return files.trial_dir
    root = find_charliecloud_image(call, files.environ)
    taken = {one.target for one in bound}
    if not root or not files.is_dir(root):
        # An image that cannot be looked into.
        return next((place for place in _MOUNT_POINTS if place not in taken), "")
    for place in (files.trial_dir, *_MOUNT_POINTS):
        covers = any(target == place or target.startswith(f"{place}/") for target in taken)
        if not covers and files.is_dir(f"{root}{place}"):
            return place
    return ""


def find_charliecloud_image(call: ContainerCall, environ: Mapping[str, str]) -> str:
    """Return the directory of the image: a path, or a name in the storage directory (ch-image(1), STORAGE)."""
    if call.image.startswith(("/", ".")) or ("/" in call.image and os.path.exists(call.image)):
        return call.image.rstrip("/")
    user = environ.get("USER", "")
    storage = (call.values("storage") or [environ.get("CH_IMAGE_STORAGE", f"/var/tmp/{user}.ch")])[-1]
    return f"{storage}/img/{call.image.replace('/', '%').replace(':', '+')}"


def _rewrite_enroot(call: ContainerCall, files: TrialFiles, bound: tuple[BoundPath, ...]) -> RewrittenCall:
    inside = make_inside_environment(files, bound, own_root=False)
    # An unpacked image may have an entry point, which gets the command; its variables can be read. A squashed one
    # cannot be looked into, so `enter` starts the command.
    known = files.image_environ or {}
    inside["PYTHONPATH"] = ":".join(p for p in (f"{files.trial_dir}/inject", known.get("PYTHONPATH", "")) if p)
    added = ["--mount", f"{files.trial_dir}:{files.trial_dir}"]
    wraps = call.command and files.image_environ is None
    if wraps:
        inside.pop("PYTHONPATH")
    else:
        inside["BASH_ENV"] = f"{files.trial_dir}/{INSIDE}/bash_env.sh"
    added += [word for name, value in inside.items() for word in ("--env", f"{name}={value}")]
    command = _enter(call.command, files.trial_dir) if wraps else None
    return RewrittenCall(arguments=join_call(call, added=added, command=command), environ=files.environ, bound=bound)


def _rewrite_shifter(call: ContainerCall, files: TrialFiles, bound: tuple[BoundPath, ...]) -> RewrittenCall:
    inside = make_inside_environment(files, bound, own_root=False)
    added = [f"--volume={files.trial_dir}:{files.trial_dir}"]
    added += [f"--env={name}={value}" for name, value in inside.items()]
    return _wrap_in_site_runtime(call, files, bound, added)


def _rewrite_sarus(call: ContainerCall, files: TrialFiles, bound: tuple[BoundPath, ...]) -> RewrittenCall:
    inside = make_inside_environment(files, bound, own_root=False)
    added = [f"--mount=type=bind,source={files.trial_dir},destination={files.trial_dir}"]
    added += [f"--env={name}={value}" for name, value in inside.items()]
    return _wrap_in_site_runtime(call, files, bound, added)


def _wrap_in_site_runtime(
    call: ContainerCall, files: TrialFiles, bound: tuple[BoundPath, ...], added: Sequence[str]
) -> RewrittenCall:
    wraps = call.command and not call.given("entrypoint")
    command = _enter(call.command, files.trial_dir) if wraps else None
    return RewrittenCall(arguments=join_call(call, added=added, command=command), environ=files.environ, bound=bound)


_REWRITERS: Mapping[str, Callable[[ContainerCall, TrialFiles, tuple[BoundPath, ...]], RewrittenCall]] = {
    "apptainer": _rewrite_apptainer,
    "podman": _rewrite_engine,
    "docker": _rewrite_engine,
    "bwrap": _rewrite_bwrap,
    "ch-run": _rewrite_ch_run,
    "enroot": _rewrite_enroot,
    "shifter": _rewrite_shifter,
    "sarus": _rewrite_sarus,
}


def rewrite_srun_call(
    call: SrunCall, files: TrialFiles, *, bundle: str = "", bound_by_bundle: tuple[BoundPath, ...] = ()
) -> RewrittenCall:
    """Return the call of the real srun for one task in a container of pyxis or of an OCI bundle.

    `bundle`: the copy of the bundle with the trial's mounts. `bound_by_bundle`: what its own configuration binds.
    slurmstepd starts the container outside of the trial's mount namespace, so it gets the user's directories read-only;
    what Python writes goes to the shadow tree.
    """
    mounts = split_bindings(call.value("container-mounts") or "")
    bound = bound_by_bundle or tuple(map(parse_pyxis_mount, mounts))
    inside = make_inside_environment(files, bound, own_root=False, closes=True)
    kept = [(name, value) for name, value in call.options if name not in _REPLACED]
    if mounts:
        kept.append(("container-mounts", ",".join(_make_mount_read_only(part, files) for part in mounts)))
    if bundle:
        kept.append(("container", bundle))
    else:
        names = [*(name for name in (call.value("container-env") or "").split(",") if name), *inside]
        kept.append(("container-env", ",".join(dict.fromkeys(names))))
    export = call.value("export") or files.environ.get("SRUN_EXPORT_ENV") or "ALL"
    if "ALL" not in export.upper().split(","):
        listed = [] if export.upper() in ("NONE", "NIL") else [export]
        kept.append(("export", ",".join((*listed, *inside))))
    elif call.given("export"):
        kept.append(("export", export))
    if (cpus := call.value("cpus-per-task") or "").isdigit():
        here = files.environ.get("SLURM_CPUS_ON_NODE", "")
        kept.append(("cpus-per-task", str(min(int(cpus), int(here)) if here.isdigit() else cpus)))
    wraps = not call.given("container-entrypoint") or call.given("no-container-entrypoint")
    command = _enter(call.command, files.trial_dir) if wraps else call.command
    changed = replace(call, options=tuple(kept), command=command)
    arguments = make_one_task_arguments(changed, mount="" if bundle else files.trial_dir)
    return RewrittenCall(arguments=arguments, environ={**files.environ, **inside}, bound=bound)


# Options of srun that are set anew. What --container-save writes is an image of the user's.
_REPLACED = ("container-mounts", "container-env", "container-save", "container", "export", "cpus-per-task")


def _make_mount_read_only(part: str, files: TrialFiles) -> str:
    free, held = files.list_places()
    source, _, rest = part.partition(":")
    target, _, flags = rest.partition(":")
    kept = [flag for flag in flags.split("+") if flag and flag != "rw"]
    if "ro" in kept or not source.startswith("/") or is_free(os.path.realpath(source), free, held):
        return part
    return f"{source}:{target or source}:{'+'.join([*kept, 'ro'])}"


def list_bundle_paths(config: Mapping[str, object], bundle: str) -> tuple[BoundPath, ...]:
    """Return what the config.json of an OCI bundle binds."""
    found = []
    for one in config.get("mounts") or []:  # type: ignore[attr-defined]
        options = [str(option) for option in one.get("options") or []]
        if {"bind", "rbind"} & set(options):
            source = os.path.normpath(os.path.join(bundle, str(one.get("source", ""))))
            found.append(BoundPath(source=source, target=str(one.get("destination")), read_only="ro" in options))
    return tuple(found)


def make_bundle_config(config: Mapping[str, object], files: TrialFiles, bundle: str) -> dict[str, object]:
    """Return the config.json of a copy of an OCI bundle: its root by absolute path, with the trial's directory bound.

    Bind mounts of the user's directories become read-only, as for pyxis.
    """
    free, held = files.list_places()
    found = dict(config)
    root = dict(found.get("root") or {})  # type: ignore[call-overload]
    root["path"] = os.path.normpath(os.path.join(bundle, str(root.get("path", "rootfs"))))
    mounts = []
    for one in found.get("mounts") or []:  # type: ignore[attr-defined]
        mount = dict(one)
        options = [str(option) for option in mount.get("options") or []]
        source = os.path.normpath(os.path.join(bundle, str(mount.get("source", ""))))
        if {"bind", "rbind"} & set(options) and "ro" not in options and not is_free(source, free, held):
            mount["options"] = [*(option for option in options if option != "rw"), "ro"]
        mounts.append(mount)
    own = {"destination": files.trial_dir, "type": "none", "source": files.trial_dir, "options": ["rbind", "rw"]}
    return {**found, "root": root, "mounts": [*mounts, own]}
