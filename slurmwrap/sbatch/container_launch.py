"""How a generated batch script starts its program in a container: the site's runtime, its options and the image. Pure.

`gsub new --container IMAGE` uses it. Sources of the options: pyxis's README, apptainer-exec(1), podman-run(1) and
ch-run(1).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection

from slurmwrap.errors import UsageError
from slurmwrap.fast_dataclasses import dataclass

PYXIS = "pyxis"
# Runtimes that can be written into a script, best first.
LAUNCHED = (PYXIS, "apptainer", "singularity", "podman-hpc", "podman", "ch-run")
_REGISTRY = re.compile(r"[\w-]+(?:\.[\w-]+)+(?::\d+)?|localhost(?::\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLaunch:
    """The words that start a program in a container, each with a blank at its end; "" if there are none."""

    runtime: str = ""
    # Options of srun, and the words before the program.
    options: str = ""
    prefix: str = ""


def choose_runtime(image: str, available: Collection[str], *, is_directory: bool) -> str:
    """Return the runtime for an image, of those that the site has. Raise UsageError if none of them can start it."""
    fitting: tuple[str, ...] = LAUNCHED
    if image.endswith((".sif", ".simg")):
        fitting = ("apptainer", "singularity")
    elif image.endswith((".sqsh", ".squashfs")):
        fitting = (PYXIS, "ch-run", "apptainer", "singularity")
    elif is_directory:
        fitting = ("ch-run", "apptainer", "singularity")
    found = next((name for name in fitting if name in available), "")
    if not found:
        raise UsageError(
            f"--container={image}: none of {', '.join(fitting)} is on this machine's PATH or among srun's options",
            hint="Load its module first, or write the script without --container and add the call yourself.",
        )
    return found


def make_container_launch(runtime: str, image: str, gpu_type: str = "") -> ContainerLaunch:
    """Return how `runtime` starts a program in `image`, with the GPUs and the working directory of the job."""
    amd = gpu_type.lower().startswith(("mi", "gfx", "amd"))
    name = image.removeprefix("docker://")
    if runtime == PYXIS:
        options = f"--container-image={shlex.quote(_format_enroot_name(image))}"
        return ContainerLaunch(
            runtime=runtime, options=f'{options} --container-mounts="$PWD:$PWD" --container-workdir="$PWD" '
        )
    if runtime in ("apptainer", "singularity"):
        address = image if "://" in image or _is_path(image) else f"docker://{image}"
        gpus = "--rocm" if amd else "--nv"
        return ContainerLaunch(
            runtime=runtime, prefix=f'{runtime} exec {gpus} --bind "$PWD" --pwd "$PWD" {shlex.quote(address)} '
        )
    if runtime in ("podman", "podman-hpc"):
        gpus = "--gpu" if runtime == "podman-hpc" else "--device /dev/kfd --device /dev/dri" if amd else _NVIDIA
        passed = "-e 'SLURM_*' -e 'PYTHON*' -e MASTER_ADDR -e MASTER_PORT -e WORLD_SIZE -e RANK -e LOCAL_RANK"
        run = f'{runtime} run --rm {gpus} --network=host --ipc=host -v "$PWD:$PWD" -w "$PWD" {passed}'
        return ContainerLaunch(runtime=runtime, prefix=f"{run} {shlex.quote(name)} ")
    # The libraries of the GPU's driver are put into an image of Charliecloud by `ch-fromhost --nvidia`.
    return ContainerLaunch(runtime=runtime, prefix=f'ch-run --bind="$PWD:/mnt/0" --cd=/mnt/0 {shlex.quote(name)} -- ')


# Podman knows NVIDIA's GPUs by the container device interface (nvidia-ctk cdi generate).
_NVIDIA = "--device nvidia.com/gpu=all"


def _is_path(image: str) -> bool:
    return image.startswith(("/", ".")) or image.endswith((".sif", ".simg", ".sqsh", ".squashfs"))


def _format_enroot_name(image: str) -> str:
    """Return an image as enroot names it: REGISTRY#IMAGE:TAG (enroot's import.md)."""
    if _is_path(image):
        return image
    name = image.removeprefix("docker://")
    first, slash, rest = name.partition("/")
    return f"{first}#{rest}" if slash and _REGISTRY.fullmatch(first) else name
