"""Print how busy the job's GPUs on one node are, as JSON lines; `slurmwrap watch --gpus` runs it in a step of the job.

The program is sent to the node as text, since the installation may not be visible there. So it imports nothing of
slurmwrap, and calls NVML through ctypes, or reads the files of AMD's driver. A child queries the driver once a second. The parent never does: it forwards
the child's lines and reports when the driver hangs. It ends both processes when its stdin is closed, when nothing was
received on stdin for PATIENCE_S (a killed srun does not close it), and at SIGTERM. The exit code is always 0, because
any other would become the job's DerivedExitCode.
"""
import ctypes
import json
import os
import re
import select
import signal
import time

PAUSE_S = 1.0  # seconds between two samples
PERIOD_S = 5.0  # seconds between two lines about a GPU; a line has the mean of the samples
PATIENCE_S = 90.0  # seconds without input from `slurmwrap watch` after which the program ends
# Seconds without output of the child after which the driver counts as hung. A call to NVML takes milliseconds, its
# start some seconds.
HANGS_S = 12.0
LINE = 900  # bytes; srun splits lines of more than 1024 bytes and may mix the parts with lines of other nodes
SYSFS = "/sys/class"
AMD = "0x1002"  # the vendor's number on PCI
MOST = 64  # most GPUs of a node that are queried
INSUFFICIENT_SIZE = 7  # NVML_ERROR_INSUFFICIENT_SIZE, NVML's answer to a query for the number of processes alone
WORDS = {9: "the NVIDIA driver is not loaded", 12: "there is no NVIDIA driver", 15: "a GPU is lost"}


class Nvml:
    """Calls to libnvidia-ml.so.1; a value that is not supported is None.

    The constructor raises OSError when the library is missing and RuntimeError when it does not start.
    """

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.code = 0
        if not self.call("nvmlInitWithFlags", ctypes.c_uint(0)):
            raise RuntimeError(WORDS.get(self.code, "NVML does not start (error %d)" % self.code))

    def call(self, name, *arguments):
        """Call a function; return whether it exists and succeeded. `code` is then its return value."""
        function = getattr(self.library, name, None)
        self.code = 13 if function is None else function(*arguments)
        return self.code == 0

    def number(self, name, *arguments):
        found = ctypes.c_uint(0)
        return found.value if self.call(name, *(arguments + (ctypes.byref(found),))) else None

    def handles(self):
        found = []
        for index in range(min(MOST, self.number("nvmlDeviceGetCount_v2") or 0)):
            handle = ctypes.c_void_p()
            if self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)):
                found.append((index, handle))
        return found

    def uuid(self, handle):
        text = ctypes.create_string_buffer(96)
        known = self.call("nvmlDeviceGetUUID", handle, text, ctypes.c_uint(len(text)))
        return text.value.decode("ascii", "replace") if known else ""

    def percent(self, handle):
        """Return the percentage of the driver's last sample period (up to a second) in which the GPU was in use."""
        rates = (ctypes.c_uint * 2)()
        return rates[0] if self.call("nvmlDeviceGetUtilizationRates", handle, rates) else None

    def memory(self, handle):
        """Return (total, used) memory in MiB."""
        sizes = (ctypes.c_ulonglong * 3)()  # total, free, used
        known = self.call("nvmlDeviceGetMemoryInfo", handle, sizes)
        return (sizes[0] >> 20, sizes[2] >> 20) if known else (None, None)

    def programs(self, handle):
        """Return the number of processes that compute on the GPU.

        The array passed has no space for a record, so that the version of NVML's record does not matter.
        """
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            count = ctypes.c_uint(0)
            self.call(name, handle, ctypes.byref(count), None)
            if self.code in (0, INSUFFICIENT_SIZE):
                return count.value
        return None


class AmdFiles:
    """The same questions as to NVML, answered by the files of AMD's driver. A handle is (index, path of the device)."""

    def __init__(self, sysfs):
        self.sysfs = sysfs

    def handles(self):
        return [(index, (index, device)) for index, _, device in find_amd_gpus(self.sysfs)][:MOST]

    def number(self, name, handle):
        """Return the index that Slurm has for "nvmlDeviceGetMinorNumber", else the power in mW."""
        if name == "nvmlDeviceGetMinorNumber":
            return handle[0]
        found = []
        for sensor in list_directory(os.path.join(handle[1], "hwmon")):
            for file in ("power1_average", "power1_input"):
                found.append(read_number(os.path.join(handle[1], "hwmon", sensor, file)))
        found = [microwatts for microwatts in found if microwatts is not None]
        return found[0] // 1000 if found else None

    def uuid(self, handle):
        return read_text(os.path.join(handle[1], "unique_id"))

    def percent(self, handle):
        return read_number(os.path.join(handle[1], "gpu_busy_percent"))

    def memory(self, handle):
        sizes = [read_number(os.path.join(handle[1], "mem_info_vram_" + name)) for name in ("total", "used")]
        return tuple(None if size is None else size >> 20 for size in sizes)

    def programs(self, handle):
        return len(list_amd_processes(self.sysfs, handle[1]))


def find_amd_gpus(sysfs):
    """Return [(index, PCI address, path of the device)] of AMD's GPUs, in the order of their render nodes.

    Slurm numbers GPUs in the order of the files in gres.conf (gres_common.c); AutoDetect=rsmi takes the render nodes.
    """
    root, found = os.path.join(sysfs, "drm"), []
    for name in list_directory(root):
        device = os.path.join(root, name, "device")
        if re.match(r"^card\d+\Z", name) and read_text(os.path.join(device, "vendor")) == AMD:
            render = _render_node(device)
            if render is not None and os.path.exists(os.path.join(device, "mem_info_vram_total")):
                found.append((render, os.path.basename(os.path.realpath(device)), device))
    return [(index, address, device) for index, (_, address, device) in enumerate(sorted(found))]


def list_amd_processes(sysfs, device):
    """Return [{"pid", "mib", "uid"}] of the processes with memory of this GPU, by the files of the driver's kfd."""
    kfd, found = os.path.join(sysfs, "kfd", "kfd"), []
    number = _kfd_number(kfd, device)
    for pid in list_directory(os.path.join(kfd, "proc")) if number else ():
        used = read_number(os.path.join(kfd, "proc", pid, "vram_" + number))
        if pid.isdigit() and used:
            one = {"pid": int(pid), "mib": used >> 20}
            try:
                one["uid"] = os.stat("/proc/" + pid).st_uid
            except OSError:
                pass  # The process has ended.
            found.append(one)
    return found


def _render_node(device):
    found = [int(one[7:]) for one in list_directory(os.path.join(device, "drm")) if re.match(r"^renderD\d+\Z", one)]
    return found[0] if found else None


def _kfd_number(kfd, device):
    """Return the number by which kfd knows a GPU; "" when it does not know it."""
    wanted = r"^drm_render_minor %s$" % _render_node(device)
    for node in list_directory(os.path.join(kfd, "topology", "nodes")):
        path = os.path.join(kfd, "topology", "nodes", node)
        if re.search(wanted, read_text(os.path.join(path, "properties")), re.MULTILINE):
            return read_text(os.path.join(path, "gpu_id"))
    return ""


def list_directory(path):
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def read_text(path):
    try:
        with open(path, "rb") as stream:
            return stream.read(65536).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_number(path):
    text = read_text(path)
    return int(text) if text.isdigit() else None


def chosen(nvml, wanted):
    """Return [(index, uuid, handle)] of the job's GPUs.

    `wanted`: device minors as Slurm names them ("0,3"); NVML may number the GPUs in a different order. When cgroups
    confine the devices, NVML shows no other GPUs. So all that it shows are returned, unless it shows more than the job
    has.
    """
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    shown = []
    for index, handle in nvml.handles():
        minor = nvml.number("nvmlDeviceGetMinorNumber", handle)
        shown.append((index if minor is None else minor, nvml.uuid(handle), handle))
    of_job = [gpu for gpu in shown if str(gpu[0]) in names]
    return of_job if of_job and len(shown) > len(names) else shown


def ask(say, wanted, pause=PAUSE_S, period=PERIOD_S):
    """Query the GPUs until the parent has ended; runs in the child. `say(plain)` sends one JSON object."""
    say({"asking": "its start"})
    try:
        nvml = Nvml()
    except OSError:
        nvml = AmdFiles(SYSFS)
        if not nvml.handles():
            say({"error": "there is no NVIDIA driver"})
            return
    except RuntimeError as error:
        say({"error": str(error)})
        return
    gpus = chosen(nvml, wanted)
    if not gpus:
        say({"error": "the driver shows no GPU"})
    due, seen = 0.0, dict((index, []) for index, _, _ in gpus)
    while gpus:
        for index, _, handle in gpus:
            say({"asking": "GPU %d" % index})
            seen[index].append(nvml.percent(handle))
        if time.monotonic() >= due:
            due = time.monotonic() + period
            for index, uuid, handle in gpus:
                say(told(nvml, index, uuid, handle, seen[index]))
                seen[index] = []
        time.sleep(pause)


def told(nvml, index, uuid, handle, percents):
    """Return the JSON object for one GPU; `percents`: its samples since the previous line."""
    known = [percent for percent in percents if percent is not None]
    total, used = nvml.memory(handle)
    power = nvml.number("nvmlDeviceGetPowerUsage", handle)
    return {
        "index": index,
        "uuid": uuid,
        "percent": round(float(sum(known)) / len(known), 1) if known else None,
        "used_mib": used,
        "total_mib": total,
        "power_w": None if power is None else round(power / 1000.0),
        "programs": nvml.programs(handle),
    }


class Parent:
    """The parent process: forwards the child's lines with the node's name added and reports when the child is stuck."""

    def __init__(self, node, child, reader):
        self.node = node
        self.child = child
        self.reader = reader
        self.doing = "its start"
        self.rest = b""
        self.heard_child = self.heard_watch = self.complained = time.monotonic()

    def run(self):
        """Run until `slurmwrap watch` ends.

        When only the child ends, keep running: its last lines may still be read.
        """
        while time.monotonic() - self.heard_watch < PATIENCE_S:
            listened = [0] if self.reader is None else [0, self.reader]
            ready = select.select(listened, [], [], 1.0)[0]
            if 0 in ready:
                if not os.read(0, 4096):
                    return
                self.heard_watch = time.monotonic()
            if self.reader in ready:
                self.listen()
            self.complain()

    def listen(self):
        data = os.read(self.reader, 65536)
        self.heard_child = time.monotonic()
        if not data:
            self.reader = None
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            plain = json.loads(line.decode("ascii"))
            if "asking" in plain:
                self.doing = plain["asking"]
            else:
                self.send(plain)

    def complain(self):
        """Report a child that has sent nothing for HANGS_S. It cannot be killed while it is stuck in the driver."""
        now = time.monotonic()
        if self.reader is not None and now - max(self.heard_child, self.complained) >= HANGS_S:
            self.complained = now
            self.send({"error": "the NVIDIA driver does not answer (%s)" % self.doing})

    def send(self, plain):
        """Write a line in one call, so that it arrives in one piece. Drop it when the pipe is full: do not block."""
        plain["node"] = self.node
        line = json.dumps(plain).encode("ascii")
        try:
            if len(line) < LINE:
                os.write(1, line + b"\n")
        except BlockingIOError:
            pass


def at_its_end(child):
    try:
        os.kill(child, signal.SIGKILL)
    except OSError:
        pass
    os._exit(0)


def main():
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        # These signals are meant for the job's own programs (--signal, scancel --signal).
        signal.signal(number, signal.SIG_IGN)
    os.nice(19)
    victim()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            parent = os.getppid()

            def say(plain):
                os.write(writer, json.dumps(plain).encode("ascii") + b"\n")
                if os.getppid() != parent:
                    os._exit(0)

            ask(say, os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or "")
        finally:
            os._exit(0)
    signal.signal(signal.SIGTERM, lambda number, frame: at_its_end(child))
    try:
        os.close(writer)
        os.set_blocking(1, False)
        Parent(os.environ.get("SLURMD_NODENAME", ""), child, reader).run()
    finally:
        at_its_end(child)


def victim():
    """Make the kernel kill this process, and not the job's own program, when the job exceeds its memory limit."""
    try:
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("1000")
    except OSError:
        pass


if __name__ == "__main__":
    main()
