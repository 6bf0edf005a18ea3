"""Cases of a round and their mutants on disk: ROUND/<case>/<variant>/ with mutation.json, truth.json and work/.

The variant "original" has no bug; the others are "m1", "m2", ... `work/` is the user's directory with job.sbatch.
"""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prerun_rounds.edits import Edit, PythonSource, apply_edit, split_lines
from prerun_rounds.job_mutators import (
    CONFIG_OPERATORS,
    DATA_OPERATOR,
    JOB_OPERATORS,
    apply_damage,
    damage_data_file,
    is_data_file,
)
from prerun_rounds.late_mutators import (
    GENERAL_OPERATORS,
    LATE_OPERATORS,
    SHOWS_IN_NEXT_EPOCH,
    SHOWS_WHEN_LOADED,
    SHOWS_WHEN_SAVED,
    find_late_candidates,
)
from prerun_rounds.late_stages import STAGES, TRAINING, LineTrace, find_late_stages
from prerun_rounds.mutators import MEANT_NOT_TO_PARSE, OPERATORS, find_candidates

JOB = "job.sbatch"
ORIGINAL = "original"
STAGES_FILE = "stages.json"  # of an original: by file and line the stage, and the steps made when it ran first
ALL_OPERATORS = (*OPERATORS, *JOB_OPERATORS, *CONFIG_OPERATORS, DATA_OPERATOR)
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "case.toml", ".made", "*.pyc", "slurm-*.out")
_CONFIGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prepared training script."""

    name: str
    folder: Path
    files: tuple[str, ...]  # that a mutation may change
    counted: str = "torch"  # what makes the steps: torch, keras, jax or other
    source: str = ""
    resume: str | None = None  # arguments of job.sbatch that continue from the first run's checkpoint; None: it cannot


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A case without a bug, or one of its mutants, as it lies in the folder of a round."""

    case: str
    name: str
    folder: Path

    @property
    def work(self) -> Path:
        """The directory with the script and the data."""
        return self.folder / "work"

    @property
    def mutation(self) -> dict[str, Any]:
        """The content of mutation.json."""
        return read_json(self.folder / "mutation.json")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in the file; {} if there is none."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) else {}


def write_json(path: Path, plain: object) -> None:
    """Replace the file at once, so that an interrupted run leaves the former content."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def list_cases(folder: Path, names: Collection[str] = ()) -> Iterator[Case]:
    """Yield the cases that are ready, which is when they have case.toml. `names`: only these; () for all."""
    for path in sorted(folder.glob("*/case.toml")):
        name = path.parent.name
        if not names or name in names:
            plain = tomllib.loads(path.read_text(encoding="utf-8"))
            yield Case(
                name=name,
                folder=path.parent,
                files=tuple(plain["files"]),
                counted=str(plain.get("counted", "torch")),
                source=f"{plain.get('source', '')} {plain.get('path', '')}".strip(),
                resume=plain.get("resume"),
            )


def list_variants(folder: Path, names: Collection[str] = ()) -> Iterator[Variant]:
    """Yield the variants of a round, of each case the original first."""
    found = sorted(folder.glob("*/*/mutation.json"), key=lambda p: (p.parent.parent.name, p.parent.name != ORIGINAL, p))
    for path in found:
        case = path.parent.parent.name
        if not names or case in names:
            yield Variant(case=case, name=path.parent.name, folder=path.parent)


def choose_edits(case: Case, rng: random.Random, count: int) -> list[Edit]:
    """Return up to `count` edits by different operators. Each operator that fits is equally likely."""
    found: list[Edit] = []
    for operator in rng.sample(ALL_OPERATORS, len(ALL_OPERATORS)):
        if len(found) == count:
            break
        candidates = find_edits(case, operator, rng)
        shuffled = rng.sample(candidates, len(candidates))
        if (chosen := next((edit for edit in shuffled if _is_sound(case, edit)), None)) is not None:
            found.append(chosen)
    return found


def read_sources(case: Case) -> dict[str, PythonSource]:
    """Return the case's own Python files that parse."""
    found = {}
    for file in case.files:
        if file.endswith(".py"):
            with suppress(SyntaxError, ValueError):
                found[file] = PythonSource(file, (case.folder / file).read_text(encoding="utf-8"))
    return found


def choose_late_edits(
    case: Case, trace: LineTrace, rng: random.Random, count: int, planted: Mapping[str, int]
) -> list[tuple[str, Edit]]:
    """Return up to `count` edits of late lines, each with the stage that it is planted for.

    `planted`: bugs of the round by stage. The stages with the fewest come first, so that rare ones are measured as
    well. Within a stage each operator that fits is equally likely, then each of its candidates. The stages and the
    operators of a case differ as far as possible.
    """
    sources = read_sources(case)
    waiting = find_late_edits(case, sources, find_late_stages(trace, sources), trace, rng)
    found: list[tuple[str, Edit]] = []
    used: set[str] = set()
    while waiting and len(found) < count:
        shuffled_stages = rng.sample(sorted(waiting), len(waiting))
        for stage in sorted(shuffled_stages, key=lambda one: planted.get(one, 0)):
            fitting = [name for name in waiting[stage] if name not in used] or list(waiting[stage])
            operator = rng.choice(sorted(fitting))
            candidates = waiting[stage].pop(operator)
            used.add(operator)
            if not waiting[stage]:
                del waiting[stage]
            shuffled = rng.sample(candidates, len(candidates))
            chosen = next((edit for edit in shuffled if _is_sound(case, edit)), None)
            if chosen is not None and all(chosen != edit for _, edit in found):
                found.append((stage, chosen))
                if len(found) == count:
                    break
    return found


def find_late_edits(
    case: Case,
    sources: Mapping[str, PythonSource],
    stages: Mapping[str, Mapping[int, str]],
    trace: LineTrace,
    rng: random.Random,
) -> dict[str, dict[str, list[Edit]]]:
    """Return the candidates by stage and operator.

    A key that is wrong where a checkpoint is written shows where it is read: in the resumed run, or in the final test
    if a late line loads something. A directory that is not made shows where something is saved.
    """
    loads = any("load" in line for file, source in sources.items() for line in _list_late_lines(source, stages[file]))
    when_loaded = "resume" if case.resume is not None else "final_test" if loads else ""
    found: dict[str, dict[str, list[Edit]]] = {}
    for operator in (*GENERAL_OPERATORS, *LATE_OPERATORS):
        for file, source in sources.items():
            for edit in find_late_candidates(operator, source, rng):
                stage = stages[file].get(find_first_change(edit), "")
                if operator in SHOWS_WHEN_SAVED:
                    stage = "save" if find_first_change(edit) in trace.lines.get(file, {}) else ""
                elif stage and operator in SHOWS_WHEN_LOADED:
                    stage = when_loaded
                elif stage not in ("", TRAINING, "resume", "final_test") and operator in SHOWS_IN_NEXT_EPOCH:
                    stage = "next_epoch"
                if stage in STAGES:
                    found.setdefault(stage, {}).setdefault(operator, []).append(edit)
    return found


def find_first_change(edit: Edit) -> int:
    """Return the line of the first difference between the old and the new lines."""
    old, new = split_lines(edit.old), split_lines(edit.new)
    same = next(
        (at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new))
    )
    return edit.line + min(same, len(old) - 1)


def _list_late_lines(source: PythonSource, stages: Mapping[int, str]) -> Iterator[str]:
    rows = source.text.split("\n")
    return (rows[line - 1] for line in stages)


def find_edits(case: Case, operator: str, rng: random.Random) -> Sequence[Edit]:
    """Return all candidates of one operator in the files of the case."""
    found: list[Edit] = []
    if operator == DATA_OPERATOR:
        sizes = {path: size for path, size in list_files(case.folder) if path not in case.files}
        files = [path for path, size in sizes.items() if is_data_file(path, size)]
        return [edit for path in files for edit in damage_data_file(path, sizes[path], rng)]
    for file, find in _list_finders(case, operator):
        text = (case.folder / file).read_text(encoding="utf-8")
        found.extend(find(file, text, rng))
    return found


def _list_finders(
    case: Case, operator: str
) -> Iterator[tuple[str, Callable[[str, str, random.Random], Sequence[Edit] | Iterator[Edit]]]]:
    if operator in JOB_OPERATORS:
        yield JOB, JOB_OPERATORS[operator]
    for file in case.files:
        if operator in CONFIG_OPERATORS and file.endswith(_CONFIGS):
            yield file, CONFIG_OPERATORS[operator]
        elif operator in OPERATORS and file.endswith(".py"):
            yield file, lambda name, text, rng: find_candidates(operator, name, text, rng)


def list_files(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield (relative path, size) of the regular files, sorted."""
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root) / name
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(folder)), path.stat().st_size


def _is_sound(case: Case, edit: Edit) -> bool:
    """Return whether a Python file still parses and differs; with an operator about syntax, whether it does not."""
    if not edit.file.endswith(".py"):
        return edit.old != edit.new
    text = (case.folder / edit.file).read_text(encoding="utf-8")
    try:
        changed = ast.dump(ast.parse(apply_edit(text, edit))) != ast.dump(ast.parse(text))
    except (SyntaxError, ValueError):
        return edit.operator in MEANT_NOT_TO_PARSE
    return changed and edit.operator not in MEANT_NOT_TO_PARSE


def write_variants(
    case: Case, edits: Sequence[Edit], seed: int, out: Path, stages: Sequence[str] = ()
) -> list[Variant]:
    """Copy the case once without a bug and once for each edit. Existing variants are replaced.

    `stages`: of late bugs, the stage of each edit.
    """
    written = []
    for at, edit in enumerate((None, *edits)):
        name = f"m{at}" if at else ORIGINAL
        folder = out / case.name / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(case.folder, folder / "work", symlinks=True, ignore=_NOT_COPIED)
        if edit is not None:
            change_file(folder / "work" / edit.file, edit)
        plain = {"case": case.name, "variant": name, "seed": seed, "counted": case.counted, "source": case.source}
        if case.resume is not None:
            plain["resume"] = case.resume
        if at and stages:
            plain["stage"] = stages[at - 1]
        write_json(folder / "mutation.json", plain | (edit.to_json_dict() if edit else {"operator": ""}))
        written.append(Variant(case=case.name, name=name, folder=folder))
    return written


def change_file(path: Path, edit: Edit) -> None:
    """Apply the edit to the file."""
    if edit.damage:
        path.write_bytes(apply_damage(path.read_bytes(), edit.damage))
    else:
        # The edit was made for text with \n at the line ends.
        line_end = "\r\n" if b"\r\n" in path.read_bytes() else "\n"
        text = path.read_text(encoding="utf-8")
        path.write_text(apply_edit(text, edit), encoding="utf-8", newline=line_end)
