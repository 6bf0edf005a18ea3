"""Settings as numbers; the spellings were tested with sbatch 22.05.8."""

from __future__ import annotations

import pytest

from slurmwrap.errors import UsageError
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, JobRequest, MemUnit, ResourceShape
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.resource_shape import parse_time_limit


def ask(*argv: str, script: bytes = b"#!/bin/sh\n", environ: dict[str, str] | None = None) -> JobRequest:
    return parse_request(
        (*argv, "a.sh"), environ=environ or {}, cwd="/", read_script=lambda _: script, read_stdin=lambda: b""
    )


def shape(*argv: str, **more) -> ResourceShape:
    return ask(*argv, **more).shape


def test_a_request_without_options_has_an_empty_shape() -> None:
    assert shape() == ResourceShape()


def test_a_usual_job_in_numbers() -> None:
    asked = shape("-N2-4", "--ntasks-per-node=8", "--gres=gpu:a100:8", "-c8", "--mem=500G", "-t1-12", "--exclusive")
    assert asked == ResourceShape(
        nodes=2,
        max_nodes=4,
        tasks_per_node=8,
        gpus=16,
        gpus_per_node=8,
        gpu_type="a100",
        gpu_unit=GpuUnit.GRES,
        cpus=8,
        cpu_unit=CpuUnit.PER_TASK,
        mem_mib=512000,
        mem_unit=MemUnit.PER_NODE,
        time_limit_s=129600,
        exclusive=True,
    )


@pytest.mark.parametrize(
    ("argv", "gpus", "per_node", "kind", "unit"),
    [
        (["--gres=gpu"], 1, 1, None, GpuUnit.GRES),
        (["--gres=gpu:2"], 2, 2, None, GpuUnit.GRES),
        (["--gres=gpu:a100"], 1, 1, "a100", GpuUnit.GRES),
        (["--gres=gpu:a100:2,gpu:h100:1"], 3, 3, None, GpuUnit.GRES),
        (["--gres=shard:1,gres:gpu:a100:4", "-N3"], 12, 4, "a100", GpuUnit.GRES),
        (["--gres=gres/gpu=2"], 2, 2, None, GpuUnit.GRES),
        (["--gres=nic:2"], 0, None, None, GpuUnit.NONE),
        (["--gres=none"], 0, None, None, GpuUnit.NONE),
        (["--gres=gpu:0"], 0, None, None, GpuUnit.NONE),
        (["-G16"], 16, None, None, GpuUnit.GPUS),
        (["--gpus=a100:16", "--gpus-per-node=8"], 16, 8, "a100", GpuUnit.GPUS),
        (["--gpus=a100:4,h100:2"], 6, None, None, GpuUnit.GPUS),
        (["--gpus-per-node=h100:8", "-N2"], 16, 8, "h100", GpuUnit.PER_NODE),
        (["--gpus-per-node=8", "-n12", "--ntasks-per-node=4"], 24, 8, None, GpuUnit.PER_NODE),
        (["--gpus-per-node=8", "-w", "n[0-2],m7"], 32, 8, None, GpuUnit.PER_NODE),
        (["--gpus-per-task=2", "-n8"], 16, None, None, GpuUnit.PER_TASK),
        (["--gpus-per-task=1", "-N2", "--ntasks-per-node=8"], 16, 8, None, GpuUnit.PER_TASK),
        (["--gpus-per-task=a100:1", "-N2"], 2, None, "a100", GpuUnit.PER_TASK),
        (["--tres-per-task=cpu=4,gres/gpu:a100:2", "-n4"], 8, None, "a100", GpuUnit.PER_TASK),
        (["--gpus-per-socket=4", "--sockets-per-node=2", "-N2"], 16, None, None, GpuUnit.PER_SOCKET),
    ],
)
def test_gpus_are_counted_in_every_unit(argv, gpus: int, per_node: int | None, kind: str | None, unit) -> None:
    asked = shape(*argv)
    assert (asked.gpus, asked.gpus_per_node, asked.gpu_type, asked.gpu_unit) == (gpus, per_node, kind, unit)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 120),  # a minute and a half, rounded up
        ("2:00:00", 7200),
        ("1-", 86400),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("0-0:0:1", 60),
        ("100:00:00", 360000),
        ("0", None),
        ("INFINITE", None),
        ("UNLIMITED", None),
        ("-1", None),
    ],
)
def test_a_time_limit_is_read_in_every_form(text: str, seconds: int | None) -> None:
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["", " 3", "1h", "1:2:3:4", ":5", "5:", "1-2-3", "1:2-3"])
def test_an_invalid_time_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="Invalid --time specification"):
        shape(f"--time={text}")


@pytest.mark.parametrize(
    ("text", "mib"),
    [("0", 0), ("1", 1), ("1000K", 1), ("1025k", 2), ("3m", 3), ("3gb", 3072), ("2TB", 2097152), (" +3G", 3072)],
)
def test_memory_is_read_as_by_sbatch(text: str, mib: int) -> None:
    assert shape(f"--mem-per-gpu={text}").mem_mib == mib


@pytest.mark.parametrize("text", ["", "x", "1x", "-1", "1.5G", "1P", "G"])
def test_invalid_memory_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"Invalid --mem specification \(command line: --mem=") as caught:
        shape(f"--mem={text}")
    assert caught.value.exit_code == 255


def test_across_memory_units_the_script_overrides_the_environment() -> None:
    asked = shape(script=b"#!/bin/sh\n#SBATCH --mem=1G\n", environ={"SBATCH_MEM_PER_GPU": "3G"})
    assert (asked.mem_mib, asked.mem_unit) == (1024, MemUnit.PER_NODE)
    asked = shape(script=b"#!/bin/sh\n#SBATCH --mem=1G\n", environ={"SBATCH_MEM_PER_NODE": "3G"})
    assert (asked.mem_mib, asked.mem_unit) == (3072, MemUnit.PER_NODE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", (3, 3)), (" 3 ", (3, 3)), ("2-4", (2, 4)), ("1k", (1024, 1024)), ("2,4-8", (2, 8)), ("2-8:2", (2, 8))],
)
def test_node_counts_and_ranges_are_read(text: str, expected: tuple[int, int]) -> None:
    asked = shape(f"--nodes={text}")
    assert (asked.nodes, asked.max_nodes) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", '"x" is not a valid node count (command line: --nodes=x)'),
        ("4-2", "Maximum node count 2 is less than minimum node count 4 (command line: --nodes=4-2)"),
    ],
)
def test_invalid_node_counts_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        shape(f"--nodes={text}")
    assert str(caught.value) == message


def test_a_node_list_in_a_file_gives_no_node_count() -> None:
    assert shape("-w", "./hosts").nodes is None


@pytest.mark.parametrize(
    ("argv", "alone"),
    [
        (["--exclusive"], True),
        (["--exclusive=exclusive"], True),
        (["--exclusive=user"], False),
        (["--exclusive", "--oversubscribe"], False),
        (["--oversubscribe", "--exclusive"], True),
    ],
)
def test_exclusive_means_that_the_job_has_its_nodes_alone(argv: list[str], alone: bool) -> None:
    assert shape(*argv).exclusive is alone
