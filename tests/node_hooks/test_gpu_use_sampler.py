"""The use of a job's GPUs is sampled while it runs: the real queries on a stand-in for NVML, and the real Prolog."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hook_site import OLD_PYTHON, Site, add_gpu, epilog_facts
from waiting import wait_until

from slurmwrap.model.observation import Context, Observation
from slurmwrap.node_hooks import gpu_clocks, gpu_use_sampler, node_state
from slurmwrap.node_hooks.gpu_use_sampler import LATER_S, PERIOD_S, PendingSamples
from slurmwrap.node_hooks.hook_settings import HookSettings

ADDRESSES = ((0, "0000:05:00.0"), (1, "0000:06:00.0"), (2, "0000:07:00.0"))
QUERY = """
import json, sys
from slurmwrap.node_hooks import gpu_use_query
gpus, others = json.loads(sys.argv[1])
gpu_use_query.run(gpus, others, int(sys.argv[2]), "", lambda data: sys.stdout.write(data.decode()))
"""


@pytest.fixture
def query(libnvml: Callable[..., str]) -> Callable[..., list[dict[str, Any]]]:
    def ask(answers: str, gpus: int = 2, job_id: int = 41, python: str = sys.executable) -> list[dict[str, Any]]:
        environ = {"LD_LIBRARY_PATH": libnvml(), "FAKE_NVML": answers, "PYTHONPATH": str(Path(__file__).parents[2])}
        asked = json.dumps([ADDRESSES[:gpus], ADDRESSES[gpus:]])
        argv = [python, "-c", QUERY, asked, str(job_id)]
        done = subprocess.run(argv, env=environ, check=True, capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return [line for line in lines if "asking" not in line]

    return ask


def test_use_memory_processes_and_energy_of_the_jobs_gpus_are_read(query: Callable[..., list[dict[str, Any]]]) -> None:
    found = query("samples@0=4 sm@0=80 sm@1=3 used_mib@0=500 process@0=7 energy@0=9000")
    assert found == [
        {"gpu": 0, "use": 40.0, "mem_mib": 500, "mem_total_mib": 81920, "processes": 1, "energy_mj": 9000},
        {"gpu": 1, "use": 3, "mem_mib": 0, "mem_total_mib": 81920, "processes": 0},
    ]


def test_what_a_driver_does_not_support_or_a_lost_gpu_does_not_answer_is_omitted(
    query: Callable[..., list[dict[str, Any]]],
) -> None:
    missing = "nvmlDeviceGetUtilizationRates nvmlDeviceGetMemoryInfo nvmlDeviceGetComputeRunningProcesses_v3"
    refused = " ".join(f"{name}@0=3" for name in [*missing.split(), "nvmlDeviceGetComputeRunningProcesses_v2"])
    assert query(f"{refused} lost@1=1") == [{"gpu": 0}]
    assert query("init=9") == [{"failed": "the NVIDIA driver is not loaded"}]


def test_of_a_gpu_in_mig_mode_the_instances_with_a_process_of_the_job_are_read(
    query: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroup = Path(f"/proc/{os.getpid()}/cgroup").read_text()
    assert "job_41" not in cgroup
    answers = f"mig@0=2 mig@1=2 process@10=1 process@21={os.getpid()} gpm@21=37 used_mib@21=900"
    assert query(answers) == []  # no process of the job, as the kernel has it
    monkeypatch.setitem(globals(), "QUERY", QUERY.replace("gpus, others =", MINE + "gpus, others ="))
    (found,) = query(answers, gpus=1)  # Slurm's index of an instance need not be the number of its GPU
    assert found == {
        "gpu": 1, "mig": "GPU-21-fake", "use": 37.0, "mem_mib": 900, "mem_total_mib": 81920, "processes": 1,
        "shares": {"sm_active": 0.37},
    }  # fmt: skip
    (found,) = query(answers.replace("gpm@21=37", ""))
    assert "use" not in found


MINE = f"gpu_use_query._is_of_job = lambda pid, job_id, sluid: pid == {os.getpid()}\n"


@pytest.mark.skipif(not os.access(OLD_PYTHON, os.X_OK), reason="needs Python 3.6")
def test_the_query_runs_under_python_3_6(query: Callable[..., list[dict[str, Any]]]) -> None:
    assert query("sm@0=5", gpus=1, python=str(OLD_PYTHON))[0]["use"] == 5


class Node:
    """A node with a job whose sampler is called here, with a clock of its own."""

    def __init__(self, root: Path) -> None:
        keys = dict.fromkeys(("cluster", "spool", "munge", "munge_socket", "kernel_log", "nvidia_proc"), "")
        self.settings = HookSettings("n0", {**keys, "node_state_dir": str(root)})
        self.mark = root / "41.mark"
        self.mark.write_text("{}")
        self.now, self.ends_at, self.sent, self.asked = 0.0, 0.0, [], []  # type: ignore[var-annotated]
        self.arrives = True
        self.answer: Callable[[float], list[dict[str, Any]]] = lambda now: [self.gpu(90.0)]

    @staticmethod
    def gpu(use: float, **values: Any) -> dict[str, Any]:
        return {"gpu": 0, "use": use, "mem_mib": 10, "processes": 1, "mem_total_mib": 80, **values}

    def run(self, ends_at: float) -> int:
        self.ends_at = ends_at
        return gpu_use_sampler.watch(
            self.settings, 41, {"restarts": 0, "uid": 7}, ADDRESSES[:1], (), "", self._sleep, lambda: self.now,
            self._query, self._send,
        )  # fmt: skip

    def _sleep(self, seconds: float) -> None:
        assert 0 < seconds <= gpu_use_sampler.POLL_S
        self.now += seconds
        if self.now >= self.ends_at:
            self.mark.unlink()

    def _query(self) -> list[dict[str, Any]]:
        self.asked.append(self.now)
        return self.answer(self.now)

    def _send(self, found: dict[str, Any]) -> bool:
        self.sent.append((self.now, found))
        return self.arrives

    def samples(self) -> dict[int, float]:
        """Number → use of each sample that arrived."""
        return {
            found["first"] + i: use
            for _, found in self.sent
            for one in found["samples"]
            for i, use in enumerate(one["use"])
        }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_busy_gpu_is_reported_each_minute_at_first_and_later_each_five_minutes(node: Node) -> None:
    assert node.run(3600.0) == 60
    assert node.asked == [30.0 + 60.0 * n for n in range(60)]
    at = [round(moment) for moment, _ in node.sent]
    assert at[:11] == [30 + 60 * n for n in range(10)] + [870]
    assert {late - soon for soon, late in pairwise(at[10:-1])} == {LATER_S}
    assert node.samples() == dict.fromkeys(range(60), 90.0)


def test_a_gpu_without_use_is_reported_every_two_minutes(node: Node) -> None:
    node.answer = lambda now: [node.gpu(0.0 if now > 1800 else 90.0, processes=int(now < 2400))]
    node.run(3600.0)
    late = [moment for moment, _ in node.sent if moment > 1800]
    assert late[0] <= 1800 + 150
    assert {after - before for before, after in pairwise(late[:-1])} == {120.0}


def test_samples_that_did_not_arrive_are_sent_again(node: Node) -> None:
    node.arrives = False
    node.answer = lambda now: [node.gpu(now % 97)]
    node.run(7200.0)
    _, last = node.sent[-1]
    assert (last["first"], len(last["samples"][0]["use"])) == (120 - gpu_use_sampler.KEPT, gpu_use_sampler.KEPT)


def test_a_minute_without_an_answer_is_unknown_and_a_slow_driver_is_asked_less_often(node: Node) -> None:
    def answer(now: float) -> list[dict[str, Any]]:
        if now < 100:
            return []
        if now < 200:
            node.now += 12.0
        return [node.gpu(50.0)]

    node.answer = answer
    node.run(1000.0)
    assert node.asked[:3] == [30.0, 90.0, 150.0]
    assert node.asked[3] >= 162.0 + 20 * 12.0 - PERIOD_S
    known = node.samples()
    assert (known[0], known[1], known[2]) == (-1, -1, 50.0)
    assert sorted(known)[2:4] == [2, 6]


def test_the_counter_of_energy_is_summed_over_resets() -> None:
    pending = PendingSamples({})
    for number, counter in enumerate((5000, 7000, 1000, 4000)):
        pending.add(number, [{"gpu": 0, "energy_mj": counter}])
    assert pending.message()["samples"][0]["energy_j"] == 6.0
    pending.clear(0.0)
    pending.add(4, [{"gpu": 0, "energy_mj": 5000}])
    assert pending.message()["samples"][0]["energy_j"] == 7.0


def test_a_gpu_that_appears_later_has_unknown_samples_before() -> None:
    pending = PendingSamples({})
    pending.add(3, [Node.gpu(1.0)])
    pending.add(5, [Node.gpu(2.0), Node.gpu(3.0, gpu=1)])
    pending.add(6, [Node.gpu(4.0, gpu=1)])
    found = pending.message()
    assert found["first"] == 3
    assert [one["use"] for one in found["samples"]] == [[1.0, -1, 2.0, -1], [-1, -1, 3.0, 4.0]]


def test_a_driver_that_hangs_is_asked_once(site: Site, libnvml: Callable[..., str]) -> None:
    """A query that is abandoned while it is stuck is found again by its pid, and no second one is started."""
    settings = HookSettings("n0", json.loads(site.files.zipapp.with_name("hooks.json").read_text()))
    stuck = {"pid": os.getpid(), "start": gpu_use_sampler.driver_guard.started(os.getpid()), "since": 1, "call": "x"}
    Path(gpu_use_sampler.node_state.ensure(settings.node_state_dir), "driver.stuck").write_text(json.dumps(stuck))
    assert gpu_use_sampler.ask(settings, ADDRESSES, (), 41, "") == []


HANGING = """
import json, sys
from slurmwrap.node_hooks import gpu_clocks, gpu_use_sampler, node_state
from slurmwrap.node_hooks.hook_settings import HookSettings
gpu_use_sampler.QUERY_S = 1.0
keys = dict.fromkeys(("cluster", "spool", "munge", "munge_socket", "kernel_log", "nvidia_proc"), "")
settings = HookSettings("n0", dict(keys, node_state_dir=sys.argv[1]))
print(json.dumps(gpu_use_sampler.ask(settings, [(0, "0000:05:00.0"), (1, "0000:06:00.0")], (), 41, "")))
"""


def test_what_was_read_before_a_call_that_hangs_is_kept(libnvml: Callable[..., str], tmp_path: Path) -> None:
    environ = {"LD_LIBRARY_PATH": libnvml(), "FAKE_NVML": "hang@1=nvmlDeviceGetUtilizationRates sm@0=9"}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    argv = [sys.executable, "-c", HANGING, str(tmp_path / "state")]
    found = json.loads(subprocess.run(argv, env=environ, check=True, capture_output=True, text=True).stdout)
    assert [one["gpu"] for one in found] in ([0], [])  # on a slow machine the time may be over before GPU 0 is read


def test_a_prolog_starts_the_sampler_which_sends_signed_samples(site: Site, libnvml: Callable[..., str]) -> None:
    for minor, address in ADDRESSES:
        add_gpu(site, minor, address)
    site.setting("nvidia_control", "/dev/null")
    answers = {"LD_LIBRARY_PATH": libnvml(), "FAKE_NVML": "sm@0=70 process@0=7 energy@1=5"}
    hurry(site)
    site.prolog(**answers)
    found: list[Observation] = []

    def has_samples() -> bool:
        found.extend(one for one in site.arrived() if isinstance(one, Observation) and one.context is Context.SAMPLES)
        return bool(found)

    wait_until(has_samples, "the sampler sends samples")
    (site.state / "41.mark").unlink()
    assert (found[0].node, found[0].uid, found[0].job_id) == ("n0", 0, 41)
    facts = found[0].facts
    assert {key: facts[key] for key in ("restarts", "uid", "first")} == {"restarts": 0, "uid": 65534, "first": 0}
    assert [(one["gpu"], one["use"][0], one["processes"][0]) for one in facts["samples"]] == [(0, 70, 1), (1, 0, 0)]
    assert facts["samples"][1]["energy_j"] == 0.0


def hurry(site: Site) -> None:
    """Makes a minute of the sampler a tenth of a second."""
    given, quick = site.files.zipapp, site.root / "quick.pyz"
    with zipfile.ZipFile(given) as old, zipfile.ZipFile(quick, "w") as new:
        for item in old.infolist():
            content = old.read(item)
            if item.filename.endswith("gpu_use_sampler.py"):
                content = content.replace(b"PERIOD_S = 60.0", b"PERIOD_S = 0.1").replace(b"60.0, 120.0", b"0.1, 120.0")
            if not item.filename.endswith("gpu_use_sampler.pyc"):
                new.writestr(item, content)
    quick.replace(given)


def test_clocks_are_read_and_counted_while_a_gpu_is_in_use(
    node: Node, query: Callable[..., list[dict[str, Any]]]
) -> None:
    hot, idle = query("sm@0=90 clock@0=990 reasons@0=0x6c thermal_ns@0=5000000000 sm@1=0 clock@1=300 reasons@1=1")
    assert hot["clocks"] == {
        "held": ["hw_slowdown", "sw_thermal", "hw_thermal"], "sm": 0.5, "thermal_ns": 5000000000
    }  # fmt: skip
    assert idle["clocks"] == {"sm": 0.152}  # idling, and a power cap (0x4), are normal
    later = {**hot["clocks"], "thermal_ns": 35000000000}

    def answer(now: float) -> list[dict[str, Any]]:
        if now < 100:
            return [hot, idle]
        return (
            [{**hot, "clocks": later}, idle] if now < 400 else [{**hot, "clocks": {"sm": 1.0}}, {"gpu": 1, "use": 99.0}]
        )

    node.answer = answer
    node.run(600.0)
    found = node_state.take_clocks(node.settings, 41)
    held = dict.fromkeys(("hw_slowdown", "sw_thermal", "hw_thermal"), 7)
    assert found["clocks"]["0"] == {"busy": 10, "slowed": 7, **held, "sm": 0.65, "thermal_s": 30.0}
    assert found["clocks"]["1"]["busy"] == 0
    (_, last) = node.sent[-1]
    assert last["samples"][0]["clocks"] == found["clocks"]["0"]
    assert node_state.take_clocks(node.settings, 41) == {}


def test_the_epilog_sends_the_clocks_of_the_job(site: Site) -> None:
    add_gpu(site, 0, "0000:05:00.0")
    site.prolog()
    site.arrived()
    counts = gpu_clocks.ClockCounts()
    counts.add([{"gpu": 0, "use": 99.0, "clocks": {"held": ["hw_thermal"], "sm": 0.5}}])
    counts.save(SimpleNamespace(node_state_dir=str(site.state)), 41)
    assert epilog_facts(site)["clocks"] == {"0": {"busy": 1, "slowed": 1, "hw_thermal": 1, "sm": 0.5}}
    assert not list(site.state.glob("*.clocks"))
