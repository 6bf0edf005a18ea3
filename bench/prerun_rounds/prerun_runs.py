"""Pre-runs of the variants of a round: `gsub --prerun=only --json`, or without Slurm the same stages (direct.py)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prerun_rounds.cases import JOB, Variant, read_json, write_json

HERE = Path(__file__).resolve().parent
_MUTATION_KEYS = ("operator", "file", "line", "old", "new", "damage", "source")
_LAST_LINES, _LONGEST_REASON = 4, 800
_ANSWERED = ("pass", "fail", "inconclusive")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How the pre-runs of a round are made."""

    path: str = ""  # directories in front of PATH, with the jobs' Python
    direct: bool = False
    timeout_s: float = 1500.0
    static_s: float = 0.0  # seconds of the static stage; 0: as shipped
    environ: Mapping[str, str] | None = None
    rehearse_s: float | None = None  # prerun.rehearse_s; 0: no rehearsal; None: as configured
    options: Sequence[str] = ()  # further options of gsub


def run_variant(variant: Variant, settings: RunSettings) -> dict[str, Any]:
    """Return the result of one pre-run, with the mutation that was tried."""
    began = time.monotonic()
    if settings.direct:
        with tempfile.TemporaryDirectory(prefix="prerun-", dir=variant.folder) as made:
            done = _call(_make_direct_call(variant, Path(made) / "trial"), variant, settings)
    else:
        options = [*settings.options]
        if variant.mutation.get("stage") == "resume":
            words = variant.mutation.get("resume", "")
            options += [f"--resume-args={words}" if words else "--rehearse=resume"]
        done = _call([*_make_gsub_call(settings), "--prerun=only", "--json", *options, JOB], variant, settings)
    exit_code, stdout, stderr = done
    _cancel_submitted(stdout, settings)
    mutation = {key: variant.mutation[key] for key in _MUTATION_KEYS if key in variant.mutation}
    return {
        "case": variant.case,
        "variant": variant.name,
        **mutation,
        **read_answer(exit_code, stdout, stderr),
        "wall_s": round(time.monotonic() - began, 1),
    }


def read_answer(exit_code: int, stdout: str, stderr: str) -> dict[str, Any]:
    """Return the verdict, layer, reason, seconds, steps, errors and number of warnings of one call.

    A request that sbatch itself refuses is `fail` with layer "sbatch". Any other call without a verdict is `error`.
    """
    try:
        plain = json.loads(stdout)
    except ValueError:
        plain = {}
    warnings = sum(line.startswith("gsub: warning: ") for line in stderr.splitlines())
    if not isinstance(plain, dict) or plain.get("verdict") not in _ANSWERED:
        refused = exit_code != 0 and "sbatch: error:" in stderr and "(details: " not in stderr
        reason = "; ".join(stderr.strip().splitlines()[-_LAST_LINES:])[-_LONGEST_REASON:] or "no answer"
        found = {"verdict": "fail", "layer": "sbatch"} if refused else {"verdict": "error", "layer": ""}
        return {**found, "reason": reason, "seconds": 0.0, "steps": 0, "errors": [], "warnings": warnings}
    findings = plain.get("findings", [])
    errors = [
        f"{one.get('file', '')}:{one.get('line', 0)}: {one['message']}"
        for one in findings
        if one["severity"] == "error"
    ]
    return {
        **{key: plain.get(key) for key in ("verdict", "layer", "reason", "seconds", "steps", "category")},
        "errors": errors,
        "warnings": max(warnings, len(findings) - len(errors)),
    }


def run_all(
    variants: Sequence[Variant], settings: RunSettings, jobs: int, out: Path, about: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Run the variants that have no verdict in `out` yet, and write `out` after each. Print the progress on stderr."""
    results: list[dict[str, Any]] = [one for one in read_json(out).get("results", []) if one["verdict"] != "error"]
    known = {(one["case"], one["variant"]) for one in results}
    waiting = [one for one in variants if (one.case, one.name) not in known]
    lock = threading.Lock()

    def run_one(variant: Variant) -> None:
        result = run_variant(variant, settings)
        with lock:
            results.append(result)
            write_json(out, {**about, "results": sorted(results, key=lambda one: (one["case"], one["variant"]))})
            done = f"[{len(results)}/{len(variants)}] {variant.case} {variant.name}"
            print(
                f"{done} {result.get('operator', '')}: {result['verdict']} ({result['layer']}) "
                f"after {result['seconds']:.0f} s: {str(result['reason'])[:120]}",
                file=sys.stderr,
                flush=True,
            )

    run_in_parallel(run_one, waiting, jobs)
    return results


def run_in_parallel(work: Callable[[Variant], object], variants: Sequence[Variant], jobs: int) -> None:
    """Call `work` for each variant, `jobs` at a time. The first error ends the program after the calls in flight."""
    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(work, variant) for variant in variants]:
            future.result()


def _make_gsub_call(settings: RunSettings) -> list[str]:
    if not settings.static_s:
        return [sys.executable, "-m", "slurmwrap.gsub.gsub_main"]
    code = (
        "import runpy; from slurmwrap.prerun.static import static_stage; "
        f"static_stage.BUDGET_S = {settings.static_s}; "
        "runpy.run_module('slurmwrap.gsub.gsub_main', run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code]


def _make_direct_call(variant: Variant, trial_dir: Path) -> list[str]:
    return [sys.executable, str(HERE / "direct.py"), str(variant.work), str(trial_dir)]


def _call(command: Sequence[str], variant: Variant, settings: RunSettings) -> tuple[int, str, str]:
    environ = dict(os.environ if settings.environ is None else settings.environ)
    if settings.path:
        environ["PATH"] = f"{settings.path}:{environ.get('PATH', '')}"
    if settings.rehearse_s is not None:
        environ["SLURMWRAP_PRERUN_REHEARSE_S"] = f"{settings.rehearse_s:g}"
    if settings.direct:
        environ["PYTHONPATH"] = ""
    try:
        done = subprocess.run(
            command, cwd=variant.work, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=settings.timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer after {settings.timeout_s:.0f} s"
    return done.returncode, done.stdout, done.stderr


def _cancel_submitted(stdout: str, settings: RunSettings) -> None:
    """Cancel a job that gsub passed on to sbatch: a round runs no job."""
    if (found := re.fullmatch(r"Submitted batch job (\d+)\n", stdout)) and shutil.which("scancel"):
        subprocess.run(["scancel", found[1]], check=False, timeout=60)
