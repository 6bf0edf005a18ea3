"""The ground truth of a round: run each variant plainly as one process, without Slurm and without slurmwrap."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prerun_rounds.cases import JOB, ORIGINAL, Variant, read_json, write_json

VISIBLE_BEFORE = 3  # a bug is visible if the run fails before this step is completed
TIME_LIMIT_S = 240.0
HERE = Path(__file__).resolve().parent
PRINTED = "printed"
_TRACEBACK = "Traceback (most recent call last)"
_LAST_LINES = 12
# What says that steps go on, for programs whose steps cannot be counted.
_PRINTED_STEP = re.compile(r"\bloss\b.*\d|\b(?:step|iter|batch)\w*[ :=#]*\d", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRun:
    """How one plain run ended. `steps`: completed before its end; `counted_by`: their source in `counts`."""

    exit_code: int
    timed_out: bool
    traceback: bool
    steps: int
    counted_by: str
    counts: Mapping[str, int]
    seconds: float
    last_lines: Sequence[str]


def has_gpu() -> bool:
    """Return whether this machine has a GPU of NVIDIA."""
    return Path("/dev/nvidia0").exists() and shutil.which("nvidia-smi") is not None


def select_source(counts: Mapping[str, int], counted: str) -> str:
    """Return what counted the steps of an original: what its case names, else the largest count, else "printed"."""
    named = {"jax": ("optax", "jax"), "torch": ("torch",), "keras": ("keras",)}.get(counted, ())
    usable = [source for source in counts if source not in ("torch_all", PRINTED) and counts[source]]
    largest = max(usable, key=lambda source: counts[source], default=PRINTED)
    return next((source for source in named if counts.get(source)), largest)


def count_printed_steps(output: str) -> int:
    """Return the number of lines that say that a step was made."""
    return sum(1 for line in output.splitlines() if _PRINTED_STEP.search(line))


def classify(run: Mapping[str, Any], original: Mapping[str, Any]) -> str:
    """Return "sound", "unusable", "visible", "late", "silent" or "timeout"; `run` and `original` are from truth.json.

    A run fails if it ends with an exit code other than 0, or if a process prints a traceback that the original does
    not print. The case is unusable if its original fails, reaches its time limit or makes fewer than three steps.
    """
    usable = not original["exit_code"] and not original["timed_out"] and original["steps"] >= VISIBLE_BEFORE
    if not usable:
        return "unusable"
    if run is original or run.get("variant") == ORIGINAL:
        return "sound"
    if run["timed_out"]:
        return "timeout"
    if not run["exit_code"] and (not run["traceback"] or original["traceback"]):
        return "silent"
    return "visible" if run["steps"] < VISIBLE_BEFORE else "late"


def run_plainly(work: Path, *, counted: str, path: str, limit_s: float, scratch: Path | None = None) -> PlainRun:
    """Run job.sbatch with bash in a copy of the directory, with a home of its own, and stop it at the limit."""
    with tempfile.TemporaryDirectory(prefix="plain-run-", dir=scratch) as made:
        place = Path(made)
        for name in ("steps", "home", "tmp"):
            (place / name).mkdir()
        shutil.copytree(work, place / "work", symlinks=True)
        environ = make_plain_environ(os.environ, place, path)
        began = time.monotonic()
        with (place / "output").open("wb") as output:
            exit_code = _run_to_its_end(place / "work", environ, output.fileno(), limit_s)
        seconds = time.monotonic() - began
        text = (place / "output").read_text(encoding="utf-8", errors="replace")
        counts = {**read_counts(place / "steps"), PRINTED: count_printed_steps(text)}
    source = select_source(counts, counted)
    return PlainRun(
        exit_code=124 if exit_code is None else exit_code,
        timed_out=exit_code is None,
        traceback=_TRACEBACK in text,
        steps=counts.get(source, 0),
        counted_by=source,
        counts=counts,
        seconds=round(seconds, 1),
        # The scratch directory is another one in each run.
        last_lines=[line[:300].replace(str(place), "") for line in text.strip().splitlines()[-_LAST_LINES:]],
    )


def make_plain_environ(environ: Mapping[str, str], place: Path, path: str) -> dict[str, str]:
    """Return the environment of a plain run: no Slurm, one process, steps are counted in `place`/steps."""
    kept = {name: value for name, value in environ.items() if not name.startswith(("SLURM", "SBATCH_", "PYTHON"))}
    return {
        **kept,
        "PATH": ":".join(filter(None, (str(HERE / "launchers"), path, environ.get("PATH", "")))),
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "PYTHONPATH": str(HERE / "counter"),
        "PRERUN_ROUNDS_STEPS": str(place / "steps"),
        "CUDA_VISIBLE_DEVICES": "0" if has_gpu() else "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _run_to_its_end(work: Path, environ: Mapping[str, str], output: int, limit_s: float) -> int | None:
    """Return the exit code, or None if the limit was reached. No process of the run is left."""
    process = subprocess.Popen(
        ["bash", JOB], cwd=work, env=dict(environ), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # The group is that of this run: it began a session of its own.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def read_counts(folder: Path) -> dict[str, int]:
    """Return by source the count of the process that counted most."""
    found: dict[str, int] = {}
    for path in folder.iterdir():
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
        for source, number in plain.items():
            found[source] = max(number, found.get(source, 0))
    return found


def write_truth(variant: Variant, *, path: str, limit_s: float, scratch: Path | None = None) -> dict[str, Any]:
    """Run the variant and write its truth.json."""
    counted = str(variant.mutation.get("counted", "torch"))
    run = run_plainly(variant.work, counted=counted, path=path, limit_s=limit_s, scratch=scratch)
    plain = {"case": variant.case, "variant": variant.name, **asdict(run)}
    write_json(variant.folder / "truth.json", plain)
    return plain


def read_truths(places: Iterable[Path]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the content of truth.json by (case, variant), with the class as `class`. `places`: files or folders.

    The steps of a mutant are those of the source that counted its original: one that failed before its first step may
    have printed lines that look like steps.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for place in places:
        for path in [place] if place.is_file() else sorted(place.rglob("truth.json")):
            plain = read_json(path)
            found[plain["case"], plain["variant"]] = plain
    for (case, _), plain in found.items():
        original = found.get((case, ORIGINAL))
        if original:
            plain["counted_by"] = original["counted_by"]
            plain["steps"] = plain["counts"].get(original["counted_by"], 0)
        plain["class"] = classify(plain, original) if original else "unusable"
    return found
