"""`slurmwrap classify`: options, output and errors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Thread

import pytest
import typer
from in_process import Runner
from typer.testing import Result

from slurmwrap.cli.classify import classify_command
from slurmwrap.errors import UsageError

LOG = 'starting\nTraceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nMemoryError\n'


def run(*args: object) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)  # keeps `classify` a subcommand, as in slurmwrap
    app.command("classify")(classify_command)
    return Runner().invoke(app, ["classify", *map(str, args)])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "out.log"
    path.write_text(LOG)
    return path


def test_a_log_is_classified_with_line_decision_and_advice(log: Path) -> None:
    result = run(log, "--exit-code", "1", "--state", "FAILED")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "cpu_oom (cpu.oom_allocation), confidence 0.93",
        "decision: resize",
        f"root     {log}:5: MemoryError",
        "Ask for more memory (--mem), or use fewer or leaner data-loader workers.",
    ]


def test_kernel_lines_from_a_file_are_used(log: Path, tmp_path: Path) -> None:
    kernel = tmp_path / "kernel"
    kernel.write_text("NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.\n")
    log.write_text("nothing\n")
    found = json.loads(run(log, "--kernel", kernel, "--exit-code", "1", "--json").output)
    assert (found["category"], found["conclusive"], found["evidence"][0]["source"]) == ("gpu_hardware", True, "kernel")


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=(LOG,))
    writer.start()
    result = run(pipe, "--exit-code", "1")
    writer.join()
    assert result.exit_code == 0, result.exception
    assert f"{pipe}:5: MemoryError" in result.output


def test_the_first_characters_of_a_small_log_are_read(log: Path) -> None:
    log.write_text("MemoryError\n")
    found = json.loads(run(log, "--exit-code", "1", "--json").output)
    assert [(one["line"], one["text"]) for one in found["evidence"]] == [(1, "MemoryError")]


def test_json_lines_are_classified_independently_of_their_label(tmp_path: Path) -> None:
    rows = tmp_path / "in.jsonl"
    row = {"id": "a", "category": "success", "slurm_state": "FAILED", "exit_code": 1, "signal": None, "log": LOG}
    rows.write_text(json.dumps(row) + "\n\n" + json.dumps({**row, "id": "b", "category": "gpu_oom"}) + "\n")
    answers = [json.loads(line) for line in run("--jsonl", rows).output.splitlines()]
    assert [(answer["id"], answer["category"], answer["decision"]) for answer in answers] == [
        ("a", "cpu_oom", "resize"),
        ("b", "cpu_oom", "resize"),
    ]
    assert {"id", "category", "domain", "decision", "confidence", "signature", "evidence"} <= set(answers[0])


def test_labels_do_not_change_the_classification(tmp_path: Path) -> None:
    row = {"id": "a", "slurm_state": "FAILED", "exit_code": 1, "log": LOG}
    labels = ({}, {"category": "success", "source": "oom", "difficulty": "easy"}, {"category": 7, "source": None})
    answers = []
    for number, label in enumerate(labels):
        rows = tmp_path / f"{number}.jsonl"
        rows.write_text(json.dumps({**row, **label}) + "\n")
        answers.append(run("--jsonl", rows).output)
    assert answers[0] == answers[1] == answers[2]


def test_the_reason_and_the_derived_exit_code_are_used(log: Path) -> None:
    log.write_text("nothing\n")
    steps = json.loads(run(log, "--state", "COMPLETED", "--derived-exit-code", "0:125", "--json").output)
    down = json.loads(run(log, "--reason", "NodeDown", "--json").output)
    assert (steps["category"], down["category"]) == ("cpu_oom", "node_failure")


def test_an_invalid_derived_exit_code_is_refused(log: Path) -> None:
    result = run(log, "--derived-exit-code", "five")
    assert isinstance(result.exception, UsageError) and "--derived-exit-code five" in str(result.exception)


SITE = """
[[signature]]
id = "site.flexlm"
category = "permission_error"
pattern = ['FlexNet Licensing error:-(?P<code>\\d{1,4})']
by = "our solver"
example = ['FlexNet Licensing error:-15']
advice = "All licences are in use (error {code}): submit with --licenses=cfd:1."
"""


def test_site_signatures_are_read_from_the_option_and_from_the_configuration(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_text("FlexNet Licensing error:-15,570\n")
    site = tmp_path / "site.toml"
    site.write_text(SITE)
    by_flag = json.loads(run(log, "--exit-code", "1", "--signatures", site, "--json").output)
    monkeypatch.setenv("SLURMWRAP_DIAGNOSIS_SIGNATURES", str(site))
    by_key = json.loads(run(log, "--exit-code", "1", "--json").output)
    assert by_flag == by_key
    assert (by_key["signature"], by_key["advice"]) == (
        "site.flexlm",
        "All licences are in use (error 15): submit with --licenses=cfd:1.",
    )


def test_progress_is_shown_with_the_step(log: Path) -> None:
    log.write_text("Resuming from step 40\nstep 41 loss=1\n" + LOG)
    assert "progress: step 41, resumed from a checkpoint" in run(log, "--exit-code", "1").output.splitlines()


def test_the_help_has_examples() -> None:
    assert "slurmwrap classify --score labelled.jsonl" in run("--help").output


def test_score_prints_accuracy_and_confusions(tmp_path: Path) -> None:
    rows = tmp_path / "in.jsonl"
    row = {"id": "a", "category": "gpu_oom", "slurm_state": "FAILED", "exit_code": 1, "log": LOG}
    rows.write_text("".join(json.dumps({**row, "category": label}) + "\n" for label in ("gpu_oom", "cpu_oom")))
    output = run("--score", rows).output
    assert "right 1 of 2: accuracy 0.5000, macro-F1 0.3333" in output
    assert "confused: gpu_oom taken for cpu_oom, 1 (a)" in output


@pytest.mark.parametrize(
    ("content", "args", "complaint"),
    [
        ("{", ("--jsonl",), "line 1: not JSON"),
        ("[1]", ("--score",), "line 1: not a JSON object"),
        ('\n{"log": ""}', ("--score",), "line 2: category is None"),
        ('{"log": "", "category": "gpu_omo"}', ("--score",), "line 1: category is 'gpu_omo'"),
        ('{"log": "", "exit_code": "one"}', ("--jsonl",), "line 1: exit_code is 'one'"),
    ],
)
def test_an_invalid_json_line_is_refused_with_its_number(
    tmp_path: Path, content: str, args: tuple[str, ...], complaint: str
) -> None:
    path = tmp_path / "x"
    path.write_text(content)
    result = run(*args, path)
    assert isinstance(result.exception, UsageError)
    assert complaint in str(result.exception)


def test_a_missing_file_and_a_missing_argument_are_usage_errors(tmp_path: Path) -> None:
    gone, none = run(tmp_path / "gone"), run()
    assert isinstance(gone.exception, UsageError) and "cannot read" in str(gone.exception)
    assert isinstance(none.exception, UsageError)


def test_control_characters_of_a_log_are_not_printed(log: Path) -> None:
    log.write_text("\x07ERROR: \x9b31mNo such thing\x00\n")
    assert not {"\x07", "\x9b", "\x00"} & set(run(log, "--exit-code", "1").output)
