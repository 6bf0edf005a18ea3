"""Check a node before it returns to service: `python -I -S node_hooks.pyz check HOOKS.JSON REQUEST` prints one record.

slurm/node_check.py runs it in a job on the whole node. It changes nothing on the node but a temporary file in each
directory that it writes to. Whatever may hang is done in a child that is abandoned at its deadline. A check that raises
an error has failed: a node whose state is unknown stays out of service.
"""
import ctypes
import glob
import json
import os
import tempfile
import time

from . import amd_gpus, dcgm_report, deadline_child, gpu_addresses, hook_settings, kernel_log, nvml, nvml_ask, prolog_gate
from . import watch_gpus

VERSION = 1
OK, FAIL, SKIPPED = "ok", "fail", "skipped"
# Seconds for one file system, for NVML, and for each program that computes; the whole has REQUEST's "seconds".
FILES_S, NVML_S, COMPUTE_S = 5.0, 20.0, 60.0
SEND = 1 << 16
# Bytes that a program may print; a diagnosis of eight GPUs has some ten thousand.
OUTPUT = 1 << 20
# GPU memory that the driver itself may hold on an idle GPU: this many MiB, or this share of the whole.
IDLE_MIB, IDLE_SHARE = 2048, 0.04
WRITTEN = ("/tmp", "/var/tmp")
FREE_SHARE = 0.03
LARGEST_OFFSET_S = 0.5
INFINIBAND = "/sys/class/infiniband"
IB_ERRORS = ("link_downed", "link_error_recovery", "symbol_error", "local_link_integrity_errors")
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
NCCL_TESTS = ("/usr/bin/all_reduce_perf", "/usr/local/bin/all_reduce_perf", "/opt/nccl-tests/build/all_reduce_perf")
CHRONYC = ("/usr/bin/chronyc", "/usr/sbin/chronyc")
REBOOT_ACTIONS = ("node_reboot", "system_reboot")
# Prints "none" where there is no PyTorch for NVIDIA's GPUs, and ends with an error for a wrong result.
COMPUTE = """
import sys
try:
    import torch
except ImportError:
    sys.exit(print("none"))
if torch.version.cuda is None:
    sys.exit(print("none"))
for gpu in range(torch.cuda.device_count()):
    a = torch.ones((1024, 1024), device="cuda:%d" % gpu)
    if float((a @ a).sum()) != 1024.0 ** 3:
        sys.exit("GPU %d computes wrongly" % gpu)
print("computed on %d GPUs" % torch.cuda.device_count())
"""


class Request:
    """What REQUEST asks: a JSON object. `gpus`: as Slurm configures the node. `mounts`: paths of file systems."""

    def __init__(self, plain):
        self.gpus = int(plain.get("gpus", 0))
        self.mounts = [str(path) for path in plain.get("mounts", ())]
        self.skip = [str(name) for name in plain.get("skip", ())]
        self.seconds = float(plain.get("seconds", 180))


class CheckedNode:
    """What several checks share: the settings of the hooks, the request, the deadline, and NVML's answer."""

    def __init__(self, settings, request, deadline):
        self.settings = settings
        self.request = request
        self.deadline = deadline
        self._gpu_facts = None
        self._lines = None
        self.log_error = ""  # why the kernel's log could not be read

    def until(self, seconds):
        """Return the deadline of work that may take `seconds`."""
        return min(self.deadline, time.monotonic() + seconds)

    def kernel_lines(self):
        """Return the kernel's lines of the present boot; [] from a file, whose lines may be of an earlier boot."""
        if self._lines is None:
            source = self.settings.kernel_log
            mark = {"source": source, "boot": ""}
            of_boot = not source.startswith("file:")
            try:
                self._lines = kernel_log.since(source, mark, None, self.until(FILES_S)).lines if of_boot else []
            except PermissionError:
                self._lines, self.log_error = [], "only root can read the kernel's log here"
        return self._lines

    def fallen(self):
        """Return the kernel line of this boot by which a GPU fell off the bus, "" without one."""
        return nvml.fallen(self.settings, self.kernel_lines())

    def gpu_facts(self):
        """Return NVML's facts about all GPUs of the node (nvml.states)."""
        if self._gpu_facts is None:
            known = gpu_addresses.addresses(self.settings, self.until(NVML_S))
            gpus = sorted((int(minor), address) for minor, address in known.items())
            more = (("mig", _read_mig), ("memory", _read_memory))
            self._gpu_facts = nvml.states(
                self.settings, gpus, self.until(NVML_S), lost=self.fallen(), checks=nvml_ask.CHECKS + more
            )
        return self._gpu_facts

    def needs_reboot(self):
        """Return whether NVML says of a GPU that the node must be rebooted, as far as NVML was asked."""
        gpus = (self._gpu_facts or {}).get("gpu", ())
        return any(gpu.get("recovery_action") in REBOOT_ACTIONS for gpu in gpus)


def main(argv):
    """Print the record and return the exit code 0, so that the job itself does not count as failed.

    `argv`: [program, "check", path of hooks.json, REQUEST].
    """
    settings = hook_settings.load(argv[2], os.environb)
    if os.geteuid() != 0:
        # Root's directory has root's marks. Where SlurmUser checks nodes, its own marks are elsewhere.
        settings.node_state_dir = "/tmp/slurmwrap-check-%d" % os.geteuid()
    request = Request(json.loads(argv[3]))
    node = CheckedNode(settings, request, time.monotonic() + request.seconds)
    record = {"version": VERSION, "node": settings.node, "release": settings.release, "checks": run_checks(node)}
    record.update(boot=kernel_log.boot(), reboot=node.needs_reboot())
    print(json.dumps(record, sort_keys=True), flush=True)
    return 0


def run_checks(node):
    """Return [{"name", "state", "text"}] of all checks, in their order."""
    return [_run_check(name, check, node) for name, check in CHECKS]


def _run_check(name, check, node):
    if name in node.request.skip:
        state, text = SKIPPED, "switched off in nodes.check_skip"
    elif time.monotonic() >= node.deadline:
        state, text = FAIL, "not made: the time for all checks was used up"
    else:
        try:
            state, text = check(node)
        except Exception as error:
            state, text = FAIL, "the check itself failed: %s: %s" % (type(error).__name__, error)
    return {"name": name, "state": state, "text": text[:500]}


# GPUs. NVML is asked once; each check looks at a part of its answer.
def _why_no_gpu_facts(node):
    """Return (state, text) when there is nothing to look at, else None."""
    if not node.request.gpus:
        return SKIPPED, "Slurm's configuration has no GPU on this node"
    if not os.path.exists(node.settings.nvidia_control):
        return SKIPPED, "NVIDIA's driver is not loaded"
    facts = node.gpu_facts()
    return None if facts.get("gpu") else (FAIL, facts.get("gpu_error") or "NVML answered for no GPU")


def check_gpus(node):
    """Compare the number of GPUs that NVML sees with Slurm's."""
    wanted = node.request.gpus
    if wanted and not os.path.exists(node.settings.nvidia_control):
        amd = watch_gpus.find_amd_gpus(node.settings.sysfs)
        if amd:
            return _check_amd_gpus(amd, wanted, node.until(NVML_S))
        return FAIL, "NVIDIA's driver is not loaded, and Slurm has %d GPUs on this node" % wanted
    nothing = _why_no_gpu_facts(node)
    if nothing:
        return nothing
    facts = node.gpu_facts()
    if facts.get("gpu_error"):
        return FAIL, facts["gpu_error"]
    broken = [_name(gpu, gpu["error"]) for gpu in facts["gpu"] if gpu.get("error")]
    if broken:
        return FAIL, "; ".join(broken)
    seen = len(facts["gpu"])
    if any(gpu.get("mig") for gpu in facts["gpu"]):
        return OK, "NVML sees %d GPUs; they are divided (MIG), so that Slurm's number is not compared" % seen
    return (OK if seen == wanted else FAIL), "NVML sees %d GPUs, Slurm has %d" % (seen, wanted)


def _check_amd_gpus(amd, wanted, deadline):
    """Compare the number of AMD's GPUs with Slurm's, and look for memory errors since the driver was loaded."""
    if len(amd) != wanted:
        return FAIL, "amdgpu has %d GPUs, Slurm has %d" % (len(amd), wanted)
    found = deadline_child.call(
        lambda send: send(json.dumps([amd_gpus.read_ras(device) for _, _, device in amd]).encode("ascii")), deadline, SEND
    )
    if not found.complete:
        return FAIL, "amdgpu does not answer"
    bad = []
    for (index, address, _), errors in zip(amd, json.loads(found.data.decode("ascii"))):
        if errors:
            named = ", ".join("%s %d" % one for one in sorted(errors.items()))
            bad.append("GPU %d (%s): uncorrectable errors since the driver was loaded: %s" % (index, address, named))
    return (FAIL, "; ".join(bad)) if bad else (OK, "amdgpu has %d GPUs, as Slurm has" % wanted)


def check_gpu_state(node):
    """Look for what NVIDIA calls conclusive, and for what only a reset or a reboot clears."""
    nothing = _why_no_gpu_facts(node)
    return nothing or _judge_gpus(node, _find_gpu_faults, "NVML reports no fault that needs a reset")


def _find_gpu_faults(gpu):
    conclusive = prolog_gate.conclusive_fault(gpu)
    if conclusive:
        yield conclusive["text"]
    if gpu.get("remapped_rows", {}).get("pending"):
        yield "rows are to be remapped: reset the GPU"
    if gpu.get("retired_pages", {}).get("pending"):
        yield "pages are to be retired: reset the GPU"
    volatile = gpu.get("ecc_uncorrected", {}).get("volatile") or gpu.get("sram", {}).get("volatile")
    if volatile:
        yield "%d uncorrected memory errors since the last reset" % volatile
    if gpu.get("sram", {}).get("threshold_exceeded"):
        yield "more SRAM errors than NVIDIA's threshold"


def check_xid(node):
    """Look for kernel lines of this boot about a fault that needs a reset. NVML's present answer outweighs old lines."""
    if not node.request.gpus:
        return SKIPPED, "Slurm's configuration has no GPU on this node"
    fallen = node.fallen()
    if fallen:
        return FAIL, "since the last boot: %s" % fallen
    if node.settings.kernel_log.startswith("file:"):
        return SKIPPED, "the kernel's lines are read from a file, which does not show of which boot they are"
    if node.log_error:
        return SKIPPED, node.log_error
    codes = sorted(set(kernel_log.xid(text) for text, _ in node.kernel_lines()) & prolog_gate.SUSPECT)
    if not codes:
        return OK, "no Xid that needs a reset since the last boot"
    named = "Xid %s since the last boot" % ", ".join(map(str, codes))
    return (FAIL, named) if _why_no_gpu_facts(node) else (OK, named + "; NVML's present state decides")


def check_clocks(node):
    """Look for clocks that hardware holds down: heat, or too little power."""
    nothing = _why_no_gpu_facts(node)
    return nothing or _judge_gpus(node, lambda gpu: gpu.get("clock_reasons", ()), "no clock is held down by hardware")


def check_gpu_memory(node):
    """Look for processes and memory that earlier jobs left on the GPUs. The check holds all of them."""
    nothing = _why_no_gpu_facts(node)
    return nothing or _judge_gpus(node, _find_left_memory, "no process and no memory of earlier jobs")


def _find_left_memory(gpu):
    left = gpu.get("processes", ())
    if left:
        yield "processes %s still run" % ", ".join(str(one["pid"]) for one in left)
    memory = gpu.get("memory", {})
    if memory.get("used_mib", 0) > max(IDLE_MIB, IDLE_SHARE * memory.get("total_mib", 0)):
        yield "%d MiB are in use" % memory["used_mib"]


def _judge_gpus(node, find, well):
    found = [_name(gpu, text) for gpu in node.gpu_facts()["gpu"] for text in find(gpu)]
    return (FAIL, "; ".join(found)) if found else (OK, well)


def _name(gpu, text):
    return "GPU %s (%s): %s" % (gpu.get("index"), gpu.get("bus_id"), text)


def _read_mig(pynvml, handle, _):
    return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])


def _read_memory(pynvml, handle, _):
    found = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"used_mib": found.used >> 20, "total_mib": found.total >> 20}


def check_dcgm(node):
    """Let NVIDIA's DCGM make its shortest diagnosis, and look at the health that it watches, where it is configured."""
    nothing = _why_no_gpu_facts(node)
    if nothing or not node.settings.dcgmi:
        return nothing or (SKIPPED, "site.dcgmi is not set")
    # With a failed test it ends with an exit code that differs between releases; the report decides.
    diagnosis = _read_program([node.settings.dcgmi, "diag", "-r", "1", "-j"], node.until(COMPUTE_S))
    if diagnosis.late:
        return FAIL, "dcgmi diag -r 1: no answer in time"
    failures, settings = dcgm_report.find_failures(diagnosis.data.decode("utf-8", "replace"))
    health = _read_program([node.settings.dcgmi, "health", "-g", "0", "-c"], node.until(FILES_S))
    text = health.data.decode("utf-8", "replace")
    state = dcgm_report.find_health(text)
    if state == "failure":
        failures += dcgm_report.find_health_faults(text) or ["dcgmi health: failure"]
    if failures:
        return FAIL, "; ".join(failures)
    done = "dcgmi diag -r 1 found no fault" + (", the health is: %s" % state if state else "")
    return OK, "; ".join([done] + settings)


def _read_program(argv, deadline):
    """Return the deadline_child.Result of a program with what it printed."""

    def work(send):
        os.dup2(send.descriptor, 1)
        os.dup2(send.descriptor, 2)
        # NVIDIA's libraries are found by the system's own rules; nothing of a user's is in this environment.
        os.execve(argv[0], argv, deadline_child.ENVIRONMENT)

    return deadline_child.call(work, deadline, OUTPUT)


def check_compute(node):
    """Multiply two matrices on each GPU where the system's Python has PyTorch."""
    nothing = _why_no_gpu_facts(node)
    if nothing:
        return nothing
    python = next((path for path in PYTHONS if os.access(path, os.X_OK)), "")
    passed, text = _run_program([python, "-I", "-c", COMPUTE], node.until(COMPUTE_S)) if python else (True, "none")
    if not passed:
        return FAIL, "a matrix product with PyTorch: %s" % text
    return (SKIPPED, "PyTorch is not installed for all users") if text == "none" else (OK, text)


def check_nccl(node):
    """Let all GPUs add up numbers by NCCL where NVIDIA's nccl-tests are installed."""
    nothing = _why_no_gpu_facts(node)
    program = next((path for path in NCCL_TESTS if os.access(path, os.X_OK)), "")
    if nothing or not program:
        return nothing or (SKIPPED, "nccl-tests are not installed (%s)" % ", ".join(NCCL_TESTS))
    argv = [program, "-b", "8", "-e", "8M", "-f", "8", "-g", str(len(node.gpu_facts()["gpu"]))]
    passed, text = _run_program(argv, node.until(COMPUTE_S))
    return (OK, program) if passed else (FAIL, "%s: %s" % (program, text))


def _run_program(argv, deadline):
    """Return (whether it ended with exit code 0, the last line of its output or why there is none)."""
    found = _read_program(argv, deadline)
    lines = [line.strip() for line in found.data.decode("utf-8", "replace").splitlines() if line.strip()]
    if found.late:
        return False, "no answer in time"
    return found.complete, lines[-1] if lines else "it ended without a message"


# Files, network, clock.
def check_mounts(node):
    """Ask each file system of nodes.check_mounts, in children: one that hangs does not keep the others from answering."""
    if not node.request.mounts:
        return SKIPPED, "nodes.check_mounts is empty"
    bad = [text for text in (_find_mount_fault(path, node) for path in node.request.mounts) if text]
    return (FAIL, "; ".join(bad)) if bad else (OK, "%s answer" % ", ".join(node.request.mounts))


def _find_mount_fault(path, node):
    def ask(send):
        try:
            os.statvfs(path)
            mounted = path == "/" or os.stat(path).st_dev != os.stat(os.path.join(path, "..")).st_dev
            send(b"" if mounted else b"nothing is mounted there")
        except OSError as error:
            send(str(error.strerror).encode("utf-8"))

    found = deadline_child.call(ask, node.until(FILES_S), SEND)
    if not found.complete:
        return "%s: no answer within %d s" % (path, FILES_S)
    return "%s: %s" % (path, found.data.decode("utf-8", "replace")) if found.data else ""


def check_disk(node):
    """Write, read and remove a file in each local directory for temporary files, and look for room and inodes."""
    bad = [text for text in (_find_disk_fault(path, node) for path in WRITTEN if os.path.isdir(path)) if text]
    return (FAIL, "; ".join(bad)) if bad else (OK, "%s can be written and have room" % ", ".join(WRITTEN))


def _find_disk_fault(path, node):
    def write(send):
        try:
            with tempfile.TemporaryFile(dir=path, prefix="slurmwrap-check-") as stream:
                data = os.urandom(4096) * 64
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
                stream.seek(0)
                if stream.read() != data:
                    send(b"what was written reads back differently")
            room = os.statvfs(path)
            if room.f_blocks and room.f_bavail < FREE_SHARE * room.f_blocks:
                send(b"less than 3 % is free")
            if room.f_files and room.f_favail < FREE_SHARE * room.f_files:
                send(b"less than 3 % of the inodes are free")
        except OSError as error:
            send(str(error.strerror).encode("utf-8"))

    found = deadline_child.call(write, node.until(FILES_S * 2), SEND)
    if not found.complete:
        return "%s: no answer within %d s" % (path, FILES_S * 2)
    return "%s: %s" % (path, found.data.decode("utf-8", "replace")) if found.data else ""


def check_infiniband(node, root=INFINIBAND):
    """Look for an InfiniBand adapter without an active port, and for error counters that rise at this moment.

    A second port without a cable is common, and so is an adapter that is used for Ethernet: neither is a fault.
    """
    ports = {}
    for path in sorted(glob.glob(os.path.join(root, "*", "ports", "*"))):
        if _read(os.path.join(path, "link_layer")) == "InfiniBand":
            ports.setdefault(path.split(os.sep)[-3], []).append(path)
    if not ports:
        return SKIPPED, "there is no InfiniBand port"
    before = _read_ib_errors(ports)
    time.sleep(min(1.0, max(0.0, node.deadline - time.monotonic())))
    rising = [name for name, value in _read_ib_errors(ports).items() if value > before.get(name, value)]
    idle = [name for name, paths in ports.items() if not any(_is_active(path) for path in paths)]
    bad = ["%s: no port is ACTIVE" % name for name in sorted(idle)] + ["%s rises" % name for name in sorted(rising)]
    well = "an ACTIVE port on %s, and no error counter rises" % ", ".join(sorted(ports))
    return (FAIL, "; ".join(bad)) if bad else (OK, well)


def _is_active(path):
    return _read(os.path.join(path, "state")).endswith("ACTIVE")


def _read_ib_errors(ports):
    found = {}
    for adapter, paths in ports.items():
        for path in paths:
            for name in IB_ERRORS:
                text = _read(os.path.join(path, "counters", name))
                if text.isdigit():
                    found["%s port %s %s" % (adapter, os.path.basename(path), name)] = int(text)
    return found


def _read(path):
    try:
        with open(path, "rb") as stream:
            return stream.read(4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""


class Timex(ctypes.Structure):
    """The beginning of `struct timex` of adjtimex(2), with room for the rest."""

    _fields_ = [(name, ctypes.c_long) for name in ("modes", "offset", "freq", "maxerror", "esterror")]
    _fields_ += [("status", ctypes.c_int), ("rest", ctypes.c_char * 256)]


def check_clock(node):
    """Look for a clock that is off: by chrony if it runs, else by what the kernel knows from its time daemon."""
    program = next((path for path in CHRONYC if os.access(path, os.X_OK)), "")
    if program:
        found = deadline_child.run([program, "-n", "-c", "tracking"], b"", node.until(FILES_S), SEND)
        fields = found.data.decode("ascii", "replace").strip().split(",")
        if found.complete and len(fields) > 4:
            return _judge_offset(float(fields[4]), "chrony")
    timex = Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        return SKIPPED, "adjtimex: %s" % os.strerror(ctypes.get_errno())
    if timex.status & 0x40:  # STA_UNSYNC
        return SKIPPED, "no time daemon reports to the kernel, and chrony does not answer"
    return _judge_offset(timex.maxerror / 1e6, "the kernel (largest error)")


def _judge_offset(seconds, who):
    state = OK if abs(seconds) <= LARGEST_OFFSET_S else FAIL
    return state, "the clock is off by %.6f s by %s" % (abs(seconds), who)


CHECKS = (
    ("gpus", check_gpus),
    ("gpu_state", check_gpu_state),
    ("xid", check_xid),
    ("clocks", check_clocks),
    ("gpu_memory", check_gpu_memory),
    ("dcgm", check_dcgm),
    ("compute", check_compute),
    ("nccl", check_nccl),
    ("mounts", check_mounts),
    ("disk", check_disk),
    ("infiniband", check_infiniband),
    ("clock", check_clock),
)
