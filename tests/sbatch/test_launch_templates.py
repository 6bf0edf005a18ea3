"""Variables of a launch template: the layout of the job, and words that bash leaves unchanged."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.errors import UsageError
from slurmwrap.sbatch.command_line import split_command_line
from slurmwrap.sbatch.launch_templates import (
    JobLayout,
    NodeKind,
    build_template_variables,
    check_partition_capacity,
    compute_job_layout,
    fill_in_value,
    format_layout_summary,
    list_submission_words,
    parse_value_lines,
    quote_for_bash,
)
from slurmwrap.sbatch.option_table import SBATCH
from slurmwrap.sbatch.parse_request import parse_request

EIGHT = (NodeKind(count=8, gpus=8, cpus=64),)
MIXED = (NodeKind(count=2, gpus=4, cpus=16), NodeKind(count=8, gpus=8, cpus=64))


def request(*words: str, environ: dict[str, str] | None = None):
    return parse_request(
        words, environ=environ or {}, cwd="/w", read_script=lambda _: b"#!/bin/sh\n", read_stdin=lambda: b"#!/bin/sh\n"
    )


def compute_layout(*words: str, tasks: str = "node", kinds=EIGHT, **environ: str) -> JobLayout:
    return compute_job_layout(request(*words, "train.py", environ=environ).shape, tasks, kinds)


def template_variables(*words: str, tasks: str = "node", kinds=EIGHT, **environ: str) -> dict[str, Any]:
    asked = request(*words, environ=environ)
    layout = compute_job_layout(asked.shape, tasks, kinds)
    return dict(build_template_variables(split_command_line(words), asked, layout, "torchrun", tasks))


def variables_of_lines(file: str, text: str, *words: str) -> dict[str, Any]:
    options = ("--template=array", "-G1", f"--values-file={file}", *words)
    asked = request(*options)
    lines = parse_value_lines(text, file, "", asked)
    layout = compute_job_layout(asked.shape, "one", EIGHT)
    command = split_command_line(options)
    return dict(build_template_variables(command, asked, layout, "array", "one", lines=lines))


@pytest.mark.parametrize(
    ("words", "tasks", "expected"),
    [
        (["-G16"], "node", (2, 8, 1, 64)),
        (["-G16"], "gpu", (2, 8, 8, 8)),
        (["-G8"], "node", (1, 8, 1, 64)),
        (["-G1"], "one", (1, 1, 1, 8)),
        (["-G4"], "node", (1, 4, 1, 32)),
        (["-G12"], "node", (2, 6, 1, 48)),  # equal shares
        (["-G", "a100:16"], "node", (2, 8, 1, 64)),
        (["-G16", "-N4"], "node", (4, 4, 1, 32)),  # the user's own options win
        (["-G16", "--gpus-per-node=4"], "node", (4, 4, 1, 32)),
        (["-N2", "--gres=gpu:8"], "node", (2, 8, 1, 64)),
        (["-N2", "--gpus-per-node=8", "-c", "16"], "node", (2, 8, 1, 16)),
        (["-n2", "--gpus-per-node=8"], "node", (2, 8, 1, 64)),
        (["-n16", "--gpus-per-task=1"], "gpu", (2, 8, 8, 8)),
        (["-G16", "--ntasks-per-node=4"], "gpu", (2, 8, 4, 16)),
        (["-G8", "-n4", "-N1"], "gpu", (1, 8, 4, 16)),
    ],
)
def test_layout_on_nodes_with_eight_gpus(words: list[str], tasks: str, expected: tuple[int, int, int, int]) -> None:
    found = compute_layout(*words, tasks=tasks)
    assert (found.nodes, found.gpus_per_node, found.tasks_per_node, found.cpus_per_task) == expected


def test_the_layout_uses_the_fewest_nodes_of_a_mixed_partition() -> None:
    assert compute_layout("-G16", kinds=MIXED).nodes == 2
    few = (NodeKind(count=1, gpus=8, cpus=64), NodeKind(count=9, gpus=4, cpus=16))
    assert (compute_layout("-G16", kinds=few).nodes, compute_layout("-G16", kinds=few).gpus_per_node) == (4, 4)


def test_environment_variables_count_as_for_sbatch() -> None:
    assert compute_layout("-N4", SBATCH_GPUS="16") == JobLayout(
        nodes=4, gpus_per_node=4, tasks_per_node=1, cpus_per_task=32
    )


def test_without_node_data_the_options_must_determine_the_layout() -> None:
    assert compute_layout("-G16", "-N2", kinds=()) == JobLayout(nodes=2, gpus_per_node=8, tasks_per_node=1)
    with pytest.raises(UsageError, match="how many GPUs a node has is not known"):
        compute_layout("-G16", kinds=())


@pytest.mark.parametrize(
    ("words", "tasks", "message", "hint"),
    [
        ([], "node", "asks for no GPU", "-G 16"),
        (["-G17"], "node", "17 GPUs cannot be shared evenly by nodes with 8", "16 or 24"),
        (["-G16", "-N3"], "node", "16 GPUs cannot be shared evenly by 3 nodes", "15 or 18"),
        (["-G16", "-N2-4"], "node", "needs one number of nodes", ""),
        (["-G16", "-n16"], "node", "8 tasks on each node: this template starts one task", "--template=srun"),
        (["-G16"], "one", "2 nodes: this template starts one process", "-G 1"),
        (["-G16", "-n5", "-N2"], "gpu", "5 tasks cannot be shared evenly by 2 nodes", ""),
    ],
)
def test_an_impossible_layout_is_refused_with_a_hint(words: list[str], tasks: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        compute_layout(*words, tasks=tasks)
    assert hint in caught.value.hint


def test_the_directives_hold_the_layout_and_the_users_other_options() -> None:
    words = ("--template=torchrun", "-G", "a100:16", "-p", "big,small", "-t", "8:00:00", "--comment=a b#c", "--hold")
    assert template_variables(*words, "--parsable", "-v", "train.py")["directives"] == (
        "#SBATCH --job-name=train",
        "#SBATCH --nodes=2",
        "#SBATCH --gpus-per-node=a100:8",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=64",
        "#SBATCH --output=%x-%j.out",
        "#SBATCH --partition=big,small",
        "#SBATCH --time=8:00:00",
        '#SBATCH --comment="a b#c"',
        "#SBATCH --hold",
    )


def test_gres_job_name_and_output_are_kept_as_given() -> None:
    words = ("-N2", "--gres=gpu:8,tmpfs:1", "-J", "big run", "-o", "logs/%j", "--cpus-per-gpu=4", "train.py")
    assert template_variables(*words)["directives"] == (
        '#SBATCH --job-name="big run"',
        "#SBATCH --nodes=2",
        "#SBATCH --gres=gpu:8,tmpfs:1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --output=logs/%j",
        "#SBATCH --cpus-per-gpu=4",
    )


def test_an_array_over_values_numbers_its_tasks() -> None:
    found = template_variables(
        "--template=array", "-G1", "--values=1e-4,3 e,x%2", "train.py", "--lr", "{}", "-n={}!", tasks="one"
    )
    assert found["array"] == "0-2%2"
    assert found["values"] == ("1e-4", "'3 e'", "x")
    assert words_after_bash(found["program"], value="a b") == ["train.py", "--lr", "a b", "-n=a b!"]
    assert "#SBATCH --array=0-2%2" in found["directives"]
    assert "#SBATCH --output=%x-%A_%a.out" in found["directives"]


@pytest.mark.parametrize(
    ("words", "tasks", "message"),
    [
        (["--values=1,2", "train.py"], "one", "so nothing would use them"),
        (["--values=1,,2", "train.py", "{}"], "one", "one of them is empty"),
        (["--values=1,2", "--array=0-1", "train.py", "{}"], "one", "both number the tasks"),
        (["train.py", "{}"], "one", "there is no array"),
        (["--wrap=hostname"], "node", "--wrap does not go with --template"),
        (["--signal=B:USR1@300", "train.py"], "node", "B: sends the signal to the script alone"),
        (["--gpus-per-socket=4", "train.py"], "node", "--gpus-per-socket does not go with"),
        ([":", "-n2", "train.py"], "node", "cannot make a heterogeneous job"),
    ],
)
def test_calls_that_no_template_supports_are_refused(words: list[str], tasks: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        template_variables("-G1", *words, tasks=tasks)


@pytest.mark.parametrize(
    ("file", "text", "words", "message"),
    [
        ("p.txt", "# none\n \n", ["{}"], "no line of it has a value"),
        ("p.txt", "1\n2\n", ["train.py"], "so nothing would use them"),
        ("p.txt", "1 2\n\nit's\n", ["{1}"], "p.txt, line 3: No closing quotation"),
        ("p.txt", "1 2\n3\n", ["{2}"], "line 2: it has 1 word"),
        ("p.txt", "1 2\n", ["--x={@}"], "an argument of its own"),
        ("p.txt", "1 2\n", ["--array=0-3", "{}"], "both number the tasks"),
    ],
)
def test_a_file_with_values_that_cannot_be_used_is_refused(
    file: str, text: str, words: list[str], message: str
) -> None:
    options = [word for word in words if word.startswith("--array")]
    rest = [word for word in words if word not in options]
    with pytest.raises(UsageError) as raised:
        variables_of_lines(file, text, *options, "train.py", *rest)
    assert message in f"{raised.value} {raised.value.hint}"


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("p.txt", "a 'b c' d\r\n#x\n$e f g\n", ("a 'b c' d", "'$e' f g")),
        ("p.csv", 'a,"b,c",d\n', ("a b,c d",)),
        ("p.tsv", "a\tb c\t\n", ("a 'b c' ''",)),
    ],
)
def test_words_of_lines_are_split_by_the_kind_of_file_and_quoted(file: str, text: str, found: tuple[str, ...]) -> None:
    variables = variables_of_lines(file, text, "train.py", "{3}", "{@}", "x{1}y")
    assert (variables["words"], variables["values"]) == (found, ())
    assert variables["program"] == 'train.py "${3}" "${@}" x"${1}"y'
    assert variables["array"] == f"0-{len(found) - 1}"


def test_the_signal_name_is_a_template_variable() -> None:
    assert template_variables("-G8", "--signal=SIGUSR1@300", "train.py")["signal"] == "USR1"


def test_braces_are_kept_for_the_program_without_an_array() -> None:
    assert template_variables("-G8", "train.py", "{}")["program"] == "train.py '{}'"


@pytest.mark.parametrize(
    ("program", "run"),
    [
        ("train.py", "python train.py"),
        ("./train", "./train"),
        ("train", "./train"),
        ("/opt/a b.py", "python '/opt/a b.py'"),
    ],
)
def test_the_command_that_starts_the_program(program: str, run: str) -> None:
    assert template_variables("-G8", program)["run"] == run


def test_options_that_no_script_can_hold_stay_on_the_command_line() -> None:
    words = ["--template=srun", "-G16", "-p", "big", "--explain", "--prerun", "off", "--parsable", "-W", "train.py"]
    command = split_command_line(words)
    assert list_submission_words(command, {}) == ["--explain", "--prerun=off", "--parsable", "--wait"]
    # a variable would win over the script's line, not over the command line's word
    assert list_submission_words(command, {"SBATCH_PARTITION": "debug", "SBATCH_GPUS": "4"}) == [
        "--gpus=16", "--partition=big", "--explain", "--prerun=off", "--parsable", "--wait",
    ]  # fmt: skip


WORDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=30)


def words_after_bash(line: str, **variables: str) -> list[str]:
    script = f"printf '%s\\0' {line}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8", **variables}
    )
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@settings(max_examples=settings.default.max_examples // 4)
@given(words=st.lists(WORDS, min_size=1, max_size=4))
def test_quoted_words_pass_through_bash_unchanged(words: list[str]) -> None:
    line = " ".join(quote_for_bash(word) for word in words)
    assert words_after_bash(line) == words
    assert "\r" not in line


@settings(max_examples=settings.default.max_examples // 6)
@given(word=WORDS, value=WORDS)
def test_an_array_value_passes_through_bash_unchanged(word: str, value: str) -> None:
    text = f"{word}{{}}-{{}}"
    assert words_after_bash(fill_in_value(text), value=value) == [text.replace("{}", value)]


def test_no_sbatch_option_has_the_prefix_of_a_template_option() -> None:
    assert [o.name for o in SBATCH if o.name.startswith(("template", "values"))] == []
    taken = split_command_line(["--te", "x.py"])  # still an abbreviation of --test-only
    assert [(one.option, one.own) for one in taken.given] == [("test-only", False)]


def test_the_layout_summary_is_one_line() -> None:
    assert format_layout_summary("jax", JobLayout(nodes=2, gpus_per_node=8, tasks_per_node=8)) == (
        "Template jax: 2 nodes with 8 GPUs and 8 tasks each."
    )
    assert format_layout_summary("array", JobLayout(nodes=1, gpus_per_node=1, tasks_per_node=1)) == (
        "Template array: 1 node with 1 GPU and 1 task."
    )


@pytest.mark.parametrize(
    ("words", "kinds", "said", "hint"),
    [
        (["-G100"], EIGHT, "20 nodes with 5 GPUs: that is more than partition gpu has, 8 nodes with 8 GPUs", "64 GPUs"),
        (["-N9", "--gpus-per-node=8"], EIGHT, "9 nodes with 8 GPUs: that is more than partition gpu has, 8", "64 GPUs"),
        (["-N1", "--gpus-per-node=16"], EIGHT, "1 node with 16 GPUs: that is more than partition gpu has", "64 GPUs"),
        (["-N9", "--gpus-per-node=8"], MIXED, "has, 2 nodes with 4 GPUs and 8 nodes with 8 GPUs", "72 GPUs"),
    ],
)
def test_more_than_the_partition_has_is_refused(words: list[str], kinds: tuple[NodeKind, ...], said, hint) -> None:
    with pytest.raises(UsageError) as raised:
        check_partition_capacity(compute_layout(*words, kinds=kinds), kinds, "gpu")
    assert said in str(raised.value)
    assert raised.value.hint == f"Ask for {hint} at most, or for another partition (-p)."


def test_a_whole_partition_and_an_unknown_partition_are_accepted() -> None:
    check_partition_capacity(compute_layout("-G64"), EIGHT, "gpu")
    check_partition_capacity(compute_layout("-N10", "--gpus-per-node=4", kinds=MIXED), MIXED, "gpu")
    check_partition_capacity(compute_layout("-N100", "--gpus-per-node=8", kinds=()), (), "gpu")
