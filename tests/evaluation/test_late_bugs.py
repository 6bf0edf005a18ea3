"""The bench of late bugs: when lines run first, their stages, the operators, the second run, and the page."""

from __future__ import annotations

import ast
import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from prerun_rounds import cases, ground_truth, prerun_runs
from prerun_rounds.__main__ import main
from prerun_rounds.edits import PythonSource, apply_edit
from prerun_rounds.late_mutators import GENERAL_OPERATORS, LATE_OPERATORS, find_late_candidates
from prerun_rounds.late_stages import find_late_stages, read_line_trace
from prerun_rounds.mutators import OPERATORS
from prerun_rounds.page import format_page
from waiting import allow

# operator -> (source, a changed source among the candidates); the line ends are added.
CHANGES = {
    "scheduler_argument": ("scheduler.step(val_loss)", "scheduler.step()"),
    "checkpoint_key": ("torch.save({'model': m.state_dict()}, p)", "torch.save({'modle': m.state_dict()}, p)"),
    "module_attribute": ("x = net.module.state_dict()", "x = net.modules.state_dict()"),
    "save_directory": ("torch.save(x, p)", 'torch.save(x, "snapshots/" + str(p))'),
    "missing_directory": ("os.makedirs(p)\nf(p)", "f(p)"),
    "metric": ("acc = accuracy(out, y)", "acc = accuracy(out[:-1], y)"),
    "other_name": ("for x in val_loader: f(x)", "for x in valid_loader: f(x)"),
    "format": ("print(f'{loss:.4f}')", "print(f'{loss:d}')"),
    "checkpoint_nesting": ("m.load_state_dict(c['model'])", "m.load_state_dict(c)"),
    "missing_detach": ("y = x.detach().numpy()", "y = x.numpy()"),
    "unpacked_result": ("loss = evaluate(m)", "loss, _ = evaluate(m)"),
    "rebound_list": ("losses.append(loss)", "losses = losses.append(loss)"),
    "shadowed_name": ("loss = validate(m)\nlog(loss)", "validate = validate(m)\nlog(validate)"),
}


@pytest.mark.parametrize("operator", LATE_OPERATORS)
def test_each_late_operator_plants_its_bug(operator: str) -> None:
    text, wanted = CHANGES[operator]
    source = PythonSource("train.py", f"{text}\n")
    found = {
        apply_edit(source.text, edit)
        for seed in range(40)
        for edit in find_late_candidates(operator, source, random.Random(seed))
    }
    assert f"{wanted}\n" in found


@pytest.mark.parametrize(
    ("operator", "text", "wanted"),
    [
        ("scheduler_argument", "lr_scheduler.step()", "lr_scheduler.step(metrics=0.0)"),
        ("scheduler_argument", "optimizer.step()", ""),
        ("checkpoint_key", "d = dict(model=m.state_dict(), epoch=3)", "d = dict(model=m.state_dict(), epcoh=3)"),
        ("checkpoint_key", "d = {'train_loss': 3}", ""),
        ("module_attribute", "x = net.state_dict()", "x = net.module.state_dict()"),
        ("save_directory", "with open(p, 'w') as f: f", "with open(\"snapshots/\" + str(p), 'w') as f: f"),
        ("save_directory", "with open(p) as f: f", ""),
        ("metric", "y = out.argmax(dim=1)", "y = out.argmax(dim=4)"),
        ("other_name", "f(val_loader, valid_loader, validation_loader, dev_loader, val_dl, val_dataloader)", ""),
        ("format", "print('{} {}'.format(a, b))", "print('{} {}'.format(a))"),
        ("format", "print('%d %d' % (a, b))", "print('%d %d' % (a,))"),
        ("checkpoint_nesting", "m.load_state_dict(c)", 'm.load_state_dict(c["model"])'),
        ("missing_detach", "with torch.no_grad(): f()", "with torch.enable_grad(): f()"),
        # The name of a function that is used before the result is assigned would change an early line.
        ("shadowed_name", "loss = 0\nloss = validate(m)", ""),
    ],
)
def test_variants_of_late_operators(operator: str, text: str, wanted: str) -> None:
    source = PythonSource("train.py", f"{text}\n")
    edits = [e for seed in range(60) for e in find_late_candidates(operator, source, random.Random(seed))]
    found = {apply_edit(source.text, edit) for edit in edits}
    if wanted:
        assert f"{wanted}\n" in found
    elif operator == "other_name":
        assert not any("valid_loader, valid_loader" in one for one in found)
    else:
        assert not found
    assert all(edit.operator == operator and ast.parse(apply_edit(source.text, edit)) for edit in edits)


def test_general_operators_exist_and_leave_out_what_fails_early() -> None:
    assert set(GENERAL_OPERATORS) < set(OPERATORS)
    assert not {"syntax", "import_name", "detached_loss"} & set(GENERAL_OPERATORS)


FAKE_TORCH = """
_before, _after = [], []
def register_optimizer_step_pre_hook(hook): _before.append(hook)
def register_optimizer_step_post_hook(hook): _after.append(hook)
class SGD:
    def step(self):
        for hook in _before: hook(self, (), {})
        for hook in _after: hook(self, (), {})
"""
TRAIN = dedent(
    """
    import json, os, sys
    from torch.optim.optimizer import SGD
    optimizer = SGD()
    start = 0
    if "--resume" in sys.argv:
        with open("last.json") as file:
            saved = json.load(file)
        start = saved["epoch"]

    def measure(data):
        total = sum(data)
        return total / len(data)

    def validate():
        return measure([1, 2])

    for epoch in range(start, start + 2):
        for i in range(4):
            optimizer.step()
            if i == 3:
                print("batch", i)
        score = validate()
        with open("last.json", "w") as file:
            json.dump({"epoch": epoch + 1}, file)
        print("epoch", epoch,
              score)
    best = validate()
    print("tested", best)
    """
)
JOB = '#!/bin/bash\npython train.py "$@"\n'


def make_case(folder: Path, program: str = TRAIN, resume: str = 'resume = "--resume"\n') -> Path:
    """Writes a case with a stand-in for torch, as the authors of cases do."""
    place = folder / "small"
    (place / "torch/optim").mkdir(parents=True)
    (place / "torch/__init__.py").touch()
    (place / "torch/optim/__init__.py").touch()
    (place / "torch/optim/optimizer.py").write_text(FAKE_TORCH)
    (place / "train.py").write_text(program)
    (place / "job.sbatch").write_text(JOB)
    (place / "case.toml").write_text(
        f'source = "a/b"\npath = "t.py"\nfiles = ["train.py"]\ncounted = "torch"\n{resume}'
    )
    return folder


def line_of(text: str) -> int:
    """The line of the first line of the program that holds the text."""
    return next(number for number, line in enumerate(TRAIN.split("\n"), 1) if text in line)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The case and TRACES/small.json of one traced run, in one directory."""
    place = tmp_path_factory.mktemp("late")
    make_case(place / "cases")
    command = ["trace", str(place / "cases"), str(place / "traces"), "--time-limit", str(allow(60))]
    assert main([*command, "--path", str(Path(sys.executable).parent)]) == 0
    return place


def test_a_trace_says_after_how_many_steps_each_line_ran_first(traced: Path) -> None:
    plain = json.loads((traced / "traces/small.json").read_text())
    assert plain["sound"] and plain["counted_by"] == "torch" and plain["steps"] == 8
    first, second = plain["lines"]
    lines = first["lines"]["train.py"]
    assert lines[str(line_of("optimizer = SGD"))]["counts"] == {}
    assert lines[str(line_of("total = sum"))]["counts"]["torch"] == 4
    stack = lines[str(line_of("total = sum"))]["stack"]
    assert [one[1] for one in stack] == ["measure", "validate", "<module>"]
    assert lines[str(line_of("best = "))]["counts"]["torch"] == 8
    assert str(line_of("saved = ")) not in lines and str(line_of("saved = ")) in second["lines"]["train.py"]


def test_stages_of_late_lines_come_from_the_words_around_them(traced: Path) -> None:
    plain = json.loads((traced / "traces/small.json").read_text())
    trace = read_line_trace(*plain["lines"], "torch")
    stages = find_late_stages(trace, {"train.py": PythonSource("train.py", TRAIN)})["train.py"]
    wanted = {
        "score = validate": "validation",
        "total = sum": "validation",  # by the function that calls it
        "json.dump": "save",
        'print("batch"': "training",
        'print("tested"': "final_test",
        "saved = json": "resume",
        "start = saved": "resume",
        "start = 0": "",
        "optimizer.step": "",
        "def measure": "",
    }
    assert {text: stages.get(line_of(text), "") for text in wanted} == wanted
    # Lines of a statement that Python reports no event for, or a later one, have the statement's stage.
    assert stages[line_of('print("epoch"')] == stages[line_of('print("epoch"') + 1] != ""


def test_without_words_a_line_is_of_the_epoch_end_or_of_the_next_epoch() -> None:
    program = "for e in range(2):\n    for b in range(5):\n        o.step()\n        if e:\n            f()\n    g()\n"

    def at(order: int, steps: int) -> Mapping[str, object]:
        return {"order": order, "counts": {"torch": steps}, "stack": []}

    lines = {"1": at(0, 0), "2": at(1, 0), "3": at(2, 0), "4": at(3, 1), "6": at(4, 5), "5": at(5, 6)}
    trace = read_line_trace({"lines": {"a.py": lines}, "counts": {"torch": 10}}, None, "torch")
    found = find_late_stages(trace, {"a.py": PythonSource("a.py", program)})
    assert found == {"a.py": {6: "epoch_end", 5: "next_epoch"}}
    # Called from the loop that makes the steps, and without a loop of epochs.
    program = "def log():\n    f()\nfor b in range(9):\n    o.step()\n    if b > 4:\n        log()\n"
    called = {"order": 5, "counts": {"torch": 5}, "stack": [["a.py", "log", 2], ["a.py", "<module>", 6]]}
    lines = {"1": at(0, 0), "3": at(1, 0), "4": at(2, 0), "5": at(3, 1), "6": at(4, 5), "2": called}
    trace = read_line_trace({"lines": {"a.py": lines}, "counts": {"torch": 9}}, None, "torch")
    found = find_late_stages(trace, {"a.py": PythonSource("a.py", program)})
    assert found == {"a.py": {2: "training", 6: "training"}}


def test_late_bugs_are_planted_confirmed_and_listed(traced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = ["--path", str(Path(sys.executable).parent), "--time-limit", str(allow(60)), "--jobs", "1"]
    place = str(traced / "round")
    planted = ["mutate", str(traced / "cases"), place, "--late", str(traced / "traces"), "--seed", "5"]
    assert main([*planted, "--per-case", "6"]) == 0
    original, *mutants = cases.list_variants(traced / "round")
    # The traced run is the truth of the original.
    assert ground_truth.read_truths([traced / "round"])["small", "original"]["class"] == "sound"
    assert len(mutants) == 6 and json.loads((original.folder / "stages.json").read_text())["train.py"]
    for one in mutants:
        assert one.mutation["stage"] != "training" and one.mutation["resume"] == "--resume"
        text = (one.work / "train.py").read_text()
        assert text != TRAIN and text.split("optimizer = ")[0] == TRAIN.split("optimizer = ")[0]
    # Three bugs whose outcome is known: validation, the second run, and none.
    changes = [
        ("total / len(data)", "total / len(data.x)", "validation", "train.py", "validation"),
        ('saved["epoch"]', 'saved["epcoh"]', "resume", "train.py", "resume"),
        ('print("tested", best)', 'print("done", best)', "final_test", "train.py", ""),
    ]
    for one, (old, new, stage, file, _) in zip(mutants[:3], changes, strict=True):
        (one.work / "train.py").write_text(TRAIN.replace(old, new))
        line = line_of(old)
        row = TRAIN.split("\n")[line - 1] + "\n"
        change = {"operator": "name", "file": file, "line": line, "old": row, "new": row.replace(old, new)}
        (one.folder / "mutation.json").write_text(json.dumps({**one.mutation, "stage": stage, **change}))
    for one in mutants[3:]:
        for path in sorted(one.folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    assert main(["truth", place, *bench]) == 0
    truths = ground_truth.read_truths([traced / "round"])
    assert truths["small", "original"]["class"] == "sound" and truths["small", "original"]["runs"] == 2
    assert [truths["small", f"m{at}"]["class"] for at in (1, 2, 3)] == ["late", "late", "silent"]
    first, second = ground_truth.list_late_bugs(traced / "round")
    assert (first["stage"], first["variant"], second["stage"], second["variant"]) == (
        "validation",
        "m1",
        "resume",
        "m2",
    )
    assert first["error"].startswith("AttributeError") and second["error"] == "KeyError: 'epcoh'"
    assert truths["small", "m1"]["places"][-1] == ["train.py", line_of("total / len")]
    capsys.readouterr()
    assert main(["late", place, "--keep", "1", "--out", str(traced / "manifest.json")]) == 0
    assert json.loads(capsys.readouterr().out) == {"late": 1, "validation": 1}
    (kept,) = json.loads((traced / "manifest.json").read_text())["late"]
    assert kept["place"] == f"train.py:{line_of('total / len')}"
    assert [one.name for one in cases.list_variants(traced / "round")] == ["original", "m1"]


def test_a_case_without_a_sound_trace_gets_no_bugs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_case(tmp_path / "cases", "raise ValueError('x')\n")
    places = [str(tmp_path / "cases"), str(tmp_path / "traces")]
    assert main(["trace", *places, "--path", str(Path(sys.executable).parent)]) == 0
    assert "not sound, exit code 1: ValueError: x" in capsys.readouterr().err
    arguments = ["--late", places[1], "--seed", "1", "--per-case", "2"]
    assert main(["mutate", places[0], str(tmp_path / "r"), *arguments]) == 0
    assert not list(cases.list_variants(tmp_path / "r"))


@pytest.mark.parametrize(
    ("run", "wanted"),
    [
        ({"runs": 2, "places": [["a.py", 3]]}, "resume"),
        ({"places": [["a.py", 1], ["a.py", 4]]}, "save"),
        # A removed line moves those after it.
        ({"places": [["a.py", 8]]}, "validation"),
        ({"places": [["a.py", 1]]}, "next_epoch"),
        ({"places": []}, "next_epoch"),
        # The line ran without an error in the first epoch.
        ({"places": [["a.py", 4]], "steps": 16}, "next_epoch"),
    ],
)
def test_the_stage_that_a_bug_shows_in(run: dict[str, object], wanted: str) -> None:
    lines = {"a.py": {"4": ["save", 8], "9": ["validation", 8]}}
    mutation = {"file": "a.py", "line": 5, "old": "x\ny\n", "new": "x\n", "stage": "next_epoch"}
    assert ground_truth.find_shown_stage({"runs": 1, "steps": 8, **run}, mutation, lines) == wanted


def test_the_error_is_that_of_the_program_not_of_its_launcher() -> None:
    output = "\n".join(
        [
            "[rank0]: Traceback (most recent call last):",
            '[rank0]:   File "/w/train.py", line 7, in <module>',
            '[rank0]:   File "/lib/x.py", line 9, in f',
            "[rank0]: KeyError: 'model'",
            "Traceback (most recent call last):",
            '  File "<frozen runpy>", line 198, in _run_module_as_main',
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "train.py FAILED",
        ]
    )
    assert ground_truth.find_error(output) == "KeyError: 'model'"
    assert ground_truth.find_places(output, Path("/w")) == [("train.py", 7)]
    assert ground_truth.find_error("killed\n\n") == "killed" and ground_truth.find_places("x", Path("/w")) == []


def test_rehearsal_and_resume_options_reach_gsub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], str | None]] = []

    def run(command: list[str], **how: object) -> object:
        environ = how["env"]
        assert isinstance(environ, dict)
        seen.append((command, environ.get("SLURMWRAP_PRERUN_REHEARSE_S")))
        raise prerun_runs.subprocess.TimeoutExpired(command, 1.0)

    monkeypatch.setattr(prerun_runs.subprocess, "run", run)
    make_case(tmp_path / "cases")
    (case,) = cases.list_cases(tmp_path / "cases")
    (edit,) = find_late_candidates("format", PythonSource("train.py", "f'{x:.2f}'\n"), random.Random(0))
    (tmp_path / "cases/small/train.py").write_text("f'{x:.2f}'\n")
    original, mutant = cases.write_variants(case, [edit], 1, tmp_path / "r", ["resume"])
    settings = prerun_runs.RunSettings(rehearse_s=0.0, options=("--x",), environ={})
    for one in (original, mutant):
        assert prerun_runs.run_variant(one, settings)["verdict"] == "error"
    prerun_runs.run_variant(original, prerun_runs.RunSettings(environ={}))
    assert seen[0][0][-4:] == ["--prerun=only", "--json", "--x", "job.sbatch"] and seen[0][1] == "0"
    assert seen[1][0][-3:] == ["--x", "--resume-args=--resume", "job.sbatch"]
    assert seen[2][1] is None


def test_the_page_of_late_bugs() -> None:
    def answer(variant: str, verdict: str, seconds: float = 9.0) -> dict[str, object]:
        operator = {"operator": "name", "file": "a.py", "line": 3, "old": "x\n", "new": "y\n"}
        plain = {
            "case": "a",
            "variant": variant,
            "verdict": verdict,
            "layer": "exit",
            "reason": "r",
            "seconds": seconds,
        }
        return plain | (operator if variant != "original" else {"operator": ""})

    truths = {("a", f"m{at}"): {"class": "late"} for at in (1, 2, 3)} | {("a", "original"): {"class": "sound"}}
    stages = {("a", "m1"): "save", ("a", "m2"): "validation", ("a", "m3"): "save"}
    results = [
        answer("original", "pass", 30.0),
        answer("m1", "fail"),
        answer("m2", "inconclusive"),
        answer("m3", "pass"),
    ]
    without = [answer("original", "pass", 12.0), answer("m1", "pass")]
    text = format_page(results, truths, "late", (), stages, without)
    assert "| save | 2 | 1 | 0 | 1 | 50.0 % (1.3 % to 98.7 %) | 1 | 0 | 0 |" in text
    assert "| validation | 1 | 0 | 0 | 0 | 0.0 % (0.0 % to 97.5 %) | 0 | 1 | 0 |" in text
    assert "| all | 3 | 1 | 0 | 1 |" in text and "visible bugs" not in text
    missed = text.split("Late bugs that were not stopped")[1].split("other mutants")[0]
    assert "| a m2 |" in missed and "| a m3 |" in missed and "| a m1 |" not in missed
    assert "| 1 | 30.0 | 12.0 | 18.0 |" in text
    # A round that was not planted with late bugs has the page that it had.
    assert "Late bugs by stage" not in format_page(results, truths, "1") and "rehearsal" not in format_page(
        results, truths, "1"
    )
