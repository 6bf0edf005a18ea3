"""Stages of the lines that a training script first executes after its third step. Pure.

The plain run of the original says when each line ran first (counter/first_lines.py). A line is late if it ran first
when three steps were made. Its stage comes from the words around it, the nearest first: its statement, the headers of
the blocks that it is in, the name of its function, then the same of the calls that led to it. Within one of these the
order of STAGE_WORDS decides. What strings say does not count. Words of a final test count after the last step only;
before it they mean validation.

A line without such words is `epoch_end`, or `next_epoch` if it is in the loop that makes the steps and a late line of
another stage ran before it. Other lines of that loop, or of what it calls, such as a log line at each 100th step, are
`training` and get no bug. A line that runs only in the second run, which continues from a checkpoint, is `resume`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from prerun_rounds.edits import PythonSource

LATE_AFTER = 3  # steps
TRAINING = "training"
STAGES = ("validation", "save", "scheduler", "epoch_end", "next_epoch", "final_test", "resume")
_BEGIN = r"(?<![a-z])"
STAGE_WORDS = (
    ("scheduler", re.compile(rf"sched|lr_decay|{_BEGIN}adjust_l|reducelronplateau|{_BEGIN}warmup")),
    ("save", re.compile(rf"{_BEGIN}save|checkpoint|{_BEGIN}ckpt|state_dict|{_BEGIN}dump|to_csv|{_BEGIN}export|onnx")),
    ("final_test", re.compile(rf"{_BEGIN}(?:test(?!ament)|predict|sampl|generat|infer(?!red)|final(?!ly)|best)")),
    (
        "validation",
        re.compile(rf"{_BEGIN}(?:val(?!u)|eval|dev_|metric|accurac|acc(?![a-z])|score|psnr|ssim|f1|auc|dice|iou)"),
    ),
)
_STRING = re.compile(r"\"{3}.*?\"{3}|'{3}.*?'{3}|\"[^\"\n]*\"|'[^'\n]*'", re.DOTALL)
_STEP_MADE = re.compile(r"\.backward\(|\.step\(|apply_updates|apply_gradients|train_step|training_step")
Lines = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTrace:
    """What one traced case did: per file and line the steps made before, the order, and the callers.

    `resumed`: lines of the second run, or empty. `total`: steps of the whole first run.
    """

    lines: Mapping[str, Mapping[int, tuple[int, int, tuple[tuple[str, str, int], ...]]]]
    resumed: Mapping[str, frozenset[int]]
    total: int


def read_line_trace(first: Mapping[str, Any], second: Mapping[str, Any] | None, source: str) -> LineTrace:
    """Return the trace from what first_lines.py wrote. `source` is what counts the steps."""
    lines = {
        file: {
            int(line): (
                int(one["counts"].get(source, 0)),
                int(one["order"]),
                tuple((str(f), str(name), int(at)) for f, name, at in one["stack"]),
            )
            for line, one in found.items()
        }
        for file, found in first["lines"].items()
    }
    resumed = {file: frozenset(map(int, found)) for file, found in (second or {"lines": {}})["lines"].items()}
    return LineTrace(lines=lines, resumed=resumed, total=int(first["counts"].get(source, 0)))


class StatementMap:
    """The innermost statement of each line of a file, with the texts around it."""

    def __init__(self, source: PythonSource) -> None:
        self.source = source

    @cached_property
    def by_line(self) -> Mapping[int, ast.stmt]:
        """Statement of each line. The header of a compound statement belongs to it, its body does not."""
        found: dict[int, ast.stmt] = {}
        for node in self.source.nodes:  # parents come before their children
            if isinstance(node, ast.stmt):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    found[line] = node
        return found

    def lines_of(self, statement: ast.stmt) -> range:
        """Return the statement's own lines; of a compound statement the header's, without decorators."""
        body = getattr(statement, "body", None)
        if isinstance(body, list) and body:
            return range(statement.lineno, max(statement.lineno + 1, body[0].lineno))
        return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)

    def header(self, statement: ast.stmt) -> str:
        """Return the text of `lines_of` in lower case, without what strings say."""
        rows = self.source.text.split("\n")
        return _STRING.sub('""', "\n".join(rows[line - 1] for line in self.lines_of(statement))).lower()

    def texts_around(self, line: int) -> Iterator[str]:
        """Yield the text of the line's statement, then of the blocks that it is in up to its function, with its name.

        The headers of `if __name__ == "__main__"` and of the class are left out.
        """
        statement = self.by_line.get(line)
        if statement is None:
            return
        yield self.header(statement)
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return
        for parent in self.source.ancestors(statement):
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield parent.name.lower()
                return
            if isinstance(parent, ast.stmt) and not isinstance(parent, ast.ClassDef):
                yield self.header(parent)

    def find_loops(self, line: int) -> list[ast.For | ast.While]:
        """Return the loops around the line in its function, the innermost first."""
        statement = self.by_line.get(line)
        found = []
        for parent in self.source.ancestors(statement) if statement else ():
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
                break
            if isinstance(parent, (ast.For, ast.While)):
                found.append(parent)
        return found

    def makes_steps(self, loop: ast.For | ast.While, early: frozenset[int]) -> bool:
        """Return whether the loop itself, not one inside it, makes the steps, by lines that ran `early`."""
        rows = self.source.text.split("\n")
        inner = [one for one in ast.walk(loop) if isinstance(one, (ast.For, ast.While)) and one is not loop]
        nested = {at for one in inner for at in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
        own = set(range(loop.lineno, (loop.end_lineno or loop.lineno) + 1)) - nested
        return any(at in early and _STEP_MADE.search(rows[at - 1]) for at in own)


def find_late_stages(trace: LineTrace, sources: Mapping[str, PythonSource]) -> dict[str, dict[int, str]]:
    """Return the stage of each late line, by file. A statement is late only if its first line to run ran late."""
    maps = {file: StatementMap(source) for file, source in sources.items()}
    early = {
        file: frozenset(line for line, one in trace.lines.get(file, {}).items() if one[0] < LATE_AFTER)
        for file in sources
    }
    late = [
        (order, file, line)
        for file in sources
        for line, (steps, order, _) in trace.lines.get(file, {}).items()
        if steps >= LATE_AFTER and not _is_statement_early(maps[file], line, early[file])
    ]
    found: dict[str, dict[int, str]] = {file: {} for file in sources}
    seen_other = False
    for _, file, line in sorted(late):
        steps, _, stack = trace.lines[file][line]
        stage = _find_stage_by_words(maps, file, line, stack, is_over=steps >= trace.total)
        if not stage:
            stage = _find_stage_by_loops(maps, early, [(file, line), *((f, at) for f, _, at in stack[1:])], seen_other)
        seen_other = seen_other or stage not in (TRAINING, "next_epoch")
        found[file][line] = stage
    for file, source_map in maps.items():
        known = frozenset(trace.lines.get(file, {}))
        for line in trace.resumed.get(file, frozenset()) - known:
            if not _is_statement_early(source_map, line, known):
                found[file][line] = "resume"
    return {file: _spread_over_statements(maps[file], lines) for file, lines in found.items()}


def _find_stage_by_loops(
    maps: Mapping[str, StatementMap],
    early: Mapping[str, frozenset[int]],
    places: Sequence[tuple[str, int]],
    seen_other: bool,
) -> str:
    """Return the stage of a line without words. `places`: the line, then those of the calls that led to it."""
    loops = [(file, loop) for file, line in places if file in maps for loop in maps[file].find_loops(line)]
    for at, (file, loop) in enumerate(loops):
        if maps[file].makes_steps(loop, early[file]):
            # Without a loop around it there is no next epoch.
            return "next_epoch" if seen_other and loops[at + 1 :] else TRAINING
    return "epoch_end"


def _is_statement_early(source_map: StatementMap, line: int, early: frozenset[int]) -> bool:
    statement = source_map.by_line.get(line)
    return statement is None or any(at in early for at in source_map.lines_of(statement))


def _spread_over_statements(source_map: StatementMap, lines: Mapping[int, str]) -> dict[int, str]:
    """Give the lines of a statement that Python reports no event for the stage of the statement."""
    found = dict(lines)
    for line, stage in sorted(lines.items()):
        for at in source_map.lines_of(source_map.by_line[line]):
            found.setdefault(at, stage)
    return found


def _find_stage_by_words(
    maps: Mapping[str, StatementMap], file: str, line: int, stack: tuple[tuple[str, str, int], ...], *, is_over: bool
) -> str:
    places = [(file, line), *((f, at) for f, _, at in stack[1:])]
    for at_file, at in places:
        for text in maps[at_file].texts_around(at) if at_file in maps else ():
            for stage, words in STAGE_WORDS:
                if words.search(text):
                    return "validation" if stage == "final_test" and not is_over else stage
    return ""
