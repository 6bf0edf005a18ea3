"""The filter that keeps the kernel lines that concern a job."""

from __future__ import annotations

import pytest

from slurmwrap.node_hooks.kernel_log import bus_address, relevant

OWN, FOREIGN = "0000:05:00.0", "0000:b3:00.0"
UID, JOB = 1001, 41


def filter_lines(*lines: str, gpus: tuple[str, ...] = (OWN,), has_gpus: bool = True) -> list[str]:
    found, _ = relevant([(line, None) for line in lines], JOB, UID, gpus, has_gpus)
    return [line["text"] for line in found]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:05:00): 79, pid=7, name=python, GPU has fallen off the bus.",
        "NVRM: Xid (0000:05:00): 13, Graphics Exception",
        "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at PCI:00000000:05:00: GPU-1234",
        "NVRM: a line of the driver without an address",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/slurm/uid_1001/job_41/step_0,task=python,pid=9,uid=1001",
        "Tasks in /slurm/uid_1001/job_41/step_batch are going to be killed due to memory.oom.group set",
        "Out of memory: Killed process 9 (python) total-vm:1kB, UID:1001 pgtables:1kB oom_score_adj:0",
        "blk_update_request: I/O error, dev sda, sector 1",
        "Buffer I/O error on dev dm-0, logical block 1",
        "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0",
        "XFS (dm-1): Corruption of in-memory data detected. Shutting down filesystem",
        "nfs: server filer not responding, still trying",
        "LustreError: 11-0: scratch-OST0001: operation ost_read failed with -5",
        "mce: [Hardware Error]: Machine check events logged",
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0",
        "INFO: task python:1234 blocked for more than 120 seconds.",
        "mlx5_core 0000:3b:00.0: mlx5_pcie_event: Detected insufficient power",
    ],
)
def test_lines_of_the_job_and_of_the_whole_node_are_kept(line: str) -> None:
    assert filter_lines(line) == [line]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:b3:00): 79, pid=7, name=python, GPU has fallen off the bus.",
        "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/slurm/uid_1001/job_411/step_0,task=python,pid=9,uid=1001",
        "Out of memory: Killed process 9 (python) total-vm:1kB, UID:1002 pgtables:1kB",
        "Memory cgroup out of memory: Killed process 9 (python) total-vm:1kB, UID:1001",  # of an unknown job
        "EXT4-fs (sda1): mounted filesystem",
        "XFS (dm-1): Mounting V5 Filesystem",
        "usb 1-1: new high-speed USB device",
        # a user chooses the name of a process
        "NVRM: Xid (PCI:[77]: segfault at 0 ip 0 sp 0 error 4 in a.out",
        "mce: [Hardware [77]: segfault at 0 error 4",
        "EDAC x[77]: segfault at 0 error 4",
        "Lustre: x (77): drop_caches: 3 error",
        "python[77]: segfault at 0 ip 0 sp 0 error 4 in libcuda.so",
        "LustreError: x invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "Kernel panic invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "LNetError: x: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL|__GFP_COMP)",
        "NFS: x: vmalloc error: size 4096, failed to allocate pages",
        "EDAC x: potentially unexpected fatal signal 11.",
    ],
)
def test_lines_about_other_jobs_or_from_user_programs_are_dropped(line: str) -> None:
    assert filter_lines(line) == []


def test_gpu_lines_are_dropped_for_a_job_without_gpus() -> None:
    lines = ("NVRM: Xid (PCI:0000:05:00): 79, x", "NVRM: something", "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 1")
    assert filter_lines(*lines, gpus=(), has_gpus=False) == []


def test_continuation_lines_belong_to_the_gpu_of_the_line_before() -> None:
    lines = (
        f"NVRM: The NVIDIA GPU {FOREIGN}",
        "NVRM: (PCI ID: 10de:20b0) installed in this system has fallen off the bus and is not responding",
        "nfs: server filer OK",
        f"NVRM: The NVIDIA GPU {OWN}",
        "NVRM: has fallen off the bus",
    )
    assert filter_lines(*lines) == list(lines[2:])


def test_a_kill_line_belongs_to_the_job_of_the_oom_line_before() -> None:
    own = "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/slurm/uid_1001/job_41,task=a,pid=9,uid=1001"
    killed = "Memory cgroup out of memory: Killed process 9 (python) total-vm:1kB, UID:1001"
    assert filter_lines(own, killed, own.replace("41", "42"), killed) == [own, killed]


def test_gpu_lines_are_only_counted_when_the_jobs_gpus_are_unknown() -> None:
    line = "NVRM: Xid (PCI:0000:05:00): 79, x"
    assert relevant([(line, 1.5)], JOB, UID, [], True) == ([], 1)
    assert relevant([(line, 1.5)], JOB, UID, [OWN], True) == ([{"text": line, "at": 1.5}], 0)


def test_the_number_and_length_of_lines_are_bounded() -> None:
    found = filter_lines(*["NVRM: " + "x" * 5000] * 1000)
    assert (len(found), len(found[0])) == (200, 1000)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:05:00.0", (0, 5, 0)),
        ("PCI:0001:B3:1f", (1, 0xB3, 0x1F)),
        ("00000000:05:00.0", (0, 5, 0)),
        ("12:30:45", None),
    ],
)
def test_pci_addresses_are_parsed(text: str, address: tuple[int, int, int] | None) -> None:
    assert bus_address(text) == address
