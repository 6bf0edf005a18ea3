"""Check the containers that a batch script starts: the image, what is bound, and whether steps can be counted inside.

Pure but for looking at the files. Every finding is a warning: a script may create what is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import suggest_path
from slurmwrap.prerun.static.container_calls import RUNTIMES, BoundPath, list_bound_paths, parse_container_call
from slurmwrap.prerun.static.launcher_args import parse_srun
from slurmwrap.prerun.static.shell_words import UNKNOWN
from slurmwrap.prerun.static.started_program import StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext

# First release of Python in which the step counter runs.
_OLDEST = (3, 6)
_FOLDERS = (
    "usr/bin",
    "usr/local/bin",
    "bin",
    "opt/conda/bin",
    "opt/venv/bin",
    "root/miniconda3/bin",
    "opt/miniconda/bin",
)
_PYTHON = re.compile(r"(?:python|pypy)(?:(\d+)(?:\.(\d+))?)?")
_LOCAL_IMAGE = re.compile(r"\.(?:sif|simg|img|sqsh|sqfs|squashfs)$")


def check_containers(commands: Sequence[StartedProgram], context: StaticContext) -> Iterator[Finding]:
    """Warn about images and bound directories that do not exist, and about images without a suitable Python."""
    seen: set[str] = set()
    for one in commands:
        for image, bound, needs_python in _list_containers(one, context.environ):
            for finding in _check_container(one, image, bound, needs_python, context):
                if finding.message not in seen:
                    seen.add(finding.message)
                    yield finding


def _list_containers(
    one: StartedProgram, environ: Mapping[str, str]
) -> Iterator[tuple[str, tuple[BoundPath, ...], bool]]:
    """Yield (local image or "", bound paths, whether the command inside is to be counted)."""
    for at, word in enumerate(one.whole):
        name = os.path.basename(word)
        rest = one.whole[at:]
        if name == "srun":
            call = parse_srun(rest[1:])
            if call.in_container:
                mounts = (part.partition(":")[0] for part in (call.value("container-mounts") or "").split(",") if part)
                bound = tuple(BoundPath(source=part, target=part) for part in mounts)
                yield call.value("container") or call.value("container-image") or "", bound, True
        elif name in RUNTIMES and (inside := parse_container_call(rest)):
            kind = inside.runtime.kind
            image = "" if kind in ("podman", "docker", "bwrap", "shifter", "sarus") else inside.image
            yield image, list_bound_paths(inside, one.cwd or "/\0"), bool(inside.command)


def _check_container(
    one: StartedProgram, image: str, bound: Sequence[BoundPath], needs_python: bool, context: StaticContext
) -> Iterator[Finding]:
    path = _find_image_path(image, one.cwd)
    if path and context.shared(path) and not os.path.exists(path):
        yield _make_finding(
            one, f"{path}: no such image", f"correct the path{suggest_path(path)}, or pull it first", context
        )
    elif path and needs_python and os.path.isdir(path) and (why := find_python_fault(path)):
        fix = "the pre-run cannot count steps in it; print a step number with the loss, or use --prerun=off"
        yield _make_finding(one, f"{path}: {why}", fix, context, category="")
    for source in dict.fromkeys(each.source for each in bound):
        known = source.startswith("/") and UNKNOWN not in source and not set("$*?{") & set(source)
        if known and context.shared(source) and not os.path.exists(source):
            yield _make_finding(
                one, f"{source}: no such file or directory (bound into a container)", "correct or create it", context
            )


def _find_image_path(image: str, cwd: str) -> str:
    """Return the absolute path of an image that is a file or directory; "" for a name or URL, or if it is not known."""
    if not image or UNKNOWN in image or "://" in image or set("$*?{#") & set(image):
        return ""
    if not image.startswith(("/", ".")) and not _LOCAL_IMAGE.search(image):
        return ""
    if not image.startswith("/") and not cwd:
        return ""
    return os.path.normpath(os.path.join(cwd, image))


def find_python_fault(root: str) -> str:
    """Return why the step counter cannot run in an image that is a directory; "" if it can, or if that is not known."""
    if os.path.isfile(f"{root}/config.json"):
        # An OCI bundle.
        root = f"{root}/rootfs"
    if not os.path.isdir(f"{root}/usr") and not os.path.isdir(f"{root}/bin"):
        return ""
    releases: list[tuple[int, int] | None] = []
    for folder in _FOLDERS:
        try:
            names = os.listdir(f"{root}/{folder}")
        except OSError:
            continue
        for name in names:
            if found := _PYTHON.fullmatch(name):
                releases.append((int(found[1]), int(found[2])) if found[1] and found[2] else None)
    if not releases:
        return "there is no Python in this image"
    known = [release for release in releases if release is not None]
    if known and max(known) < _OLDEST:
        return f"its newest Python is {max(known)[0]}.{max(known)[1]}, and the step counter needs 3.6"
    return ""


def _make_finding(
    one: StartedProgram, message: str, fix: str, context: StaticContext, *, category: str = "incorrect_inputs"
) -> Finding:
    where = one.entry.file if one.entry is not None and one.entry.file else context.script
    return Finding(severity=Severity.WARNING, message=message, file=where, line=one.line, fix=fix, category=category)
