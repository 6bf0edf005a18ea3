"""Measure how many small mutations of the product the test suite detects, on a seeded sample (`make mutation-sample`).

1. All possible mutations inside functions are listed: a comparison, `and`/`or`, `not`, `+`/`-`, a number,
   `True`/`False`, a condition, a returned value, a call whose value is not used.
2. The list is ordered by a hash of the seed and of the mutation's own text; the first 200 are the sample. So the same
   mutations are chosen again after changes elsewhere in the code, and two commits can be compared.
3. The suite runs once on a copy of the tree in which each chosen statement records which test reached it. A process
   without PYTEST_CURRENT_TEST (a hook that slurmd started) is recorded for every test that runs at that moment.
4. Each mutation is made in a separate copy, and the tests that reach it run until one fails: the quickest first, at
   most 60 s of tests. A mutation is detected if a test fails that passed in step 3, or if the tests do not end.

A mutation without an observable effect counts as not detected. The share is for comparisons, not an absolute grade.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("slurmwrap", "hooks", "prolog")
# Not mutated: code that chooses the processes to kill. With one changed comparison it kills all others of the machine.
EXCLUDED = ("slurmwrap/lab/daemons.py", "slurmwrap/prerun/trial/process_tree.py")
WORKERS = os.cpu_count() or 1
# Most seconds of tests for one mutation, by the durations of the recording run.
TESTS_S = 60.0
COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
RECORDER = """
def _record_mutation_reached(number, seen=set()):  # noqa
    import os, time  # noqa
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if (number, test) in seen and test:
        return
    seen.add((number, test))
    try:
        file = os.open({file!r}, os.O_WRONLY | os.O_APPEND)
        os.write(file, ("%d\\t%f\\t%s\\n" % (number, time.time(), test.replace("\\n", " "))).encode())
        os.close(file)
    except OSError:
        pass
"""


@dataclass(frozen=True)
class Mutation:
    """One change: `path` is relative to the tree; `start` and `end` are offsets in the file's UTF-8 bytes."""

    path: str
    function: str
    kind: str
    before: str
    after: str
    start: int
    end: int
    line: int
    statement_line: int
    key: str


def make_mutants(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Yield each `(kind, node to replace, replacement)` that is possible at `node` itself."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARE:
            yield "compare", node, ast.Compare(node.left, [COMPARE[type(op)]()], node.comparators)
        case ast.BoolOp():
            yield "boolean", node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield "not", node, node.operand
        case ast.BinOp() if type(node.op) in ARITHMETIC and not isinstance(node.left, ast.JoinedStr):
            yield "arithmetic", node, ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
        case ast.Constant(value=bool() as value):
            yield "constant", node, ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield "number", node, ast.Constant(value + 1)
        case ast.If() | ast.IfExp() | ast.While():
            yield "condition", node.test, ast.UnaryOp(ast.Not(), node.test)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return", value, ast.Constant(None)
        case ast.Expr(value=ast.Call() as call):
            yield "call", call, ast.Constant(None)


class MutationFinder:
    """Collects in `found` the possible mutations in the functions of one file; `name` is its path in the tree."""

    def __init__(self, name: str, text: bytes, seed: str) -> None:
        self.name = name
        self.text = text
        self.seed = seed
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[Mutation] = []
        self.count: dict[tuple[str, ...], int] = defaultdict(int)

    def visit(self, node: ast.AST, function: tuple[str, ...] = (), inside: bool = False, line: int = 1) -> None:
        """Add the mutations of `node`. `inside`: it is in a function; `line`: the line of its statement."""
        if isinstance(node, ast.JoinedStr | ast.arguments | ast.pattern | ast.Assert):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for child in ast.iter_child_nodes(node):
                in_body = not isinstance(node, ast.ClassDef) and any(child is one for one in node.body)
                self.visit(child, (*function, node.name), in_body, line)
            return
        # No line can be inserted between an if and its elif, so the elif is recorded at the start of the if.
        if isinstance(node, ast.stmt) and not self._is_elif(node):
            line = node.lineno
        if inside:
            self._add(node, function, line)
        for child in ast.iter_child_nodes(node):
            self.visit(child, function, inside, line)

    def _is_elif(self, node: ast.stmt) -> bool:
        return self.text[self.starts[node.lineno - 1] + node.col_offset :].startswith(b"elif")

    def _add(self, node: ast.AST, function: tuple[str, ...], line: int) -> None:
        for kind, old, new in make_mutants(node):
            before, after = ast.unparse(old), ast.unparse(ast.fix_missing_locations(copy.deepcopy(new)))
            parts = (self.name, ".".join(function), kind, before)
            key = hashlib.sha256("\0".join((self.seed, *parts, str(self.count[parts]))).encode()).hexdigest()
            self.count[parts] += 1
            start = self.starts[old.lineno - 1] + old.col_offset
            end = self.starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
            self.found.append(Mutation(self.name, parts[1], kind, before, after, start, end, old.lineno, line, key))


def list_mutations(root: Path, seed: str) -> list[Mutation]:
    """Return all mutations of the functions of the product under `root`, in the order of the seeded hash."""
    found = []
    for path in sorted(file for top in PRODUCT for file in (root / top).rglob("*.py")):
        name = str(path.relative_to(root))
        if name in EXCLUDED:
            continue
        finder = MutationFinder(name, path.read_bytes(), seed)
        finder.visit(ast.parse(finder.text))
        found += finder.found
    return sorted(found, key=lambda mutation: mutation.key)


def apply_mutation(text: bytes, mutation: Mutation) -> bytes:
    """Return the file with the mutation."""
    return text[: mutation.start] + f"({mutation.after})".encode() + text[mutation.end :]


def insert_recorders(text: str, numbers: dict[int, list[int]], file: str) -> str:
    """Return the file with a call before each line of `numbers` that records the mutations of this line."""
    tree = ast.parse(text)
    after = 0
    for node in tree.body:  # the recorder goes below the docstring and the __future__ imports
        is_doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_doc or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            after = node.end_lineno or 0
        else:
            break
    lines = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        indent = line[: len(line) - len(line.lstrip())]
        lines += [f"{indent}_record_mutation_reached({mutation})\n" for mutation in numbers.get(number, ())]
        lines.append(line)
        if number == after:
            lines.append(RECORDER.format(file=file))
    if not after:
        lines.insert(0, RECORDER.format(file=file))
    return "".join(lines)


class CostPlugin:
    """Writes a line of JSON for each test: start and end, outcome, and CPU time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.passed = True
        used, began = sum(os.times()[:4]), time.time()
        result = yield
        line = {
            "test": item.nodeid, "began": began, "ended": time.time(), "cpu_s": sum(os.times()[:4]) - used,
            "passed": self.passed,
        }  # fmt: skip
        with (self.directory / f"costs-{os.getpid()}.jsonl").open("a") as out:
            out.write(json.dumps(line) + "\n")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed = self.passed and report.passed


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin; pytest calls this in the recording run because of `-p mutation_sample`."""
    directory = os.environ.get("SLURMWRAP_MUTATION_COSTS")
    if directory and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(CostPlugin(Path(directory)))


def copy_tree(root: Path, target: Path) -> None:
    """Copy the files of `root` that git tracks to `target`, with a .venv that imports the copy's slurmwrap."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (root / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name, follow_symlinks=False)
    venv = (root / ".venv").resolve()
    shutil.copytree(venv, target / ".venv", symlinks=True, copy_function=link_or_copy)
    inner = target / ".venv"
    site = next(inner.glob("lib/python*/site-packages"))
    named = [inner / "pyvenv.cfg", *(inner / "bin").iterdir(), *site.glob("_*slurmwrap*.pth")]
    named += site.glob("slurmwrap-*.dist-info/direct_url.json")
    for file in named:
        if file.is_file() and not file.is_symlink():
            try:
                text = file.read_text()
            except UnicodeDecodeError:
                continue
            mode = file.stat().st_mode
            file.unlink()
            file.write_text(text.replace(str(venv), str(inner)).replace(str(root), str(target)))
            file.chmod(mode)
    # The tests read ../shared if it is next to the checkout.
    shared = root.parent / "shared"
    if shared.exists() and not (target.parent / "shared").exists():
        (target.parent / "shared").symlink_to(shared)
    subprocess.run(["git", "init", "-q"], cwd=target, check=True)
    subprocess.run(["git", "add", "-A"], cwd=target, check=True, capture_output=True)


def link_or_copy(source: str, target: str) -> None:
    """Make a hard link if possible, else a copy: an environment has a gigabyte."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def record(root: Path, work: Path, sample: list[Mutation], pytest_args: list[str]) -> None:
    """Do step 3: write `work/hits` and `work/costs-*.jsonl`."""
    tree = work / "record" / "tree"
    copy_tree(root, tree)
    hits = work / "hits"
    hits.touch()
    hits.chmod(0o666)
    by_file: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, mutation in enumerate(sample):
        by_file[mutation.path][mutation.statement_line].append(number)
    for path, numbers in by_file.items():
        file = tree / path
        file.write_text(insert_recorders(file.read_text(), numbers, str(hits)))
        compile(file.read_text(), str(file), "exec")
    environment = {**os.environ, "SLURMWRAP_MUTATION_COSTS": str(work), "PYTHONPATH": str(Path(__file__).parent)}
    argv = [str(tree / ".venv/bin/python"), "-m", "pytest", "-q", "-p", "mutation_sample", *pytest_args]
    with (work / "record.log").open("w") as log:
        began = time.monotonic()
        code = subprocess.run(argv, cwd=tree, env=environment, stdout=log, stderr=log, check=False).returncode
    print(f"recorded in {time.monotonic() - began:.0f} s, pytest ended with {code}: {work / 'record.log'}", flush=True)


def choose_tests(work: Path, sample: list[Mutation]) -> list[list[str]]:
    """Return for each mutation the tests that reach it and passed, the quickest first, at most `TESTS_S` seconds."""
    costs = {}
    for file in work.glob("costs-*.jsonl"):
        for line in file.read_text().splitlines():
            cost = json.loads(line)
            costs[cost["test"]] = cost
    passed = {test: cost["ended"] - cost["began"] for test, cost in costs.items() if cost["passed"]}
    reached: list[set[str]] = [set() for _ in sample]
    moments: list[set[float]] = [set() for _ in sample]
    for line in (work / "hits").read_text(errors="replace").splitlines():
        number, moment, test = line.split("\t", 2)
        if test:
            reached[int(number)].add(test)
        else:
            moments[int(number)].add(float(moment))
    for tests, times in zip(reached, moments, strict=True):
        if not tests and times:  # only processes without a test's name reach it: take the tests that ran at that time
            some = sorted(times)[:: max(1, len(times) // 20)]
            tests |= {test for test, c in costs.items() if any(c["began"] <= moment <= c["ended"] for moment in some)}
    chosen = []
    for tests in reached:
        names, total = [], 0.0
        for test in sorted(tests & passed.keys(), key=lambda test: (passed[test], test)):
            total += passed[test]
            if total > TESTS_S and names:
                break
            names.append(test)
        chosen.append(names)
    return chosen


def run_mutation(tree: Path, mutation: Mutation, tests: list[str], log: Path) -> str:
    """Return `detected`, `not detected` or `not reached`."""
    if not tests:
        return "not reached"
    file = tree / mutation.path
    text = file.read_bytes()
    names = log.with_suffix(".tests")
    names.write_text("".join(f"{test}\n" for test in tests))
    try:
        file.write_bytes(apply_mutation(text, mutation))
        argv = [str(tree / ".venv/bin/python"), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"@{names}"]
        environment = {**os.environ, "PYTEST_XDIST_WORKER": f"m{tree.parent.name}"}
        with log.open("w") as out:
            process = subprocess.Popen(argv, cwd=tree, stdout=out, stderr=out, env=environment, start_new_session=True)
            try:
                code = process.wait(10 * TESTS_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGINT)  # pytest then ends its labs
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                return "detected"
    finally:
        file.write_bytes(text)
    if code not in (0, 1, 2, 3):
        # With the mutation the suite may fail to import, although its tests can be listed without the mutation.
        listing = [*argv[:3], "--collect-only", "-q", "-p", "no:cacheprovider", f"@{names}"]
        if subprocess.run(listing, cwd=tree, env=environment, capture_output=True, check=False).returncode:
            raise RuntimeError(f"pytest could not run its tests (exit code {code}): {log}")
    return "not detected" if code == 0 else "detected"


def main() -> None:
    """Run the steps, print the share and the mutations that were not detected, and write `report.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=200, help="how many mutations (default: 200)")
    parser.add_argument("--seed", default="slurmwrap", help="another sample (default: slurmwrap)")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure (default: this one)")
    parser.add_argument("--work", type=Path, default=Path("/var/tmp/slurmwrap-mutation"), help="where the copies lie")
    parser.add_argument("--list", action="store_true", help="print the sample and end")
    parser.add_argument("--recorded", action="store_true", help="use the recording that --work has")
    parser.add_argument("--record-only", action="store_true", help="end after step 3")
    parser.add_argument("pytest", nargs="*", help="pytest's arguments for the recording run (after --)")
    options = parser.parse_args()
    root = options.root.resolve()
    sample = list_mutations(root, options.seed)[: options.size]
    if options.list:
        for number, mutation in enumerate(sample):
            print(f"{number:3} {mutation.path}:{mutation.line} {mutation.before} -> {mutation.after}")
        return
    work: Path = options.work
    if not options.recorded:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        work.chmod(0o755)
        record(root, work, sample, options.pytest)
    if options.record_only:
        return
    chosen = choose_tests(work, sample)
    trees: Queue[Path] = Queue()
    for number in range(WORKERS):
        tree = work / str(number) / "tree"
        if tree.parent.exists():
            shutil.rmtree(tree.parent)
        copy_tree(root, tree)
        trees.put(tree)
    outcomes: list[str] = [""] * len(sample)

    def run_one(number: int) -> None:
        tree = trees.get()
        try:
            outcomes[number] = run_mutation(tree, sample[number], chosen[number], work / f"mutation-{number}.log")
        finally:
            trees.put(tree)
        done = sum(map(bool, outcomes))
        mutation = sample[number]
        place = f"{mutation.path}:{mutation.line} in {mutation.function}"
        print(f"{done}/{len(sample)} {outcomes[number]}: {place}: {mutation.before} -> {mutation.after}", flush=True)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(run_one, range(len(sample))))
    detected = outcomes.count("detected")
    rows = [
        {**asdict(mutation), "outcome": outcome, "tests": len(tests)}
        for mutation, outcome, tests in zip(sample, outcomes, chosen, strict=True)
    ]
    (work / "report.json").write_text(json.dumps({"detected": detected, "size": len(sample), "mutations": rows}))
    print(f"{detected} of {len(sample)} detected ({detected / len(sample):.1%}), "
          f"{outcomes.count('not reached')} not reached; {work / 'report.json'}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
