"""The ground truth of a round: run each variant plainly as one process, without Slurm and without slurmwrap.

A case that can resume is started a second time from the checkpoint that its first run left: its original, and the
mutants whose bug is planted for that stage.
"""

from __future__ import annotations

import json
import os
import re
import shlex
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

from prerun_rounds.cases import JOB, ORIGINAL, STAGES_FILE, Variant, read_json, write_json
from prerun_rounds.edits import split_lines
from prerun_rounds.late_stages import STAGES

VISIBLE_BEFORE = 3  # a bug is visible if the run fails before this step is completed
TIME_LIMIT_S = 240.0
HERE = Path(__file__).resolve().parent
PRINTED = "printed"
_TRACEBACK = "Traceback (most recent call last)"
_LAST_LINES = 12
_ERROR = re.compile(r"[\w.]*(?:Error|Exception|Exit|Interrupt|Iteration|Failure)\b")
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
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
    runs: int = 1  # that were started; 2 with the one that resumes
    error: str = ""  # first line of the error; "" if there is none
    places: Sequence[tuple[str, int]] = ()  # own files and lines of the last traceback, the innermost last
    lines: Sequence[Mapping[str, Any]] = ()  # of each run, what counter/first_lines.py wrote; () if not asked for


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


def run_plainly(
    work: Path,
    *,
    counted: str,
    path: str,
    limit_s: float,
    scratch: Path | None = None,
    resume: str | None = None,
    record_lines: bool = False,
) -> PlainRun:
    """Run job.sbatch with bash in a copy of the directory, with a home of its own, and stop it at the limit.

    `resume`: arguments of a second run in the same directory, after a first one without an error. The output, the
    error and the exit code are those of the last run; the steps are those of the process that made most.
    """
    with tempfile.TemporaryDirectory(prefix="plain-run-", dir=scratch) as made:
        place = Path(made)
        for name in ("steps", "home", "tmp"):
            (place / name).mkdir()
        shutil.copytree(work, place / "work", symlinks=True)
        environ = make_plain_environ(os.environ, place, path)
        began = time.monotonic()
        lines: list[Mapping[str, Any]] = []
        runs, traceback = 0, False
        for arguments in ([], *([shlex.split(resume)] if resume is not None else [])):
            runs += 1
            if record_lines:
                (place / f"lines{runs}").mkdir()
                environ |= {
                    "PRERUN_ROUNDS_LINES": str(place / f"lines{runs}"),
                    "PRERUN_ROUNDS_ROOT": str(place / "work"),
                }
            with (place / "output").open("wb") as output:
                exit_code = _run_to_its_end(place / "work", environ, output.fileno(), limit_s, arguments)
            text = (place / "output").read_text(encoding="utf-8", errors="replace")
            if runs == 1:
                printed = count_printed_steps(text)
            if record_lines:
                lines.append(read_first_lines(place / f"lines{runs}"))
            traceback = traceback or _TRACEBACK in text
            if exit_code or traceback:
                break
        seconds = time.monotonic() - began
        counts = {**read_counts(place / "steps"), PRINTED: printed}
        failed = bool(exit_code) or traceback
        error = find_error(text) if failed else ""
        places = find_places(text, place / "work") if failed else []
    source = select_source(counts, counted)
    return PlainRun(
        exit_code=124 if exit_code is None else exit_code,
        timed_out=exit_code is None,
        traceback=traceback,
        steps=counts.get(source, 0),
        counted_by=source,
        counts=counts,
        seconds=round(seconds, 1),
        # The scratch directory is another one in each run.
        last_lines=[line[:300].replace(str(place), "") for line in text.strip().splitlines()[-_LAST_LINES:]],
        runs=runs,
        error=error[:300].replace(str(place), ""),
        places=places,
        lines=lines,
    )


def find_error(output: str) -> str:
    """Return the line of the last error that Python printed, without the rank in front; else the last line."""
    rows = [re.sub(r"^\[rank\d+\]: ?", "", line.strip("\r")) for line in output.splitlines()]
    found = [row for row in rows if _ERROR.match(row)]
    # torchrun adds an error of its own to the one of the program.
    own = [row for row in found if "ChildFailedError" not in row and "CalledProcessError" not in row]
    return (own or found or [row for row in rows if row.strip()] or [""])[-1]


def find_places(output: str, work: Path) -> list[tuple[str, int]]:
    """Return the files below `work` and lines of the last traceback that has any, the innermost last."""
    for part in reversed(output.split(_TRACEBACK)[1:]):
        places = []
        for file, line in _FRAME.findall(part):
            whole = Path(os.path.normpath(work / file))
            if whole.is_relative_to(work) and not file.startswith("<"):
                places.append((str(whole.relative_to(work)), int(line)))
        if places:
            return places
    return []


def read_first_lines(folder: Path) -> dict[str, Any]:
    """Return what first_lines.py wrote in the process that made most steps, with the most lines among equals."""
    found: list[dict[str, Any]] = [read_json(path) for path in folder.iterdir()]
    usable = [one for one in found if one.get("lines")]
    return max(
        usable,
        key=lambda one: (max(one["counts"].values(), default=0), sum(map(len, one["lines"].values()))),
        default={"lines": {}, "counts": {}},
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


def _run_to_its_end(
    work: Path, environ: Mapping[str, str], output: int, limit_s: float, arguments: Sequence[str]
) -> int | None:
    """Return the exit code, or None if the limit was reached. No process of the run is left."""
    process = subprocess.Popen(
        ["bash", JOB, *arguments], cwd=work, env=dict(environ), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
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
    mutation = variant.mutation
    needs_second = variant.name == ORIGINAL or mutation.get("stage") == "resume"
    run = run_plainly(
        variant.work,
        counted=str(mutation.get("counted", "torch")),
        path=path,
        limit_s=limit_s,
        scratch=scratch,
        resume=mutation.get("resume") if needs_second else None,
    )
    plain = {"case": variant.case, "variant": variant.name, **asdict(run)}
    del plain["lines"]
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


def find_shown_stage(run: Mapping[str, Any], mutation: Mapping[str, Any], lines: Mapping[str, Any]) -> str:
    """Return the stage that a late bug shows in; `lines`: stage and first step by file and line, as in stages.json.

    That is `resume` if the second run failed, else the stage of the innermost late line of the traceback, else the
    stage that the bug is planted for. A bug for the next epoch that fails after more steps than the line's first
    execution is of that stage.
    """
    if run.get("runs") == 2:
        return "resume"
    planted = str(mutation["stage"])
    shift = len(split_lines(str(mutation["new"]))) - len(split_lines(str(mutation["old"])))
    for file, line in reversed(run.get("places", ())):
        moved = line - shift if file == mutation["file"] and line > mutation["line"] else line
        stage, first = lines.get(file, {}).get(str(moved), ("", 0))
        if stage in STAGES:
            return "next_epoch" if planted == "next_epoch" and run["steps"] > first else str(stage)
    return planted


def list_late_bugs(round_dir: Path) -> list[dict[str, Any]]:
    """Return the late bugs that plain runs confirmed: script, stage, operator, place, error; in the order of variants.

    An original that is not sound, and a case that was not planted with late bugs, have none.
    """
    truths = read_truths([round_dir])
    found = []
    for (case, variant), run in sorted(truths.items()):
        mutation = read_json(round_dir / case / variant / "mutation.json")
        if run["class"] != "late" or "stage" not in mutation:
            continue
        stages = read_json(round_dir / case / ORIGINAL / STAGES_FILE)
        found.append(
            {
                "case": case,
                "variant": variant,
                "stage": find_shown_stage(run, mutation, stages),
                "planted": mutation["stage"],
                "operator": mutation["operator"],
                "place": f"{mutation['file']}:{mutation['line']}",
                "error": run.get("error", ""),
                "steps": run["steps"],
                "source": mutation.get("source", ""),
            }
        )
    return found
