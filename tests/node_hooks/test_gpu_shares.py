"""Shares of a GPU: GPM on a stand-in for NVML with the driver's structures, DCGM by a stand-in for dcgmi."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hook_site import OLD_PYTHON

from slurmwrap.node_hooks import gpu_shares
from slurmwrap.node_hooks.gpu_shares import parse_discovery, parse_dmon, read_dcgm
from slurmwrap.node_hooks.gpu_use_sampler import PendingSamples

ADDRESSES = ((0, "0000:05:00.0"), (1, "0000:06:00.0"))
QUERY = """
import json, sys
from slurmwrap.node_hooks import gpu_use_query
gpus = json.loads(sys.argv[1])
gpu_use_query.run(gpus, [], 41, "", lambda data: sys.stdout.write(data.decode()))
"""
# 18 links of 26,562 MB/s, PCI Express 5.0 with 16 lanes of 3,938.5 MB/s. GPM reports MiB/s.
H100 = "links@0=18 field164@0=26562 generation@0=5 width@0=16"
BUSY = f"{H100} sm@0=99 gpm@0=62.5 gpm10@0=31 gpm20@0=6009.674 gpm21@0=30048.37 gpm60@0=45595.93 gpm61@0=1"
SHARES = {"sm_active": 0.625, "dram": 0.31, "pcie": 0.5, "nvlink": 0.1}

Query = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def query(libnvml: Callable[..., str]) -> Query:
    def ask(answers: str, python: str = sys.executable) -> list[dict[str, Any]]:
        environ = {"LD_LIBRARY_PATH": libnvml(), "FAKE_NVML": answers, "PYTHONPATH": str(Path(__file__).parents[2])}
        argv = [python, "-c", QUERY, json.dumps(ADDRESSES)]
        done = subprocess.run(argv, env=environ, check=True, capture_output=True, text=True)
        return [line for line in map(json.loads, done.stdout.splitlines()) if "shares" in line]

    return ask


def test_the_structures_are_those_of_nvidias_binding() -> None:
    for own, theirs in (
        (gpu_shares.GpmMetric, pynvml.c_nvmlGpmMetric_t),
        (gpu_shares.FieldValue, pynvml.c_nvmlFieldValue_t),
    ):
        assert ctypes.sizeof(own) == ctypes.sizeof(theirs)
        assert [getattr(own, one[0]).offset for one in own._fields_] == [
            getattr(theirs, one[0]).offset for one in theirs._fields_
        ]
    assert gpu_shares.GpmMetrics.metrics.offset == pynvml.c_nvmlGpmMetricsGet_t.metrics.offset
    assert gpu_shares.GpmMetrics.samples.offset == pynvml.c_nvmlGpmMetricsGet_t.sample1.offset
    assert gpu_shares.GPM_METRICS >= pynvml.NVML_GPM_METRIC_MAX
    assert pynvml.NVML_GPM_METRICS_GET_VERSION == 1
    names = ("SM_UTIL", "DRAM_BW_UTIL", "PCIE_TX_PER_SEC", "PCIE_RX_PER_SEC")
    names += ("NVLINK_TOTAL_RX_PER_SEC", "NVLINK_TOTAL_TX_PER_SEC")
    assert tuple(getattr(pynvml, f"NVML_GPM_METRIC_{name}") for name in names) == gpu_shares.ASKED
    fields = (pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)
    assert fields == gpu_shares.LINK_SPEEDS


def test_a_gpu_with_gpm_gives_its_shares_after_the_other_values(query: Query) -> None:
    assert query(BUSY) == [{"gpu": 0, "shares": SHARES}]
    # Without links, with an unknown generation and a value that the GPU does not count:
    assert query("gpm@0=50 gpm20@0=100 gpm60@0=100 generation@0=0") == [{"gpu": 0, "shares": {"sm_active": 0.5}}]
    assert query("gpm@0=50 nvmlGpmMetricsGet=3") == []


@pytest.mark.skipif(not os.access(OLD_PYTHON, os.X_OK), reason="needs Python 3.6")
def test_the_shares_are_read_by_python_3_6(query: Query) -> None:
    assert query(BUSY, python=str(OLD_PYTHON)) == [{"gpu": 0, "shares": SHARES}]


def make_dcgmi(folder: Path, dmon: str, discovery: str | None = None) -> str:
    """Write a dcgmi that prints these texts; return its path. It fails for other arguments than those of the hooks."""
    boxes = "".join(
        f"| {number}      | Name: NVIDIA A100-SXM4-80GB {'':41}|\n"
        f"|        | PCI Bus ID: 0000{address.upper()} {'':40}|\n"
        f"|        | Device UUID: GPU-00000000-0000-0000-0000-00000000000{number} {'':16}|\n"
        f"+--------+{'':-<70}+\n"
        for number, (_, address) in enumerate(reversed(ADDRESSES))
    )
    head = f"2 GPUs found.\n+--------+{'':-<70}+\n| GPU ID | Device Information {'':50}|\n"
    (folder / "discovery").write_text(head + boxes + "0 NvSwitches found.\n" if discovery is None else discovery)
    (folder / "dmon").write_text(dmon)
    program = folder / "dcgmi"
    program.write_text(f"""#!/bin/sh
case "$*" in
  "discovery -l") cat {folder}/discovery ;;
  "dmon -e 1002,1005,1009,1010,1011,1012 -d 500 -c 3") cat {folder}/dmon ;;
  *) echo "unknown arguments" >&2; exit 1 ;;
esac
""")
    program.chmod(0o755)
    return str(program)


DMON = """#Entity   SMACT        DRAMA        PCITX                PCIRX                NVLTX                NVLRX
ID
GPU 1     N/A          N/A          N/A                  N/A                  N/A                  N/A
GPU 0     N/A          N/A          N/A                  N/A                  N/A                  N/A
GPU 1     0.625        N/A          3150800000           6301600000           N/A                  N/A
GPU 0     0.000        0.000        411208               622119               0                    0
GPU 1     0.500        0.125        N/A                  N/A                  47811600000          9
GPU 0     0.001        0.000        411208               622119               0                    0
"""


@pytest.mark.parametrize(
    ("dmon", "rows"),
    [
        (DMON, {1: [0.5, 0.125, 3150800000.0, 6301600000.0, 47811600000.0, 9.0], 0: [0.001, 0, 411208, 622119, 0, 0]}),
        ("# Entity SMACT DRAMA\nId\nGPU 0 0.5 0.1\n", {}),  # fewer columns than were asked for
        ("Error setting watches. Result: Profiling is not supported for this group of GPUs\n", {}),
        ("GPU 0 1 0.5 nan inf -3 7\nGPU-I 3 1 1 1 1 1 1\nGPU x 1 1 1 1 1 1\n", {0: [1, 0.5, None, None, None, 7]}),
    ],
)
def test_the_last_number_of_each_column_counts(dmon: str, rows: dict[int, list[float | None]]) -> None:
    assert parse_dmon(dmon) == rows


def test_addresses_are_those_of_sysfs() -> None:
    text = "| 3      | Name: <<<NULL>>>    |\n|        | PCI Bus ID: 00000000:4C:00.0      |\n| 4 | Name: x |\n"
    assert parse_discovery(text) == {3: "0000:4c:00.0"}


def test_a_dcgmi_without_its_host_engine_or_that_hangs_gives_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text(
        "#!/bin/sh\necho 'Error: unable to establish a connection to the specified host: localhost'\nexit 1\n"
    )
    broken.chmod(0o755)
    hanging = tmp_path / "hanging"
    hanging.write_text("#!/bin/sh\nexec sleep 3600\n")
    hanging.chmod(0o755)
    assert read_dcgm(str(broken)) == read_dcgm(str(hanging), wait_s=0.3) == read_dcgm(str(tmp_path / "none")) == {}


def test_a_message_has_the_means_since_the_sampler_began() -> None:
    pending = PendingSamples({})
    pending.add(0, [{"gpu": 0, "use": 5.0, "shares": {"sm_active": 0.2, "pcie": 0.5}}, {"gpu": 1, "use": 5.0}])
    pending.clear(0.0)
    pending.add(1, [{"gpu": 0, "use": 5.0, "shares": {"sm_active": 0.4}}, {"gpu": 1, "use": 5.0}])
    first, second = pending.message()["samples"]
    assert (first["shares"], first["share_samples"]) == ({"sm_active": 0.3, "pcie": 0.5}, 2)
    assert not {"shares", "share_samples"} & second.keys()


ASK = """
import json, sys
from slurmwrap.node_hooks import gpu_use_sampler
from slurmwrap.node_hooks.hook_settings import HookSettings
keys = dict.fromkeys(("cluster", "spool", "munge", "munge_socket", "kernel_log", "nvidia_proc"), "")
settings = HookSettings("n0", dict(keys, node_state_dir=sys.argv[1], dcgmi=sys.argv[2]))
print(json.dumps(gpu_use_sampler.ask(settings, [(0, "0000:05:00.0"), (1, "0000:06:00.0")], (), 41, "")))
"""


def test_the_sampler_joins_the_shares_and_asks_dcgm_where_no_gpu_has_gpm(
    libnvml: Callable[..., str], tmp_path: Path
) -> None:
    dcgmi = make_dcgmi(tmp_path, DMON)

    def ask(answers: str, dcgmi: str = dcgmi) -> list[tuple[Any, ...]]:
        environ = {"LD_LIBRARY_PATH": libnvml(), "FAKE_NVML": answers, "PYTHONPATH": str(Path(__file__).parents[2])}
        argv = [sys.executable, "-c", ASK, str(tmp_path / "state"), dcgmi]
        found = json.loads(subprocess.run(argv, env=environ, check=True, capture_output=True, text=True).stdout)
        assert all("bandwidths" not in one for one in found)
        return [(one["gpu"], one["use"], one.get("shares")) for one in found]

    assert ask(BUSY) == [(0, 99, SHARES), (1, 0, None)]
    assert ask("links@0=18 field164@0=26562 generation=4 sm@1=3") == [  # GPU 1 for DCGM is device minor 0
        (0, 0, {"sm_active": 0.5, "dram": 0.125, "pcie": 0.2, "nvlink": 0.1}),
        (1, 3, {"sm_active": 0.001, "dram": 0.0, "pcie": 0.0}),
    ]
    assert ask("sm@1=3", "") == ask("sm@1=3", str(tmp_path / "none")) == [(0, 0, None), (1, 3, None)]
