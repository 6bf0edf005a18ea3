"""The shim of apptainer, podman, docker, ch-run, bwrap, enroot, ... in a trial: become the rewritten call (adapter).

shims/contain calls it as `python -I -m slurmwrap.prerun.trial.container_shim NAME SHIMS_DIR ARGUMENTS...`. It looks at
the image where the runtime permits it, records what is bound where, and becomes the real runtime. launcher_shim.py uses
`start_srun_container` for `srun --container-image` and `srun --container`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from slurmwrap.prerun.isolation.overlay import needs_setuid
from slurmwrap.prerun.static.container_calls import BoundPath, ContainerCall, parse_container_call
from slurmwrap.prerun.static.launcher_args import SrunCall
from slurmwrap.prerun.trial.container_rewrite import (
    SHARED_FOLDERS,
    RewrittenCall,
    TrialFiles,
    list_bundle_paths,
    make_bundle_config,
    rewrite_container_call,
    rewrite_srun_call,
)
from slurmwrap.prerun.trial.trial_containers import NO_OVERLAY, UNREACHABLE, record_container

# Runtimes whose daemon or Slurm starts the container outside of the trial's mount namespace.
_DETACHED = ("docker",)
# Seconds that a question about an image may take. Pulling one may take as long as in the real job.
_INSPECT_S = 30.0
# Options of run and create that `podman pull` and `docker pull` have too.
_PULL_OPTIONS = ("arch", "os", "variant", "platform", "authfile", "tls-verify", "creds", "cert-dir", "decryption-key")
# First release of Podman whose option :O takes upperdir and workdir.
_WITH_LAYERS = (4, 1)


def main(argv: Sequence[str]) -> NoReturn:
    """Run the runtime. `argv`: its name, the directory of the shims, its arguments."""
    name, shims, *arguments = argv
    environ = {k: v for k, v in os.environ.items() if k != "SLURMWRAP_CALLED"}
    program = find_real_program(name, shims, os.environ)
    if program is None:
        print(f"{name}: command not found", file=sys.stderr)
        sys.exit(127)
    call = parse_container_call([name, *arguments])
    trial_dir = environ.get("SLURMWRAP_TRIAL_DIR", "")
    if call is None or not trial_dir:
        os.execve(program, [name, *arguments], environ)
    roots = tuple(p for p in environ.get("SLURMWRAP_OVERLAY", "").split(":") if p)
    if roots and needs_setuid(name, program) and call.runtime.kind not in _DETACHED:
        _ask_for_a_trial_without_overlay(trial_dir, name)
    if remote := find_remote_engine(call, environ):
        _record(call.runtime.kind, program, RewrittenCall(arguments=(), environ={}), trial_dir, {}, detached=True)
        print(f"{UNREACHABLE}{name} runs it on {remote}", file=sys.stderr)
        sys.exit(125)
    layers = _find_layers(call, program)
    files = TrialFiles(
        trial_dir=trial_dir,
        environ=environ,
        cwd=os.getcwd(),
        number=os.getpid(),
        in_overlay=bool(roots) and call.runtime.kind not in _DETACHED,
        overlay_roots=roots,
        image_environ=_read_image_environment(call, program, environ),
        make_layers=layers,
    )
    rewritten = rewrite_container_call(call, files)
    _make_shared_folders(call, trial_dir)
    _record(call.runtime.kind, program, rewritten, trial_dir, layers.made, detached=call.runtime.kind in _DETACHED)
    os.execve(program, [name, *rewritten.arguments], dict(rewritten.environ))


def start_srun_container(
    call: SrunCall, srun: str, environ: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (arguments, environment) of the real srun that starts the task in its container with the trial's files."""
    trial_dir = environ["SLURMWRAP_TRIAL_DIR"]
    roots = tuple(p for p in environ.get("SLURMWRAP_OVERLAY", "").split(":") if p)
    files = TrialFiles(trial_dir=trial_dir, environ=environ, cwd=os.getcwd(), number=os.getpid(), overlay_roots=roots)
    bundle = call.value("container") or ""
    copy, bound = _copy_bundle(bundle, files) if bundle else ("", ())
    rewritten = rewrite_srun_call(call, files, bundle=copy, bound_by_bundle=bound)
    _record("srun", srun, rewritten, trial_dir, {}, detached=True)
    return rewritten.arguments, dict(rewritten.environ)


def find_real_program(name: str, shims: str, environ: Mapping[str, str]) -> str | None:
    """Return the real program of a shim: the path by which it was called, or the first on PATH that is no shim."""
    called = environ.get("SLURMWRAP_CALLED", "")
    if called.startswith("/") and os.access(called, os.X_OK):
        return called
    own = {os.path.realpath(shims), os.path.realpath(f"{environ.get('SLURMWRAP_TRIAL_DIR', shims)}/inside")}
    folders = [f for f in environ.get("PATH", os.defpath).split(":") if f and os.path.realpath(f) not in own]
    return shutil.which(name, path=":".join(folders))


def find_remote_engine(call: ContainerCall, environ: Mapping[str, str]) -> str:
    """Return the other machine on which docker or podman runs containers, with files of its own; "" if none."""
    variable = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}.get(call.runtime.kind, "")
    address = environ.get(variable, "") if variable else ""
    for at, word in enumerate(call.head[:-1]):
        option, equals, value = word.partition("=")
        if option in ("-H", "--host", "--url", "-c", "--connection", "--context"):
            address = value if equals else call.head[at + 1]
    return "" if not address or address.startswith(("unix://", "/", "fd://", "default")) else address


def _ask_for_a_trial_without_overlay(trial_dir: str, name: str) -> NoReturn:
    """Record that this runtime cannot work in the overlay. The supervisor ends the trial and tries without one."""
    Path(trial_dir, "steps", NO_OVERLAY).write_text(f"{name}\n", encoding="utf-8")
    time.sleep(3600.0)
    sys.exit(1)


def _read_image_environment(call: ContainerCall, program: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables that the image sets; None if they cannot be known."""
    if call.runtime.kind in ("podman", "docker"):
        return _inspect_image(call, program, environ)
    if call.runtime.kind == "enroot" and not call.image.startswith("/"):
        data = environ.get("ENROOT_DATA_PATH") or f"{environ.get('HOME', '')}/.local/share/enroot"
        return _read_environment_file(f"{data}/{call.image}/etc/environment")
    return None


def _inspect_image(call: ContainerCall, program: str, environ: Mapping[str, str]) -> dict[str, str]:
    head = [program, *call.head[1:-1]]
    group = [word for word in head if word != "container"]
    if call.subcommand == "exec":
        return _parse_environment(_ask([*group, "container", "inspect", "-f", "{{json .Config.Env}}", call.image]))
    question = [*group, "image", "inspect", "-f", "{{json .Config.Env}}", call.image]
    answer = _ask(question)
    policy = (call.values("pull") or [""])[-1]
    if not answer and policy != "never" and not call.given("rootfs"):
        options = [word for name, _, words in call.options if name in _PULL_OPTIONS for word in words]
        # It prints on standard error what `run` itself would print there, and fails for the same reasons.
        subprocess.run(
            [*group, "pull", *options, call.image], stdout=subprocess.DEVNULL, env=dict(environ), check=False
        )
        answer = _ask(question)
    return _parse_environment(answer)


def _ask(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            timeout=_INSPECT_S,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _parse_environment(text: str) -> dict[str, str]:
    try:
        listed = json.loads(text) if text.strip() else []
    except ValueError:
        return {}
    return dict(item.partition("=")[::2] for item in listed or [] if isinstance(item, str))


def _read_environment_file(path: str) -> dict[str, str] | None:
    with suppress(OSError):
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
        return dict(line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("#"))
    return None


class _Layers:
    """Makes the layers of podman's temporary overlays: one per directory for all containers of the trial."""

    def __init__(self, known: Path) -> None:
        self._known = known
        self.made: dict[str, str] = {}

    def __call__(self, source: str) -> tuple[str, str] | None:
        own = re.sub(r"\W", "_", source)[-80:]
        try:
            folder = self._find_folder()
            upper, work = f"{folder}/{own}/upper", f"{folder}/{own}/work"
            for path in (upper, work):
                Path(path).mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        self.made[source] = upper
        return upper, work

    def _find_folder(self) -> str:
        """Return the trial's directory for layers, on a local disk: an NFS directory cannot be an upper layer."""
        if self._known.exists():
            return self._known.read_text(encoding="utf-8")
        named = (os.environ.get("SLURM_TMPDIR", ""), os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp")
        usable = next(p for p in named if p and os.access(p, os.W_OK | os.X_OK))
        made = tempfile.mkdtemp(prefix="slurmwrap-overlay-", dir=usable)
        self._known.write_text(made, encoding="utf-8")
        return made


class _NoLayers(_Layers):
    def __call__(self, source: str) -> None:
        return None


def _find_layers(call: ContainerCall, program: str) -> _Layers:
    known = Path(os.environ.get("SLURMWRAP_TRIAL_DIR", ""), "layers")
    if call.runtime.kind != "podman":
        return _NoLayers(known)
    found = re.search(r"(\d+)\.(\d+)", _ask([program, "--version"]))
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    return _Layers(known) if release >= _WITH_LAYERS else _NoLayers(known)


def _make_shared_folders(call: ContainerCall, trial_dir: str) -> None:
    """Create what is bound one by one into containers whose user may be another than the trial's.

    Everyone may write to these directories, but only the user can reach them on the host: the trial's own is private.
    """
    if call.runtime.kind not in ("podman", "docker"):
        return
    for name in SHARED_FOLDERS[call.runtime.kind]:
        folder = Path(trial_dir, name)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777 if name not in ("inside", "inject") else 0o755)
        if name in ("inside", "inject"):
            for file in folder.iterdir():
                file.chmod(0o755)
    for name in ("journal", "exits", "refused"):
        file = Path(trial_dir, "steps", name)
        if name != "refused":
            file.touch()
            file.chmod(0o666)


def _record(
    kind: str, program: str, rewritten: RewrittenCall, trial_dir: str, layers: Mapping[str, str], *, detached: bool
) -> None:
    record_container(
        trial_dir,
        {
            "number": os.getpid(),
            "kind": kind,
            "program": program,
            "cidfile": rewritten.cidfile,
            "bound": [[one.source, one.target] for one in rewritten.bound],
            "layers": dict(layers),
            "detached": detached,
        },
    )


def _copy_bundle(bundle: str, files: TrialFiles) -> tuple[str, tuple[BoundPath, ...]]:
    """Return (copy of an OCI bundle's configuration with the trial's mounts, what the bundle itself binds).

    If it is unreadable, return the bundle itself.

    Only config.json is copied; the root directory is that of the bundle. slurmstepd changes no file of a bundle.
    """
    bundle = os.path.abspath(bundle)
    try:
        config = json.loads(Path(bundle, "config.json").read_text(encoding="utf-8"))
        changed = make_bundle_config(config, files, bundle)
        copy = Path(files.trial_dir, f"bundle.{files.number}")
        copy.mkdir(mode=0o700, exist_ok=True)
        (copy / "config.json").write_text(json.dumps(changed), encoding="utf-8")
    except (OSError, ValueError, AttributeError, TypeError):
        return bundle, ()
    return str(copy), list_bundle_paths(config, bundle)


if __name__ == "__main__":
    main(sys.argv[1:])
