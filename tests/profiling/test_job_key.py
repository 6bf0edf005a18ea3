"""When two submissions share a profile, and when they are the same trial."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.profiling.job_key import compute_fingerprint, derive_key, derive_variant
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


def with_option(option: str, value: str) -> JobRequest:
    more = SbatchSetting(option=option, value=value, origin=Origin.COMMAND_LINE, where="command line")
    return replace(ASKED, settings=(*ASKED.settings, more))


def test_key_reads_as_program_and_gpus() -> None:
    key = derive_key(ASKED, "src/Train Big.py", "A100")
    assert key.startswith("train-big-a100x8-")
    assert len(key.rpartition("-")[2]) == 12


def test_key_of_a_script_without_program_names_the_script() -> None:
    assert derive_key(ASKED, "run.sbatch", "").startswith("run-gpux8-")


SAME_KEY = [
    replace(ASKED, args=("--lr", "3e-4")),
    replace(ASKED, script=replace(ASKED.script, content=b"#!/bin/sh\n# edited\nsrun python train.py\n")),
    with_option("time", "60"),
]


@pytest.mark.parametrize("other", SAME_KEY)
def test_sweeps_and_edits_share_a_profile(other: JobRequest) -> None:
    assert derive_key(other, "train.py", "a100") == derive_key(ASKED, "train.py", "a100")


def test_relative_and_absolute_names_of_one_program_are_one() -> None:
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
def test_other_programs_places_and_gpus_do_not(other: JobRequest, program: str, kind: str) -> None:
    assert derive_key(other, program, kind) != derive_key(ASKED, "train.py", "a100")


def test_script_without_program_is_known_by_its_content() -> None:
    edited = replace(ASKED, script=replace(ASKED.script, content=b"#!/bin/sh\nother\n"))
    assert derive_key(edited, "run.sbatch", "") != derive_key(ASKED, "run.sbatch", "")


@pytest.mark.parametrize(
    "other",
    [
        with_option("job-name", "second try"),
        with_option("output", "logs/%j"),
        with_option("mem", "64G"),
        replace(ASKED, own=GsubOptions(prerun="wait", force=True)),
        replace(ASKED, environ={**ASKED.environ, "SSH_CLIENT": "1.2.3.4"}),
        replace(ASKED, environ=dict(reversed(list(ASKED.environ.items())))),
    ],
)
def test_trial_is_the_same_when_only_its_looks_change(other: JobRequest) -> None:
    assert compute_fingerprint(other, FILES) == compute_fingerprint(ASKED, FILES)


@pytest.mark.parametrize(
    "other",
    [
        replace(ASKED, args=("--lr", "3e-4")),
        replace(ASKED, args=("--lr 1e-3",)),
        replace(ASKED, script=replace(ASKED.script, content=ASKED.script.content + b"\n")),
        replace(ASKED, chdir="/home/b"),
        with_option("mem", "32G"),
        with_option("export", "NONE"),
        replace(ASKED, environ={**ASKED.environ, "PYTHONPATH": "/home/a/lib"}),
    ],
)
def test_trial_is_another_when_anything_that_runs_changes(other: JobRequest) -> None:
    assert compute_fingerprint(other, FILES) != compute_fingerprint(ASKED, FILES)


def test_trial_is_another_when_its_code_changes() -> None:
    assert (
        len(
            {
                compute_fingerprint(ASKED, files)
                for files in ({}, FILES, {"train.py": b""}, {"eval.py": FILES["train.py"]})
            }
        )
        == 4
    )


def test_every_word_and_variable_of_a_site_plugin_counts() -> None:
    def asked(*values: str) -> JobRequest:
        given = [
            SbatchSetting(option="bind", value=value, origin=Origin.COMMAND_LINE, where="command line")
            for value in values
        ]
        return replace(ASKED, settings=(*ASKED.settings, *given), plugin_options={"bind": REQUIRED})

    variable = {"SLURM_SPANK__SLURM_SPANK_OPTION_site_image": "x"}
    found = [
        *(compute_fingerprint(asked(*values), {}, {}) for values in (("/a", "/b"), ("/c", "/b"), ("/b",))),
        *(compute_fingerprint(asked("/b"), {}, environ) for environ in (variable, dict.fromkeys(variable, "y"))),
    ]
    assert len(set(found)) == 5


def test_arguments_that_are_no_text_have_a_fingerprint_too() -> None:
    assert len(compute_fingerprint(replace(ASKED, args=("\udcff",)), {})) == 64


def started(line: str, *args: str) -> JobRequest:
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
def test_one_batch_size_is_one_variant_however_it_is_spelt(line: str) -> None:
    assert derive_variant(started(line, "64")) == derive_variant(started("python other.py --batch-size 64"))


def test_what_shifts_the_cost_of_a_step_is_another_variant_and_the_rest_is_not() -> None:
    plain = "python train.py --batch-size 64 --workers 8"
    same = [plain + more for more in (" --lr 3", " --seed 4", " --output-dir /runs/7", " --save-model-dir m7")]
    other = [plain + more for more in (" --precision bf16", " --seq-len 512", " --amp", " -j 4", " --arch resnet50")]
    assert {derive_variant(started(line)) for line in same} == {derive_variant(started(plain))}
    assert len({derive_variant(started(line)) for line in (plain, *other)}) == 1 + len(other)


def test_a_script_without_such_settings_has_no_variant() -> None:
    assert derive_variant(started("python train.py --lr 3")) == ""
    assert derive_variant(started("# python train.py --batch-size 3")) == ""


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
def test_a_variable_counts_where_the_script_or_its_program_reads_it(line: str, code: bytes, counts: bool) -> None:
    job = started(line)
    marks = {compute_fingerprint(job, {"train.py": code}, {"LR": value, "TERM": value}) for value in ("1", "2")}
    assert (len(marks) == 2) is counts
