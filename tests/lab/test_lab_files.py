"""The configuration files of a lab, for each Slurm release and for what the machine supports."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.config import load_config as config
from slurmwrap.errors import LabError
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_spec import LabSpec
from slurmwrap.lab.render_slurm_conf import HookPaths, Means, enforcement, parse_release, render

SPEC = LabSpec(directory=Path("/srv/lab"), nodes=4, gpus=2)
LAYOUT = LabDirectories(SPEC.directory)
FULL = Means(release=(22, 5), root=True)
BARE = replace(FULL, no_cgroups="no cgroup v1", no_namespaces="not permitted", no_devices="no mknod")
RELEASES = [(22, 5), (24, 11), (26, 5)]


def settings(text: str) -> dict[str, str]:
    """Key -> value of the plain lines of a Slurm configuration."""
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith(("#", "NodeName", "Partition"))]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("release", RELEASES)
def test_slurm_conf_is_the_same_for_every_release(release: tuple[int, int]) -> None:
    files = render(SPEC, LAYOUT, replace(FULL, release=release), None)
    assert files["slurm.conf"] == render(SPEC, LAYOUT, FULL, None)["slurm.conf"]


@pytest.mark.parametrize(
    ("release", "cgroup_conf"),
    [((22, 5), None), ((24, 11), "CgroupPlugin=disabled\n"), ((26, 5), "CgroupPlugin=disabled\n")],
)
def test_without_cgroups_only_newer_releases_get_a_cgroup_conf(
    release: tuple[int, int], cgroup_conf: str | None
) -> None:
    files = render(SPEC, LAYOUT, replace(BARE, release=release), None)
    assert files.get("cgroup.conf") == cgroup_conf
    plugins = settings(files["slurm.conf"])
    assert (plugins["ProctrackType"], plugins["TaskPlugin"]) == ("proctrack/linuxproc", "task/none")


@pytest.mark.parametrize("release", RELEASES)
def test_with_cgroups_memory_and_devices_are_constrained_and_cores_are_not(release: tuple[int, int]) -> None:
    files = render(SPEC, LAYOUT, replace(FULL, release=release), None)
    assert settings(files["cgroup.conf"]) == {
        "CgroupPlugin": "cgroup/v1", "ConstrainRAMSpace": "yes", "ConstrainDevices": "yes", "ConstrainCores": "no",
    }  # fmt: skip
    plugins = settings(files["slurm.conf"])
    assert (plugins["ProctrackType"], plugins["TaskPlugin"]) == ("proctrack/cgroup", "task/cgroup")


def test_devices_are_not_constrained_when_they_are_not_device_files() -> None:
    files = render(SPEC, LAYOUT, replace(FULL, no_devices="no mknod"), None)
    assert settings(files["cgroup.conf"])["ConstrainDevices"] == "no"


def test_slurm_conf_has_no_settings_that_need_an_accounting_database() -> None:
    # slurmctld 22.05: "fatal: slurmdbd is required to run with TRES gres/gpu"
    assert "AccountingStorage" not in render(SPEC, LAYOUT, FULL, None)["slurm.conf"]


def test_accounting_enforces_limits_and_its_database_belongs_to_slurm_user() -> None:
    spec = replace(SPEC, accounting=True, slurm_user="slurm")
    files = render(spec, LAYOUT, FULL, None)
    slurm, slurmdbd = settings(files["slurm.conf"]), settings(files["slurmdbd.conf"])
    assert {key: value for key, value in slurm.items() if key.startswith("Accounting")} == {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": slurmdbd["DbdPort"],
        "AccountingStoragePass": "/srv/lab/run/munge/munge.socket",
        "AccountingStorageTRES": "gres/gpu",
        "AccountingStorageEnforce": "limits,qos",
    }
    assert (slurmdbd["SlurmUser"], slurmdbd["StorageUser"], slurmdbd["DbdAddr"]) == ("slurm", "slurm", "127.0.0.1")
    assert "StoragePass" not in slurmdbd and "slurmdbd.conf" not in render(SPEC, LAYOUT, FULL, None)


def test_slurm_conf_names_hooks_only_if_they_are_given() -> None:
    hooks = HookPaths(prolog="/h/prolog", epilog="/h/epilog", epilog_slurmctld="/h/epilog_slurmctld")
    with_hooks = settings(render(SPEC, LAYOUT, FULL, hooks)["slurm.conf"])
    without = settings(render(SPEC, LAYOUT, FULL, None)["slurm.conf"])
    assert {key: with_hooks[key] for key in with_hooks if key not in without} == {
        "Prolog": "/h/prolog", "Epilog": "/h/epilog", "EpilogSlurmctld": "/h/epilog_slurmctld",
        "PrologEpilogTimeout": "60",
    }  # fmt: skip


def test_nodes_have_their_own_host_names_only_with_namespaces() -> None:
    def host_names(means: Means) -> list[str]:
        lines = render(SPEC, LAYOUT, means, None)["slurm.conf"].splitlines()
        return [line.split()[2] for line in lines if line.startswith("NodeName=")]

    assert host_names(FULL) == [f"NodeHostname=n{index}" for index in range(4)]
    assert host_names(BARE) == ["NodeHostname=localhost"] * 4


def test_the_node_line_holds_the_invented_hardware() -> None:
    odd = replace(SPEC, nodes=1, switches=1, cpus=7, gpus=0, mem_mib=1000)
    files = render(odd, LAYOUT, FULL, None)
    assert (
        "NodeName=n0 NodeAddr=127.0.0.1 NodeHostname=n0 Port=26801 CPUs=7 Boards=1 SocketsPerBoard=1 CoresPerSocket=7 "
        "ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN\n"
    ) in files["slurm.conf"]
    assert files["gres.conf"] == "AutoDetect=off\n"
    assert "GresTypes" not in files["slurm.conf"]
    assert settings(files["slurm.conf"])["DefMemPerCPU"] == "142"


@pytest.mark.parametrize(
    ("cpus", "threads", "expected"),
    [(32, 1, (2, 16, 1)), (32, 2, (2, 8, 2)), (6, 2, (1, 3, 2)), (16, 8, (2, 1, 8))],
)
def test_sockets_cores_and_threads_multiply_to_the_cpus(
    cpus: int, threads: int, expected: tuple[int, int, int]
) -> None:
    conf = render(replace(SPEC, cpus=cpus, threads=threads), LAYOUT, FULL, None)["slurm.conf"]
    board = (
        f"CPUs={cpus} Boards=1 SocketsPerBoard={expected[0]} CoresPerSocket={expected[1]} ThreadsPerCore={expected[2]} "
    )
    assert conf.count(board) == SPEC.nodes


def test_without_a_tree_slurm_conf_has_no_topology() -> None:
    with_tree = render(SPEC, LAYOUT, FULL, None)
    without = render(replace(SPEC, topology="none"), LAYOUT, FULL, None)
    assert settings(with_tree["slurm.conf"]).items() - settings(without["slurm.conf"]).items() == {
        ("TopologyPlugin", "topology/tree")
    }
    assert set(with_tree) - set(without) == {"topology.conf"}


def test_gpus_and_topology_name_all_nodes() -> None:
    files = render(SPEC, LAYOUT, FULL, None)
    assert files["gres.conf"] == "AutoDetect=off\nNodeName=n[0-3] Name=gpu Type=a100 File=/srv/lab/dev/nvidia[0-1]\n"
    assert files["topology.conf"].split("\n") == [
        "SwitchName=ib0 Nodes=n0,n1", "SwitchName=ib1 Nodes=n2,n3", "SwitchName=core Switches=ib0,ib1", "",
    ]  # fmt: skip


def test_a_single_user_lab_runs_every_daemon_as_that_user() -> None:
    own_lab = settings(render(replace(SPEC, slurm_user="ada"), LAYOUT, replace(BARE, root=False), None)["slurm.conf"])
    root_lab = settings(render(replace(SPEC, slurm_user="slurm"), LAYOUT, FULL, None)["slurm.conf"])
    assert (own_lab["SlurmUser"], own_lab["SlurmdUser"]) == ("ada", "ada")
    assert (root_lab["SlurmUser"], root_lab["SlurmdUser"]) == ("slurm", "root")


def test_the_site_configuration_is_valid_for_slurmwrap() -> None:
    text = render(SPEC, LAYOUT, FULL, None)["slurmwrap/config.toml"]
    merged = config.merge(config.Config(), tomllib.loads(text), "lab")
    assert merged.site == config.SiteSection(
        spool="/srv/lab/spool", published="/srv/lab/published", state_dir="/srv/lab/state",
        munge_socket="/srv/lab/run/munge/munge.socket", slurm_user="root",
    )  # fmt: skip
    assert merged.prerun.partition == "prerun"
    acting = dict.fromkeys(config.RULES, "act")
    assert {rule: merged.mode_of(rule) for rule in config.RULES} == {**acting, "order": "advise", "limit": "advise"}


def test_rules_of_the_queue_act_if_asked_for() -> None:
    text = render(replace(SPEC, act=("order",)), LAYOUT, FULL, None)["slurmwrap/config.toml"]
    merged = config.merge(config.Config(), tomllib.loads(text), "lab")
    assert (merged.mode_of("order"), merged.mode_of("limit")) == ("act", "advise")


def test_multifactor_priorities_have_fair_share_only_with_accounting() -> None:
    assert settings(render(SPEC, LAYOUT, FULL, None)["slurm.conf"])["PriorityType"] == "priority/basic"
    plain = settings(render(replace(SPEC, priority="multifactor"), LAYOUT, FULL, None)["slurm.conf"])
    assert plain["PriorityType"] == "priority/multifactor" and "PriorityWeightFairshare" not in plain
    shared = replace(SPEC, priority="multifactor", accounting=True)
    assert "PriorityWeightFairshare" in settings(render(shared, LAYOUT, FULL, None)["slurm.conf"])


@pytest.mark.parametrize("nodes", [2, 4, 8, 64])
def test_the_cap_on_drained_nodes_allows_at_least_one(nodes: int) -> None:
    text = render(replace(SPEC, nodes=nodes), LAYOUT, FULL, None)["slurmwrap/config.toml"]
    assert 1 <= int(tomllib.loads(text)["placement"]["exclude_cap"] * nodes) < nodes


@pytest.mark.parametrize(
    ("output", "release"),
    [("slurm-wlm 22.05.8\n", (22, 5)), ("slurm 24.11.5", (24, 11)), ("slurm-wlm 26.05.0-rc1", (26, 5))],
)
def test_the_release_is_parsed_from_the_version_output_of_slurmctld(output: str, release: tuple[int, int]) -> None:
    assert parse_release(output) == release


@pytest.mark.parametrize("output", ["", "slurm unknown", "slurm 20.11.9"])
def test_a_release_that_is_unknown_or_too_old_is_refused(output: str) -> None:
    with pytest.raises(LabError):
        parse_release(output)


def test_enforcement_tells_how_each_limit_is_enforced_or_why_not() -> None:
    assert enforcement(FULL) == {
        "memory": "yes: cgroup v1", "devices": "yes: cgroup v1", "cores": "no: the nodes' CPUs are invented",
    }  # fmt: skip
    assert enforcement(replace(FULL, no_devices="no mknod"))["devices"] == "no: no mknod"
    assert enforcement(BARE)["memory"] == "no: no cgroup v1"
