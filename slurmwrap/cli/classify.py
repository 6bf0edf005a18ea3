"""`slurmwrap classify`: reads logs, calls the classifier, prints. Flags in, one flow called, output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurmwrap.diagnosis.classify import classify
from slurmwrap.diagnosis.evidence import Diagnosis, Evidence, KernelLine, LogTail
from slurmwrap.diagnosis.score import Score, evidence_of, score
from slurmwrap.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

READ_CAP = 64 * 1024 * 1024  # of one file; the end of a longer one is read


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("classify")(classify_command)


def classify_command(
    files: Annotated[list[Path] | None, typer.Argument(help="Output files of one job.", metavar="FILE…")] = None,
    kernel: Annotated[Path | None, typer.Option(help="Lines of the node's kernel log during the job.")] = None,
    exit_code: Annotated[int | None, typer.Option(help="Exit code as Slurm reports it (before the colon).")] = None,
    signal: Annotated[int | None, typer.Option(help="Signal as Slurm reports it (after the colon).")] = None,
    state: Annotated[str, typer.Option(help="Final Slurm state, such as FAILED or TIMEOUT.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    jsonl: Annotated[
        Path | None, typer.Option(help="Classify every object of a JSON Lines file (- for stdin).")
    ] = None,
    score_files: Annotated[bool, typer.Option("--score", help="FILEs are labelled JSON Lines: score.")] = False,
) -> None:
    """Say why a job failed, from its output, its exit and its node's kernel log."""
    if jsonl is not None:
        for row in _rows(jsonl):
            typer.echo(json.dumps(_answer(row), ensure_ascii=False))
    elif not files:
        raise UsageError("classify needs a FILE, or --jsonl FILE", hint="slurmwrap classify --help")
    elif score_files:
        rows = [row for file in files for row in _rows(file)]
        typer.echo(_score_text(score(rows, [classify(evidence_of(row)) for row in rows])))
    else:
        lines = _read(kernel).splitlines() if kernel else []
        evidence = Evidence(
            state=state,
            exit_code=exit_code,
            signal=signal,
            logs=tuple(LogTail(name=str(file), text=_read(file)) for file in files),
            kernel=tuple(KernelLine(text=line) for line in lines if line.strip()),
        )
        found = classify(evidence)
        typer.echo(json.dumps(_plain(found), ensure_ascii=False) if as_json else _text(found))


def _answer(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": row.get("id", ""), **_plain(classify(evidence_of(row)))}


def _plain(found: Diagnosis) -> dict[str, Any]:
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
    }


def _text(found: Diagnosis) -> str:
    lines = [f"{found.category} ({found.signature or 'no signature'}), confidence {found.confidence:.2f}"]
    lines += [f"decision: {found.decision}"]
    lines += [f"{cite.role:8} {cite.source}:{cite.line}: {_printable(cite.text)}" for cite in found.evidence]
    lines += [f"input: {_printable(found.input_path)}"] if found.input_path else []
    return "\n".join([*lines, found.advice] if found.advice else lines)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _score_text(result: Score) -> str:
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


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    text = sys.stdin.read() if str(file) == "-" else _read(file)
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{file}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise UsageError(f"{file}, line {number}: not a JSON object")
        yield row


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - READ_CAP))
            return stream.read(READ_CAP).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
