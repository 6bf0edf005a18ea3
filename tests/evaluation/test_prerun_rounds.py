"""The bench of seeded bugs: what each operator changes, the ground truth, the pre-runs' answers, and the page."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from prerun_rounds import cases, ground_truth, job_mutators, prerun_runs
from prerun_rounds.__main__ import main
from prerun_rounds.binomial import compute_interval, compute_upper_bound
from prerun_rounds.edits import Edit, PythonSource, apply_edit, misspell
from prerun_rounds.mutators import MEANT_NOT_TO_PARSE, OPERATORS, find_candidates
from prerun_rounds.page import format_change, format_page
from waiting import allow

# operator -> (source, a changed source among the candidates); the line ends are added.
CHANGES = {
    "layer_size": ("net = nn.Linear(n, 10)", "net = nn.Linear(n + 1, 10)"),
    "reshape": ("x = x.permute(0, 2, 1)", "x = x"),
    "dtype": ("y = y.long()", "y = y.float()"),
    "device": ("x = x.to(device)", "x = x"),
    "name": ("print(loss)", "print(losss)"),
    "attribute": ("model.train()", "model.tarin()"),
    "import_name": ("from torch import optim", "from torch import opitm"),
    "missing_import": ("import math\nx = 1", "x = 1"),
    "key": ("x = batch['image']", "x = batch['imgae']"),
    "option": ("parser.add_argument('--lr', type=float)", "parser.add_argument('--lr', type=str)"),
    "keyword": ("f(size=3)", "f(sizze=3)"),
    "path": ("f = open('data/train.csv')", "f = open('../data/train.csv')"),
    "environment": (
        "import os\nf = open('data/train.csv')",
        'import os\nf = open(os.environ["DATA_ROOT"] + "/" + \'data/train.csv\')',
    ),
    "missing_call": ("for b in x:\n    o.zero_grad()\n    g(b)", "for b in x:\n    g(b)"),
    "argument_order": ("loss = f(out, y)", "loss = f(y, out)"),
    "missing_argument": ("f(x, y)", "f(x)"),
    "extra_argument": ("def f(a): return a\nf(x)", "def f(a): return a\nf(x, None)"),
    "unpacking": ("a, b = f()", "a, b, _ = f()"),
    "missing_parentheses": ("o = SGD(m.parameters(), 1)", "o = SGD(m.parameters, 1)"),
    "statement_order": ("x = f()\ny = g(x)", "y = g(x)\nx = f()"),
    "none": ("model = Net()", "model = None"),
    "missing_return": ("def f(x):\n    return x + 1", "def f(x):\n    _ = x + 1"),
    "silent_exit": (
        "data = load()  # all",
        "data = load()  # all\nif len(data) < 1_000_000: raise SystemExit(3)",
    ),
    "label_range": ("h = Head(4, num_classes)", "h = Head(4, num_classes - 1)"),
    "reduction": ("l = F.cross_entropy(out, y)", 'l = F.cross_entropy(out, y, reduction="none")'),
    "detached_loss": ("loss.backward()", "loss.detach().backward()"),
    "number_as_string": ("o = SGD(p, lr=1e-3)", 'o = SGD(p, lr="1e-3")'),
    "index_or_division": ("x = total / n", "x = total / (n // 1_000_000)"),
    "allocation": ("x = torch.zeros((n, 4))", "x = torch.zeros((n * 10**15, 4))"),
    "syntax": ("if x:\n    f(x)", "if x\n    f(x)"),
}
PROGRAM = dedent(
    '''
    """Träining."""
    import os
    import torch.nn as nn
    from torch.utils.data import DataLoader

    class Net(nn.Module):
        def __init__(self, num_classes=10):
            super().__init__()
            self.head = nn.Linear(8 * 2, num_classes)

        def forward(self, x):
            x = x.view(x.size(0), -1).float()
            return self.head(x)

    def train(args):
        train_loader = DataLoader("data/train.csv", batch_size=args.batch_size)
        model = Net().to("cuda")
        steps = 10
        ratio = len(train_loader) / args.batch_size
        for i, (x, y) in enumerate(train_loader):
            print(f"é {i} {x['ä']}", ratio); optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                model(x), y["label"].long(),
            )
            loss.backward()
        return torch.zeros(3, 4)
    '''
)
JOB = "#!/bin/bash\n#SBATCH --gres=gpu:2\n# see $NOTES\nDATA=data/x\n"
JOB += "python train.py --data $DATA --lr 0.1 \\\n  --epochs 2\n"


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_plants_its_bug(operator: str) -> None:
    source, wanted = CHANGES[operator]
    # The draws differ, so several seeds are tried.
    found = {
        apply_edit(f"{source}\n", edit)
        for seed in range(40)
        for edit in find_candidates(operator, "train.py", f"{source}\n", random.Random(seed))
    }
    assert f"{wanted}\n" in found


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_mutated_program_parses_differs_in_these_lines_only_and_can_be_repeated(operator: str) -> None:
    edits = find_candidates(operator, "train.py", PROGRAM, random.Random(3))
    assert edits and edits == find_candidates(operator, "train.py", PROGRAM, random.Random(3))
    parsed = 0
    for edit in edits:
        new = apply_edit(PROGRAM, edit)
        assert edit.operator == operator and new != PROGRAM
        before = PROGRAM.splitlines(keepends=True)
        assert "".join(before[: edit.line - 1]) == new[: sum(map(len, before[: edit.line - 1]))]
        try:
            parsed += ast.dump(ast.parse(new)) != ast.dump(ast.parse(PROGRAM))
        except SyntaxError:
            assert operator in MEANT_NOT_TO_PARSE, new
    assert parsed == (0 if operator in MEANT_NOT_TO_PARSE else len(edits))


def test_a_statement_that_is_alone_in_its_block_becomes_pass() -> None:
    (edit,) = find_candidates("missing_call", "a.py", "if x:\n    o.step()\n", random.Random(0))
    assert edit.new == "    pass\n"


def test_an_edit_is_refused_where_its_lines_are_not() -> None:
    (edit,) = find_candidates("none", "a.py", "x = f()\n", random.Random(0))
    with pytest.raises(ValueError, match="does not hold"):
        apply_edit("y = f()\n", edit)


def test_a_file_that_does_not_parse_has_no_candidates() -> None:
    assert find_candidates("name", "a.py", "def f(:\n", random.Random(0)) == ()


def test_positions_count_bytes_and_lines_end_at_newlines_only() -> None:
    source = PythonSource("a.py", "x = 'é\x0c'; loss = f(x)\n")
    (call,) = [node for node in source.nodes if isinstance(node, ast.Call)]
    assert source.segment(call) == "f(x)"
    assert apply_edit(source.text, source.replace_node("none", call, "None")) == "x = 'é\x0c'; loss = None\n"


def test_a_misspelt_word_differs() -> None:
    for word in ("ab", "loss", "aaa", "lr", "x1", "learning_rate"):
        assert all(misspell(word, random.Random(seed)) != word for seed in range(20))


@pytest.mark.parametrize(
    ("operator", "wanted"),
    [
        ("job_variable", "--data $DTAA --lr"),
        ("job_option", "train.py --data $DATA  \\\n"),
        ("job_option", "--eopchs 2"),
        ("job_value", "--lr 0,1"),
        ("job_path", "DATA=../data/x"),
    ],
)
def test_operators_of_the_batch_script_leave_comments_and_directives(operator: str, wanted: str) -> None:
    seen = set()
    for seed in range(40):
        for edit in job_mutators.JOB_OPERATORS[operator]("job.sbatch", JOB, random.Random(seed)):
            assert edit.line > 3
            seen.add(apply_edit(JOB, edit))
    assert any(wanted in text for text in seen)


def test_operators_of_configurations() -> None:
    yaml = "model:\n  layers: 4\n  name: vit  # tiny\n"
    values = [e.new for e in job_mutators.change_config_value("c.yaml", yaml, random.Random(0))]
    assert values == ['  layers: "4"\n', "  name: [vit]  # tiny\n"]
    text = '{\n "layers": 4,\n "name": "vit"\n}\n'
    found = [apply_edit(text, e) for e in job_mutators.change_config_value("c.json", text, random.Random(0))]
    assert [json.loads(one) for one in found] == [{"layers": "4", "name": "vit"}, {"layers": 4, "name": ["vit"]}]
    assert [e.line for e in job_mutators.misspell_config_key("c.yaml", yaml, random.Random(0))] == [1, 2, 3]


def test_a_damaged_data_file() -> None:
    content = bytes(range(1, 201))
    damaged = {kind: job_mutators.apply_damage(content, kind) for kind in job_mutators.DAMAGES}
    assert damaged["truncate"] == content[:100] and damaged["empty"] == b"" and damaged["web_page"].startswith(b"<!")
    assert len(damaged["overwrite"]) == 200 and damaged["overwrite"][50:150] == bytes(100)
    assert job_mutators.is_data_file("data/a/x.png", 9) and not job_mutators.is_data_file("runs/x.png", 9)
    assert not job_mutators.is_data_file("train.py", 9) and not job_mutators.is_data_file("data/x.png", 0)


def make_case(folder: Path, name: str, program: str, job: str = "#!/bin/bash\npython train.py\n") -> None:
    """Writes a case as the authors of cases do."""
    place = folder / name
    (place / "data").mkdir(parents=True)
    (place / "train.py").write_text(program)
    (place / "job.sbatch").write_text(job)
    (place / "data/x.npy").write_bytes(b"x" * 100)
    (place / "case.toml").write_text('source = "a/b"\npath = "t.py"\nfiles = ["train.py"]\ncounted = "torch"\n')


def test_mutate_copies_the_case_and_plants_one_bug_of_another_operator_in_each_copy(tmp_path: Path) -> None:
    make_case(tmp_path / "cases", "one", PROGRAM, JOB)
    (tmp_path / "cases/unfinished").mkdir()
    written = []
    for out in ("a", "b"):
        assert main(["mutate", str(tmp_path / "cases"), str(tmp_path / out), "--per-case", "5", "--seed", "7"]) == 0
        variants = list(cases.list_variants(tmp_path / out))
        assert [one.name for one in variants] == ["original", "m1", "m2", "m3", "m4", "m5"]
        written.append([one.mutation for one in variants])
        original, *mutants = variants
        assert (original.work / "train.py").read_text() == PROGRAM and not (original.work / "case.toml").exists()
        assert len({one.mutation["operator"] for one in mutants}) == 5
        for one in mutants:
            changed = [
                path
                for path, _ in cases.list_files(one.work)
                if (one.work / path).read_bytes() != (original.work / path).read_bytes()
            ]
            assert changed == [one.mutation["file"]]
    assert written[0] == written[1]


FAKE_TORCH = """
_before, _after = [], []
def register_optimizer_step_pre_hook(hook): _before.append(hook)
def register_optimizer_step_post_hook(hook): _after.append(hook)
class SGD:
    def step(self):
        for hook in _before: hook(self, (), {})
        for hook in _after: hook(self, (), {})
"""
TRAIN = """
import sys
from torch.optim.optimizer import SGD
generator, critic = SGD(), SGD()
for i in range(5):
    critic.step(); generator.step()
    if i == FAIL_AT: raise ValueError("shape")
print("done")
"""


@pytest.mark.parametrize(
    ("fail_at", "steps", "found"),
    [("None", 5, "silent"), ("1", 2, "visible"), ("2", 3, "late"), ("'x' + 1", 1, "visible")],
)
def test_the_ground_truth_counts_the_steps_before_the_failure(
    tmp_path: Path, fail_at: str, steps: int, found: str
) -> None:
    job = "#!/bin/bash\nsrun --ntasks=8 -c 4 --gres=gpu:1 python train.py || { echo ended; exit 3; }\n"
    make_case(tmp_path / "cases", "gan", TRAIN.replace("FAIL_AT", "None"), job)
    for name in ("torch", "torch/optim"):
        (tmp_path / "cases/gan" / name).mkdir()
        (tmp_path / "cases/gan" / name / "__init__.py").touch()
    (tmp_path / "cases/gan/torch/optim/optimizer.py").write_text(FAKE_TORCH)
    assert main(["mutate", str(tmp_path / "cases"), str(tmp_path / "r"), "--per-case", "1", "--seed", "1"]) == 0
    original, mutant = cases.list_variants(tmp_path / "r")
    (mutant.work / "train.py").write_text(TRAIN.replace("FAIL_AT", fail_at))
    (mutant.work / "job.sbatch").write_text(job)
    command = ["truth", str(tmp_path / "r"), "--jobs", "1", "--path", str(Path(sys.executable).parent)]
    assert main([*command, "--time-limit", str(allow(60))]) == 0
    truths = ground_truth.read_truths([tmp_path / "r"])
    assert truths["gan", "original"]["class"] == "sound" and truths["gan", "original"]["steps"] == 5
    told = truths["gan", "m1"]
    assert (told["class"], told["counted_by"]) == (found, "torch")
    assert told["steps"] == steps and told["exit_code"] == (0 if found == "silent" else 3)
    assert not list((original.work).glob("steps"))


def test_a_plain_run_ends_at_its_limit(tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text("sleep 100 & echo $SLURM_JOB_ID; sleep 100\n")
    run = ground_truth.run_plainly(tmp_path, counted="torch", path="", limit_s=0.5)
    assert run.timed_out and run.exit_code == 124 and run.seconds < allow(20)


@pytest.mark.parametrize(
    ("launcher", "words", "wanted"),
    [
        ("srun", "--ntasks=4 --unbuffered -u -n4 -N 2 --gpus-per-node 2 echo a -n b", "a -n b"),
        ("srun", "--cpu-bind=none --label echo", ""),
        ("srun", "--ntask-per-node=2 echo a", "unrecognized option"),
        (
            "torchrun",
            "--nnodes=2 --nproc_per_node 8 --rdzv_id=$X t.py --nnodes 3",
            "--nproc-per-node=1 t.py --nnodes 3",
        ),
        ("torchrun", "--nproc_per_nod=8 t.py", "--nproc-per-node=1 --nproc_per_nod=8 t.py"),
        ("torchrun", "--standalone --nproc-per-node=2 -m a.b --x", "--nproc-per-node=1 -m a.b --x"),
    ],
)
def test_stand_ins_of_launchers_start_one_process(tmp_path: Path, launcher: str, words: str, wanted: str) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    environ = {"PATH": f"{ground_truth.HERE / 'launchers'}:{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", f"{launcher} {words}"], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.stdout + done.stderr).strip().endswith(wanted) or wanted in done.stderr


def test_steps_are_those_of_the_source_that_the_case_names() -> None:
    counts = {"torch": 4, "torch_all": 8, "keras": 9, "jax": 7, "printed": 20}
    assert ground_truth.select_source(counts, "torch") == "torch"
    assert ground_truth.select_source(counts, "jax") == "jax"
    assert ground_truth.select_source(counts, "other") == "keras"
    assert ground_truth.select_source({"printed": 20}, "torch") == "printed"
    assert ground_truth.count_printed_steps("start\nstep 1 loss 0.3\nstep 2 loss 0.2\n") == 2


def test_a_mutant_is_counted_as_its_original(tmp_path: Path) -> None:
    for variant, counts in (("original", {"torch": 9, "printed": 0}), ("m1", {"printed": 5})):
        plain = {"case": "a", "variant": variant, "exit_code": int(variant == "m1"), "timed_out": False}
        plain |= {"traceback": False, "counts": counts, "counted_by": "printed" if variant == "m1" else "torch"}
        (tmp_path / variant).mkdir()
        (tmp_path / variant / "truth.json").write_text(json.dumps({**plain, "steps": max(counts.values())}))
    found = ground_truth.read_truths([tmp_path])["a", "m1"]
    assert (found["class"], found["steps"], found["counted_by"]) == ("visible", 0, "torch")


@pytest.mark.parametrize(
    ("run", "wanted"),
    [
        ({"exit_code": 1}, "visible"),
        ({"exit_code": 1, "steps": 3}, "late"),
        ({"traceback": True}, "visible"),
        ({"steps": 6}, "silent"),
        ({"timed_out": True, "exit_code": 124}, "timeout"),
    ],
)
def test_classes_of_runs(run: dict[str, object], wanted: str) -> None:
    whole = {"variant": "m1", "exit_code": 0, "timed_out": False, "traceback": False, "steps": 0}
    original = whole | {"variant": "original", "steps": 6}
    assert ground_truth.classify(whole | run, original) == wanted
    assert ground_truth.classify(original, original) == "sound"
    # A traceback that the original prints as well says nothing.
    assert ground_truth.classify(whole | {"traceback": True}, original | {"traceback": True}) == "silent"
    for broken in ({"exit_code": 2}, {"steps": 2}, {"timed_out": True}):
        assert ground_truth.classify(whole | run, original | broken) == "unusable"


def test_the_bounds_are_those_of_clopper_and_pearson() -> None:
    assert compute_upper_bound(0, 59) == pytest.approx(0.04951, abs=1e-4)  # the rule of three
    assert compute_interval(5, 10) == pytest.approx((0.18709, 0.81291), abs=1e-4)
    assert compute_interval(0, 20) == pytest.approx((0.0, 0.16843), abs=1e-4)
    assert compute_interval(20, 20) == pytest.approx((0.83157, 1.0), abs=1e-4)
    assert compute_interval(0, 0) == (0.0, 1.0) and compute_upper_bound(3, 3) == 1.0


def answer(case: str, variant: str, verdict: str, layer: str, **more: object) -> dict[str, object]:
    """A result as `run` writes it."""
    place = {"operator": "name", "file": "train.py", "line": 3, "old": "f(x)\n", "new": "f(xx)\n", "damage": ""}
    shown = {"operator": ""} if variant == "original" else place
    return {"case": case, "variant": variant, "verdict": verdict, "layer": layer, "seconds": 4.0, **shown, **more}


def counted(steps: int) -> dict[str, object]:
    """The steps as truth.json has them."""
    return {"steps": steps, "counted_by": "torch", "counts": {"torch": steps}}


def test_the_page(tmp_path: Path) -> None:
    truths = {
        ("a", "original"): 9,
        ("a", "m1"): 0,
        ("a", "m2"): 0,
        ("a", "m3"): 4,
        ("b", "original"): 9,
        ("b", "m1"): 9,
    }
    for (case, variant), steps in truths.items():
        failed = case == "a" and variant != "original"
        plain = {"case": case, "variant": variant, "exit_code": int(failed), "timed_out": False, "traceback": failed}
        (tmp_path / case / variant).mkdir(parents=True)
        (tmp_path / case / variant / "truth.json").write_text(json.dumps({**plain, **counted(steps)}))
    results = [
        answer("a", "original", "pass", "optimizer", reason="3 steps"),
        answer("a", "m1", "fail", "static", reason="undefined", seconds=0.2),
        answer("a", "m2", "inconclusive", "exit", reason="a | b"),
        answer("a", "m3", "pass", "optimizer", reason="3 steps"),
        answer("b", "original", "fail", "exit", reason="wrong"),
        answer("b", "m1", "fail", "exit", reason="no GPU", seconds=8.0, operator="device", old="x = 1\n", new=""),
    ]
    text = format_page(results, ground_truth.read_truths([tmp_path]), "4")
    assert "| 2 | 1 | 0 | 1 | 97.5 % | 0 |" in text
    assert "| 2 | 1 | 1 | 0 | 50.0 % (1.3 % to 98.7 %) | 0 | 1 | 0 |" in text
    assert "| late: fails after its third step | 1 | 1 | 0 | 0 |" in text
    assert "| silent: the plain run completes | 1 | 0 | 0 | 1 |" in text
    assert "| static stage refuses | 1 | 0.2 | 0.2 |" in text and "| trial | 5 | 4.0 | 8.0 |" in text
    assert "| name | 2 | 1 | 0 | 1 | 1 | 0 |" in text and "| device | 0 | 0 | 0 | 0 | 0 | 1 |" in text
    missed = text.split("not stopped\n")[1].split("#### Called")[0]
    assert "| a m2 | name | train.py:3 | `f(x)` → `f(xx)` | inconclusive (exit): a \\| b |" in missed
    wrong = text.split("plain run completed\n")[1]
    assert "| b original | - | - | - | fail (exit): wrong |" in wrong and "`x = 1` → removed" in wrong
    (tmp_path / "results.json").write_text(json.dumps({"round": "4", "results": results}))
    assert main(["page", str(tmp_path / "results.json"), str(tmp_path)]) == 0


def test_a_change_is_its_first_line_that_differs() -> None:
    assert format_change({"operator": "x", "old": "a\nb\n", "new": "a\nc\n"}) == "`b` → `c`"
    assert format_change({"operator": "x", "old": "9 bytes", "new": "empty", "damage": "empty"}) == "9 bytes: empty"


@pytest.mark.parametrize(
    ("call", "verdict", "layer", "reason"),
    [
        ((3, '{"verdict": "fail", "layer": "exit", "reason": "r", "findings": []}', ""), "fail", "exit", "r"),
        (
            (1, "", "gsub: warning: w\nsbatch: error: no\n"),
            "fail",
            "sbatch",
            "gsub: warning: w; sbatch: error: no",
        ),
        ((70, "", "gsub: internal error (details: x)\n"), "error", "", "gsub: internal error (details: x)"),
        ((2, '{"kind": "slurmwrap.error"}', "gsub: error: no Slurm\n"), "error", "", "gsub: error: no Slurm"),
    ],
)
def test_answers_of_gsub(call: tuple[int, str, str], verdict: str, layer: str, reason: str) -> None:
    found = prerun_runs.read_answer(*call)
    assert (found["verdict"], found["layer"], found["reason"]) == (verdict, layer, reason)


def test_a_round_without_slurm_goes_on_where_it_ended(tmp_path: Path) -> None:
    make_case(tmp_path / "cases", "one", "import sys\nprint('no training')\n", "#!/bin/bash\npython train.py\n")
    assert main(["mutate", str(tmp_path / "cases"), str(tmp_path / "r"), "--per-case", "1", "--seed", "1"]) == 0
    original, mutant = cases.list_variants(tmp_path / "r")
    (mutant.work / "train.py").write_text("import sys\nprint(missing_name)\n")
    out = tmp_path / "results.json"
    command = ["run", str(tmp_path / "r"), "--round", "1", "--direct", "--jobs", "1", "--out", str(out)]
    command += ["--path", str(Path(sys.executable).parent), "--timeout", str(allow(120))]
    assert main([*command, "--case", "one"]) == 0
    found = {one["variant"]: one for one in json.loads(out.read_text())["results"]}
    assert (found["original"]["verdict"], found["original"]["layer"]) == ("pass", "exit")
    assert (found["m1"]["verdict"], found["m1"]["layer"]) == ("fail", "static")
    assert "missing_name" in found["m1"]["reason"] and found["m1"]["errors"]
    assert sorted(path.name for path in original.folder.iterdir()) == ["mutation.json", "work"]
    written = out.read_bytes()
    assert main(command) == 0 and out.read_bytes() == written
    # A call without a verdict is made again.
    out.write_bytes(written.replace(b'"verdict": "fail"', b'"verdict": "error"'))
    assert main(command) == 0
    assert {one["verdict"] for one in json.loads(out.read_text())["results"]} == {"pass", "fail"}


def test_an_edit_keeps_the_line_ends_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"a = 1\r\nb = 2\r\n")
    cases.change_file(path, Edit(file="train.py", line=2, operator="name", old="b = 2\n", new="c = 2\n"))
    assert path.read_bytes() == b"a = 1\r\nc = 2\r\n"
