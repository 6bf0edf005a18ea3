"""What `slurmwrap watch --gpus` runs on a node, in a step of the job: how busy its GPUs are, in JSON lines on stdout.

It is sent as text, since the installation need not be visible there: nothing of slurmwrap is imported, and NVML is called
through ctypes. A child asks the driver once a second; the parent never does: it passes the child's lines on, says when
the driver hangs, and ends both when its stdin ends, when nothing comes from there for PATIENCE_S (srun closes nothing
when it is killed), and at SIGTERM. It ends with 0 always: anything else would be the job's DerivedExitCode.
"""
import ctypes
import json
import os
import select
import signal
import time

PAUSE_S = 1.0  # between two looks; a line is their mean
PERIOD_S = 5.0  # between two lines about a GPU
PATIENCE_S = 90.0  # without a word from the watch
HANGS_S = 12.0  # without a word from the child: one answer of NVML takes milliseconds, its start some seconds
LINE = 900  # bytes; srun cuts what is longer than 1024 into pieces and may mix them with those of other nodes
MOST = 64  # GPUs of a node that are asked about
INSUFFICIENT_SIZE = 7  # NVML_ERROR_INSUFFICIENT_SIZE: how a question for a count alone is answered
WORDS = {9: "the NVIDIA driver is not loaded", 12: "there is no NVIDIA driver", 15: "a GPU is lost"}


class Nvml:
    """libnvidia-ml.so.1. OSError without it, RuntimeError when it does not start; what is not supported is None."""

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.code = 0
        if not self.call("nvmlInitWithFlags", ctypes.c_uint(0)):
            raise RuntimeError(WORDS.get(self.code, "NVML does not start (error %d)" % self.code))

    def call(self, name, *arguments):
        """Whether the function is there and succeeded; `code` is its answer."""
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
        """Share of the driver's last sample period (up to a second) in which anything ran on the GPU."""
        rates = (ctypes.c_uint * 2)()
        return rates[0] if self.call("nvmlDeviceGetUtilizationRates", handle, rates) else None

    def memory(self, handle):
        """(total, used) in MiB."""
        sizes = (ctypes.c_ulonglong * 3)()  # total, free, used
        known = self.call("nvmlDeviceGetMemoryInfo", handle, sizes)
        return (sizes[0] >> 20, sizes[2] >> 20) if known else (None, None)

    def programs(self, handle):
        """How many compute on it: asked with room for none, so that no version of NVML's record matters."""
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            count = ctypes.c_uint(0)
            self.call(name, handle, ctypes.byref(count), None)
            if self.code in (0, INSUFFICIENT_SIZE):
                return count.value
        return None


def chosen(nvml, wanted):
    """[(index, uuid, handle)] of the job's GPUs. Where devices are confined NVML shows no others: then all it shows.

    `wanted`: device minors as Slurm names them ("0,3"), which need not be NVML's order.
    """
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    shown = []
    for index, handle in nvml.handles():
        minor = nvml.number("nvmlDeviceGetMinorNumber", handle)
        shown.append((index if minor is None else minor, nvml.uuid(handle), handle))
    ours = [one for one in shown if str(one[0]) in names]
    return ours if ours and len(shown) > len(names) else shown


def ask(say, wanted, pause=PAUSE_S, period=PERIOD_S):
    """The child: asks until no one listens. `say(plain)` sends one JSON object."""
    say({"asking": "its start"})
    try:
        nvml = Nvml()
    except OSError:
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
    known = [one for one in percents if one is not None]
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
    """Passes on what the child says, under this node's name, and watches over it."""

    def __init__(self, node, child, reader):
        self.node = node
        self.child = child
        self.reader = reader
        self.doing = "its start"
        self.rest = b""
        self.heard_child = self.heard_watch = self.complained = time.monotonic()

    def run(self):
        """Until the watch is gone. The child's end alone is not the end: the watch may still want to know."""
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
        """A child that is stuck in the driver cannot be ended, and is not waited for."""
        now = time.monotonic()
        if self.reader is not None and now - max(self.heard_child, self.complained) >= HANGS_S:
            self.complained = now
            self.send({"error": "the NVIDIA driver does not answer (%s)" % self.doing})

    def send(self, plain):
        """A line of one write, so that it comes whole. Dropped when no one reads: a full pipe must not hold us."""
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
        # Meant for the job: --signal, or scancel of a signal.
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
    """Where the job is at its memory limit this is what the kernel ends, and not the job's own program."""
    try:
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("1000")
    except OSError:
        pass


if __name__ == "__main__":
    main()
