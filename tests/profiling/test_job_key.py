"""When two submissions have the same profile key, fingerprint or variant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.profiling.job_key import compute_fingerprint, derive_key, derive_length, derive_variant, limit_length
from slurmwrap.sbatch.job_request import GsubOptions, JobRequest, Origin, ResourceShape, SbatchSetting, Script
from slurmwrap.sbatch.option_table import REQUIRED

ASKED = JobRequest(
    script=Script(path="run.sbatch", name="run.sbatch", content=b"#!/bin/sh\nsrun python train.py\n"),
    args=("--lr", "1e-3"),
    settings=(SbatchSetting(option="mem", value="64G", origin=Origin.SCRIPT, where="run.sbatch:2", line=2),),
    shape=ResourceShape(gpus=16, gpus_per_node=8),
    chdir="/home/a/project",
    environ={"PATH": "/usr/bin", "SLURM_CONF": "/etc/slurm/slurm.conf"},
)
FILES = {"train.py": b"import torch\n"}


def add_option(option: str, value: str) -> JobRequest:
    more = SbatchSetting(option=option, value=value, origin=Origin.COMMAND_LINE, where="command line")
    return replace(ASKED, settings=(*ASKED.settings, more))


def test_the_key_contains_program_gpu_type_and_gpus_per_node() -> None:
    key = derive_key(ASKED, "src/Train Big.py", "A100")
    assert key.startswith("train-big-a100x8-")
    assert len(key.rpartition("-")[2]) == 12


def test_the_key_of_a_script_without_program_contains_the_script_name() -> None:
    assert derive_key(ASKED, "run.sbatch", "").startswith("run-gpux8-")


SAME_KEY = [
    replace(ASKED, args=("--lr", "3e-4")),
    replace(ASKED, script=replace(ASKED.script, content=b"#!/bin/sh\n# edited\nsrun python train.py\n")),
    add_option("time", "60"),
]


@pytest.mark.parametrize("other", SAME_KEY)
def test_other_arguments_script_edits_and_time_limits_keep_the_key(other: JobRequest) -> None:
    assert derive_key(other, "train.py", "a100") == derive_key(ASKED, "train.py", "a100")


def test_relative_and_absolute_paths_of_a_program_give_the_same_key() -> None:
    assert derive_key(ASKED, "/home/a/project/train.py", "") == derive_key(ASKED, "./train.py", "")


@pytest.mark.parametrize(
    ("other", "program", "kind"),
    [
        (replace(ASKED, chdir="/home/a/other"), "train.py", "a100"),
        (ASKED, "eval.py", "a100"),
        (ASKED, "train.py", "h100"),
        (replace(ASKED, shape=ResourceShape(gpus=8, gpus_per_node=4)), "train.py", "a100"),
        (replace(ASKED, script=replace(ASKED.script, name="other.sbatch")), "train.py", "a100"),
    ],
)
def test_another_program_directory_script_name_or_gpu_type_changes_the_key(
    other: JobRequest, program: str, kind: str
) -> None:
    assert derive_key(other, program, kind) != derive_key(ASKED, "train.py", "a100")


def test_the_key_of_a_script_without_program_depends_on_its_content() -> None:
    edited = replace(ASKED, script=replace(ASKED.script, content=b"#!/bin/sh\nother\n"))
    assert derive_key(edited, "run.sbatch", "") != derive_key(ASKED, "run.sbatch", "")


@pytest.mark.parametrize(
    "other",
    [
        add_option("job-name", "second try"),
        add_option("output", "logs/%j"),
        add_option("mem", "64G"),
        replace(ASKED, own=GsubOptions(prerun="wait", force=True)),
        replace(ASKED, environ={**ASKED.environ, "SSH_CLIENT": "1.2.3.4"}),
        replace(ASKED, environ=dict(reversed(list(ASKED.environ.items())))),
    ],
)
def test_irrelevant_changes_keep_the_fingerprint(other: JobRequest) -> None:
    assert compute_fingerprint(other, FILES) == compute_fingerprint(ASKED, FILES)


@pytest.mark.parametrize(
    "other",
    [
        replace(ASKED, args=("--lr", "3e-4")),
        replace(ASKED, args=("--lr 1e-3",)),
        replace(ASKED, script=replace(ASKED.script, content=ASKED.script.content + b"\n")),
        replace(ASKED, chdir="/home/b"),
        add_option("mem", "32G"),
        add_option("export", "NONE"),
        replace(ASKED, environ={**ASKED.environ, "PYTHONPATH": "/home/a/lib"}),
    ],
)
def test_relevant_changes_change_the_fingerprint(other: JobRequest) -> None:
    assert compute_fingerprint(other, FILES) != compute_fingerprint(ASKED, FILES)


def test_code_changes_change_the_fingerprint() -> None:
    assert (
        len(
            {
                compute_fingerprint(ASKED, files)
                for files in ({}, FILES, {"train.py": b""}, {"eval.py": FILES["train.py"]})
            }
        )
        == 4
    )


def test_values_and_variables_of_site_plugins_change_the_fingerprint() -> None:
    def add_plugin_values(*values: str) -> JobRequest:
        given = [
            SbatchSetting(option="bind", value=value, origin=Origin.COMMAND_LINE, where="command line")
            for value in values
        ]
        return replace(ASKED, settings=(*ASKED.settings, *given), plugin_options={"bind": REQUIRED})

    variable = {"SLURM_SPANK__SLURM_SPANK_OPTION_site_image": "x"}
    found = [
        *(compute_fingerprint(add_plugin_values(*values), {}, {}) for values in (("/a", "/b"), ("/c", "/b"), ("/b",))),
        *(
            compute_fingerprint(add_plugin_values("/b"), {}, environ)
            for environ in (variable, dict.fromkeys(variable, "y"))
        ),
    ]
    assert len(set(found)) == 5


def test_arguments_that_are_not_valid_text_have_a_fingerprint() -> None:
    assert len(compute_fingerprint(replace(ASKED, args=("\udcff",)), {})) == 64


def make_request(line: str, *args: str) -> JobRequest:
    script = replace(ASKED.script, content=b"#!/bin/sh\n#SBATCH --gpus=8\n" + line.encode() + b"\n")
    return replace(ASKED, script=script, args=args)


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --batch-size 64",
        "python train.py --lr 3 --batch-size=64 --seed 5",
        "python train.py batch_size=64 out_dir=/x",
        "srun -n 8 python train.py data.batch_size=64",
        "python train.py --batch_size $1",
    ],
)
def test_the_same_batch_size_gives_the_same_variant_in_any_spelling(line: str) -> None:
    assert derive_variant(make_request(line, "64")) == derive_variant(make_request("python other.py --batch-size 64"))


def test_only_settings_that_change_the_cost_of_a_step_change_the_variant() -> None:
    plain = "python train.py --batch-size 64 --workers 8"
    same = [plain + more for more in (" --lr 3", " --seed 4", " --output-dir /runs/7", " --save-model-dir m7")]
    other = [plain + more for more in (" --precision bf16", " --seq-len 512", " --amp", " -j 4", " --arch resnet50")]
    assert {derive_variant(make_request(line)) for line in same} == {derive_variant(make_request(plain))}
    assert len({derive_variant(make_request(line)) for line in (plain, *other)}) == 1 + len(other)


def test_a_script_without_settings_that_change_the_cost_has_no_variant() -> None:
    assert derive_variant(make_request("python train.py --lr 3")) == ""
    assert derive_variant(make_request("# python train.py --batch-size 3")) == ""


@pytest.mark.parametrize(
    ("line", "code", "counts"),
    [
        ("python train.py --lr $LR", b"", True),
        ("python train.py --lr ${LR:-0.1}", b"", True),
        ("python train.py", b"lr = float(os.environ['LR'])", True),
        ("python train.py", b'lr = os.getenv("LR", "0.1")', True),
        ("python train.py", b"lr = 0.1", False),
    ],
)
def test_a_variable_counts_only_if_the_script_or_program_reads_it(line: str, code: bytes, counts: bool) -> None:
    job = make_request(line)
    marks = {compute_fingerprint(job, {"train.py": code}, {"LR": value, "TERM": value}) for value in ("1", "2")}
    assert (len(marks) == 2) is counts


def with_script(text: str, *args: str) -> JobRequest:
    return replace(ASKED, script=replace(ASKED.script, content=f"#!/bin/sh\n{text}\n".encode()), args=args)


@pytest.mark.parametrize(
    ("script", "args", "length"),
    [
        ("python train.py --epochs 90 --lr 0.1", (), (("epochs", "90"),)),
        ("python train.py --num_train_epochs=3 --save_steps 500", (), (("num-train-epochs", "3"),)),
        ("srun python train.py $1 $2", ("--max-steps", "1000"), (("max-steps", "1000"),)),
        ("python train.py trainer.max_epochs=10 +data=cifar", (), (("data", "cifar"), ("max-epochs", "10"))),
        ('EPOCHS="${EPOCHS:-90}"\npython train.py --epochs "$EPOCHS"', (), (("epochs", "90"),)),
        ("N=7\npython train.py --iterations ${N}", (), (("iterations", "7"),)),
        ("python train.py --epochs ${1:-20}", ("30",), (("epochs", "30"),)),
        ("python train.py --epochs ${1:-20}", (), (("epochs", "20"),)),
        ("python train.py --epochs $UNKNOWN", (), ()),
        ("python train.py --epochs $(cat n)", (), ()),
        ("python train.py --warmup-epochs 5 --eval-steps 10 --start-epoch 3 --log-interval 9", (), ()),
        ("# python train.py --epochs 90", (), ()),
        ("python train.py configs/resnet.yaml", (), (("config", "configs/resnet.yaml"),)),
        ("python train.py", ("--n-epochs", "4"), (("n-epochs", "4"),)),
    ],
)
def test_length_options_come_from_script_and_arguments(
    script: str, args: tuple[str, ...], length: tuple[tuple[str, str], ...]
) -> None:
    assert derive_length(with_script(script, *args)) == length


def test_a_variable_that_the_script_does_not_set_comes_from_the_environment() -> None:
    job = with_script("EPOCHS=${EPOCHS:-90}\npython train.py --epochs $EPOCHS --max-steps $STEPS")
    assert derive_length(job, {"EPOCHS": "5", "STEPS": "70"}) == (("epochs", "5"), ("max-steps", "70"))


def test_length_options_are_few_and_short() -> None:
    many = " ".join(f"--epochs-{n} {n}" for n in range(50)) + f" --dataset {'d' * 500}"
    found = derive_length(with_script(f"python train.py {many}"))
    assert len(found) == 8
    assert all(len(name) <= 40 and len(value) <= 40 for name, value in found)
    assert limit_length(found) == found


@pytest.mark.parametrize(
    "claimed", [None, "epochs", [["epochs"]], [["epochs", 9]], [["e" * 99, "9"]], [["e", "9"]] * 9]
)
def test_malformed_length_options_of_a_record_are_dropped(claimed: object) -> None:
    assert limit_length(claimed) == ()
