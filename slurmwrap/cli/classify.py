"""`slurmwrap classify`: classify failures from log files, or score the classifier on labelled examples."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurmwrap.config import load_config as configuration
from slurmwrap.diagnosis.classifier import make_classifier
from slurmwrap.diagnosis.evaluate_classifier import ClassifierScore, label_of, make_evidence, score
from slurmwrap.errors import UsageError
from slurmwrap.escape import visible
from slurmwrap.json_output import format_json_document, format_json_line
from slurmwrap.model.evidence import Citation, Diagnosis, Evidence, KernelLine, LogTail

if TYPE_CHECKING:
    from collections.abc import Mapping

# Largest number of bytes that are read of one file; of a longer file the end is read.
READ_CAP = 64 * 1024 * 1024
Classify = Callable[[Evidence], Diagnosis]


def classify_command(
    files: Annotated[list[Path] | None, typer.Argument(help="Output files of one job.", metavar="FILE…")] = None,
    kernel: Annotated[Path | None, typer.Option(help="Lines of the node's kernel log during the job.")] = None,
    exit_code: Annotated[int | None, typer.Option(help="Exit code as Slurm reports it (before the colon).")] = None,
    signal: Annotated[int | None, typer.Option(help="Signal as Slurm reports it (after the colon).")] = None,
    derived_exit_code: Annotated[
        str, typer.Option(metavar="N[:SIGNAL]", help="Slurm's DerivedExitCode: the worst of the steps.")
    ] = "",
    state: Annotated[str, typer.Option(help="Final Slurm state, such as FAILED or TIMEOUT.")] = "",
    reason: Annotated[str, typer.Option(help="Slurm's Reason, such as NodeDown.")] = "",
    signatures: Annotated[
        Path | None, typer.Option(help="Signatures in addition to the shipped ones (default: diagnosis.signatures).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    jsonl: Annotated[
        Path | None, typer.Option(help="Classify every object of a JSON Lines file (- for stdin).")
    ] = None,
    score_files: Annotated[
        bool, typer.Option("--score", help="Score the classifier on labelled JSON Lines FILEs.")
    ] = False,
) -> None:
    """Explain why a job failed, from its output, its exit code and its node's kernel log.

    \b
    Examples:
      slurmwrap classify slurm-4711.out --state FAILED --exit-code 1
      slurmwrap classify rank*.log --kernel <(journalctl -k --since -1h) --json
      slurmwrap classify --jsonl jobs.jsonl > answers.jsonl
      slurmwrap classify --score labelled.jsonl
    """
    site = str(signatures) if signatures else configuration.load(os.environ).diagnosis.signatures
    classify = make_classifier(site)
    if jsonl is not None:
        for location, row in _read_rows(jsonl):
            typer.echo(_format_answer(row.get("id", ""), classify(_make_evidence(location, row))))
    elif not files:
        raise UsageError("classify needs a FILE, or --jsonl FILE", hint="slurmwrap classify --help")
    elif score_files:
        typer.echo(_format_score(_score_files(files, classify)))
    else:
        code, steps_signal = _parse_exit_code(derived_exit_code)
        evidence = Evidence(
            state=state,
            reason=reason,
            exit_code=exit_code,
            signal=signal,
            derived_exit_code=code,
            derived_signal=steps_signal,
            logs=tuple(map(_read_tail, files)),
            kernel=_read_kernel_lines(kernel),
        )
        found = classify(evidence)
        typer.echo(
            format_json_document("diagnosis", _diagnosis_to_json_dict(found)) if as_json else _format_diagnosis(found)
        )


def _parse_exit_code(text: str) -> tuple[int | None, int | None]:
    code, _, signal = text.partition(":")
    if not text:
        return None, None
    if not code.isdecimal() or (signal and not signal.isdecimal()):
        raise UsageError(f"--derived-exit-code {text}: not a number, or two with a colon between", hint="such as 0:9")
    return int(code), int(signal or 0) or None


def _make_evidence(location: str, row: Mapping[str, Any]) -> Evidence:
    try:
        return make_evidence(row)
    except ValueError as error:
        raise UsageError(f"{location}: {error}") from error


def _score_files(files: list[Path], classify: Classify) -> ClassifierScore:
    rows, answers = [], []
    for location, row in (pair for file in files for pair in _read_rows(file)):
        try:
            label_of(row)
        except ValueError as error:
            raise UsageError(f"{location}: {error}") from error
        rows.append(row)
        answers.append(classify(_make_evidence(location, row)))
    return score(rows, answers)


def _format_answer(row_id: object, found: Diagnosis) -> str:
    return format_json_line("diagnosis", {"id": row_id, **_diagnosis_to_json_dict(found)})


def _diagnosis_to_json_dict(found: Diagnosis) -> dict[str, Any]:
    return {
        "category": found.category,
        "domain": found.domain,
        "decision": found.decision,
        "confidence": found.confidence,
        "signature": found.signature,
        "evidence": [
            {"source": cite.source, "line": cite.line, "text": cite.text, "role": cite.role} for cite in found.evidence
        ],
        "advice": found.advice,
        "node": found.node,
        "conclusive": found.conclusive,
        "input_path": found.input_path,
        "step": found.step,
        "resumed": found.resumed,
        "checkpoint_step": found.checkpoint_step,
    }


def _format_diagnosis(found: Diagnosis) -> str:
    lines = [f"{found.category} ({found.signature or 'no signature'}), confidence {found.confidence:.2f}"]
    lines += [f"decision: {found.decision}"]
    lines += [f"{cite.role:8} {_format_source(cite)}: {visible(cite.text)}" for cite in found.evidence]
    lines += [f"input: {visible(found.input_path)}"] if found.input_path else []
    lines += [f"node: {found.node}{' (conclusive)' if found.conclusive else ''}"] if found.node else []
    lines += [_format_progress(found)] if found.step is not None or found.resumed else []
    return "\n".join([*lines, found.advice] if found.advice else lines)


def _format_source(cite: Citation) -> str:
    return f"{visible(cite.source)}:{cite.line}" if cite.line else cite.source


def _format_progress(found: Diagnosis) -> str:
    parts = [
        f"step {found.step}" if found.step is not None else "",
        "resumed from a checkpoint" if found.resumed else "",
    ]
    parts += [f"checkpoint of step {found.checkpoint_step}" if found.checkpoint_step is not None else ""]
    return "progress: " + ", ".join(part for part in parts if part)


def _format_score(result: ClassifierScore) -> str:
    lines = [f"{'category':24} {'n':>4} {'precision':>9} {'recall':>6} {'F1':>6}"]
    lines += [
        f"{row.category:24} {row.labelled:4d} {row.precision:9.3f} {row.recall:6.3f} {row.f1:6.3f}"
        for row in result.categories
    ]
    lines += [
        f"right {result.right} of {result.total}: accuracy {result.accuracy:.4f}, macro-F1 {result.macro_f1:.4f}",
        f"decision accuracy {result.decision_accuracy:.4f} "
        f"({result.decisions_default} defaults, {result.decisions_allowed} with the taxonomy's overrides)",
    ]
    lines += [
        f"confused: {row.labelled} taken for {row.predicted}, {row.count} ({', '.join(row.ids)})"
        for row in result.confusions
    ]
    return "\n".join(lines)


def _read_rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each object with its source, "FILE, line N"."""
    text = sys.stdin.read() if str(file) == "-" else _read_whole(file)
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        location = f"{file}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{location}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise UsageError(f"{location}: not a JSON object")
        yield location, row


def _read_whole(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _read_kernel_lines(file: Path | None) -> tuple[KernelLine, ...]:
    lines = _read_tail(file).text.split("\n") if file else []
    return tuple(KernelLine(text=line) for line in lines if line.strip())


def _read_tail(file: Path) -> LogTail:
    """Read a whole file, or the end of one beyond READ_CAP; a pipe, such as <(journalctl -k), is read to its end."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2) if stream.seekable() else 0
            cut = max(0, size - READ_CAP)
            first = _count_lines_before(stream, cut) + 1 if cut else 1
            if size:
                stream.seek(cut)
            text = stream.read(READ_CAP).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    return LogTail(name=str(file), text=text, first_line=first, truncated=bool(cut))


def _count_lines_before(stream: Any, cut: int) -> int:
    """Count the lines that end before the offset `cut`; the file is read in pieces."""
    stream.seek(0)
    count, left = 0, cut
    while left and (piece := stream.read(min(left, 1 << 20))):
        count += piece.count(b"\n")
        left -= len(piece)
    return count
