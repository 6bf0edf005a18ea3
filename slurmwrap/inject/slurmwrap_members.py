"""Run the members of a packed array task side by side on the task's one GPU: the program of a `gsub --pack` job.

Call: slurmwrap_members.py DIRECTORY [ARGUMENT ...]. DIRECTORY holds spec.json and the user's script, unchanged
(gsub/pack_submission.py). Each member is one index of the user's array. It has its own SLURM_ARRAY_* variables, its
own output and error file, its own share of the task's CPUs, and its own exit code in members/INDEX.json.

A member that completed is never started again: after a requeue only the others run. A member that ends because the
GPU's memory was full runs once more, alone, after the others. The exit code is that of the worst member.

It is also the program of an array that gsub has split, since its indices are beyond MaxArraySize. Then a task has one
member, unless --pack was given too. SLURMWRAP_ARRAY_PART, "1:77", is the part and the job id of the first one.

Python 3.6 syntax, standard library.
"""

import json
import os
import pwd
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

if __package__:
    from . import slurmwrap_member_watch as member_watch
else:
    # `python -I` does not search the program's own directory.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import slurmwrap_member_watch as member_watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

# Seconds between two looks for requests to cancel a member, and at their memory and speed.
_POLL_S = 2.0
# A signal that Slurm sends to all processes of the job reaches the witness within this time, in seconds.
_WITNESS_S = 1.0
# Seconds between SIGTERM and SIGKILL for a member that its user cancels; KillWait of a default Slurm.
_KILL_WAIT_S = 30.0
# Bytes at the end of a failed member's output that are searched and shown, and lines that are shown.
_TAIL_BYTES, _TAIL_LINES = 16384, 30
_PR_SET_PDEATHSIG = 1
# Messages of CUDA, ROCm and the frameworks for a full GPU memory.
_GPU_OOM = re.compile(
    br"CUDA out of memory|HIP out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory"
    br"|cudaErrorMemoryAllocation|RESOURCE_EXHAUSTED: (?:Out of memory|OOM)|CUBLAS_STATUS_ALLOC_FAILED"
)
_PATTERN = re.compile(r"%(\d{0,2})([AabjJNnstux%])")
_HANDLED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2} | set(
    range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
)


class Member:
    """One member: its index, its files, and how its newest run ended."""

    def __init__(self, index: int, output: str, error: "Optional[str]") -> None:
        self.index = index
        self.output, self.error = output, error
        self.cpus = []  # type: List[int]
        self.process = None  # type: Optional[subprocess.Popen[bytes]]
        self.runs = 0
        self.record = {}  # type: Dict[str, Any]
        self.alone = False  # it runs again, without the others
        self.cancelled_at = None  # type: Optional[float]
        self.paused_at = None  # type: Optional[float]  # it waits for others (SIGSTOP)
        self.reason = ""  # why this program ended it

    @property
    def running(self) -> bool:
        """Return whether its script runs."""
        return self.process is not None


def expand_pattern(pattern: str, values: "Dict[str, str]") -> str:
    """Return the file name that sbatch makes of `pattern`: %A, %a, %j, %x ..., with a width as in %4a.

    A name with the task's job id and without the index would be that of several members: "_INDEX" is added to the id.
    """
    if "\\" in pattern:  # sbatch(1): no replacement then
        return pattern.replace("\\", "")
    letters = {found.group(2) for found in _PATTERN.finditer(pattern)}
    shared = bool(letters & {"j", "J"}) and "a" not in letters

    def put(found: "Any") -> str:
        width, letter = int(found.group(1) or 0), found.group(2)
        if letter == "%":
            return "%"
        text = values.get(letter, found.group(0))
        text = text.zfill(min(width, 10)) if letter in "Aabjnst" and text.isdigit() else text
        return text + "_" + values["a"] if shared and letter in "jJ" else text

    return _PATTERN.sub(put, pattern)


def list_cores(mask: "Set[int]") -> "List[List[int]]":
    """Return the CPUs of `mask` as cores: the hardware threads of a core stay together. Source: sysfs."""
    cores = {}  # type: Dict[str, List[int]]
    for cpu in sorted(mask):
        path = "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % cpu
        try:
            with open(path) as file:
                name = file.read().strip()
        except OSError:
            name = str(cpu)
        cores.setdefault(name, []).append(cpu)
    return sorted(cores.values())


def share_cpus(cores: "List[List[int]]", members: int) -> "List[List[int]]":
    """Return the CPUs of each member: neighbouring cores, evenly; [] for all if there are fewer cores than members."""
    if len(cores) < members:
        return [[] for _ in range(members)]
    bounds = [len(cores) * number // members for number in range(members + 1)]
    return [[cpu for core in cores[a:b] for cpu in core] for a, b in zip(bounds, bounds[1:])]


def find_own_cpus(environ: "Dict[str, str]") -> "Set[int]":
    """Return the CPUs of this task; an empty set if Slurm does not bind the task to its CPUs.

    Then the mask holds CPUs of other jobs, and two tasks would choose the same ones.
    """
    mask = os.sched_getaffinity(0)
    allocated = environ.get("SLURM_CPUS_ON_NODE", "")
    return mask if allocated.isdigit() and len(mask) <= int(allocated) else set()


def write_json(path: str, plain: "Any") -> None:
    """Write `plain` to `path` in one step. An error is printed: a full disk must not end the members."""
    aside = "%s.%d" % (path, os.getpid())
    try:
        with open(aside, "w") as file:
            json.dump(plain, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        say("%s cannot be written: %s" % (path, error.strerror))


def read_json(path: str) -> "Dict[str, Any]":
    """Return the content of a JSON file; {} if there is none or it is damaged."""
    try:
        with open(path) as file:
            plain = json.load(file)
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) else {}


def say(text: str) -> None:
    """Print one line to the output of the task. A full disk must not end the members."""
    try:
        print("slurmwrap: " + text, flush=True)
    except OSError:
        pass


def read_tail(path: str) -> bytes:
    """Return the last bytes of a file; b"" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


class SignalWitness:
    """A process that reports the signals which it gets.

    scancel signals all processes of a job, `scancel --batch` and `--signal=B:` only the batch script. The witness shows
    which it was: it is started as the user's programs are. These must not get a signal twice.
    """

    def __init__(self) -> None:
        reading, writing = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
            os.setsid()
            end_with_parent(parent)
            while True:
                number = signal.sigtimedwait(_HANDLED, 60.0)
                if number is not None:
                    os.write(writing, bytes([number.si_signo]))
        os.close(writing)
        self.reading = reading

    def has_seen(self, number: int) -> bool:
        """Return whether the witness got this signal too, within a second."""
        until = time.monotonic() + _WITNESS_S
        while True:
            ready, _, _ = select.select([self.reading], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return False
            seen = os.read(self.reading, 64)
            if not seen or number in seen:
                return bool(seen)

    def stop(self) -> None:
        """End the process."""
        os.kill(self.pid, signal.SIGKILL)


class PackedTask:
    """The members of one array task, from their start to their end."""

    def __init__(self, directory: str, args: "List[str]", environ: "Dict[str, str]") -> None:
        self.directory, self.args, self.environ = directory, args, environ
        self.spec = read_json(os.path.join(directory, "spec.json"))
        if not self.spec:
            raise SystemExit("slurmwrap: %s/spec.json cannot be read on this node" % directory)
        number, _, first_job = environ.pop("SLURMWRAP_ARRAY_PART", "").partition(":")
        # Of the tasks of this array: Slurm's index -> the index of the first member. Empty: they are the same.
        self.part = self.spec["parts"][int(number)] if number else {}
        # The id of the array, as the user sees it.
        self.array_job = first_job or environ.get("SLURM_ARRAY_JOB_ID", "")
        self.task = "%s_%s" % (environ.get("SLURM_ARRAY_JOB_ID", ""), environ["SLURM_ARRAY_TASK_ID"])
        self.results = os.path.join(directory, "members")
        self.script = os.path.join(directory, "slurm_script")
        self.restart = int(environ.get("SLURM_RESTART_COUNT") or 0)
        self.members = [self._make_member(index) for index in self._list_indices()]
        # Signals that the members got in this run. A member that ends with 0 after one may have saved its state and stopped.
        self.signalled = set()  # type: Set[int]
        self.stopping = False
        self.witness = None  # type: Optional[SignalWitness]
        self.mps = ""
        self.memory = member_watch.MemoryWatch(float(self.spec.get("memory_near") or 0), len(self.members))
        self.speeds = self._make_speed_watch()
        self.looked_at = 0.0
        self.poll_s = min(_POLL_S, self.speeds.window / 2) if self.speeds is not None else _POLL_S

    def _list_indices(self) -> "List[int]":
        """Return the members of this task; [] if those of an earlier task include its index.

        An array that was folded while it waited has more tasks than it needs (gsub/fold_array.py).
        """
        indices, members = self.spec["indices"], self.spec["members"]
        task = self.environ["SLURM_ARRAY_TASK_ID"]
        first = indices.index(self.part[task] if self.part else int(task))
        return [] if first % members else list(indices[first : first + members])

    def _is_only_split(self) -> bool:
        """Return whether this is a task of a split array without --pack, to be run as sbatch would run it."""
        return bool(self.part) and self.spec["members"] == 1

    def _make_member(self, index: int) -> Member:
        array_job = self.array_job
        values = {
            "A": array_job,
            "a": str(index),
            "b": str(index % 10),
            "j": self.environ.get("SLURM_JOB_ID", array_job),
            "J": self.environ.get("SLURM_JOB_ID", array_job),
            "N": self.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0],
            "n": "0",
            "s": "batch",
            "t": "0",
            "u": _find_user_name(),
            "x": self.spec["job_name"],
        }
        error = self.spec.get("error")
        return Member(
            index, expand_pattern(self.spec["output"], values), expand_pattern(error, values) if error else None
        )

    def run(self) -> int:
        """Run the members that have not completed, and return the exit code of the worst one."""
        if not self.members:
            say("member %s runs in an earlier task of the array" % self.environ["SLURM_ARRAY_TASK_ID"])
            return 0
        os.makedirs(self.results, 0o700, exist_ok=True)
        waiting = [member for member in self.members if not self._has_ended_before(member)]
        shares = share_cpus(list_cores(find_own_cpus(self.environ)), len(self.members))
        if not self._is_only_split():
            for member, share in zip(self.members, shares):
                member.cpus = share
        self.witness = SignalWitness()
        # Blocked signals are read in _wait. What started in between is not lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED | {signal.SIGCHLD})
        self._start_mps()
        try:
            for member in waiting:
                self._start(member)
            self._wait()
            self.speeds = None
            for member in waiting:
                if member.record.get("gpu_oom") and not self.stopping:
                    say("member %d: the GPU's memory was full; it runs again, alone" % member.index)
                    member.alone, member.cpus = True, sorted(find_own_cpus(self.environ))
                    self._start(member)
                    self._wait()
        finally:
            self._stop_mps()
            self.witness.stop()
        codes = [_compute_exit_code(member.record) for member in self.members]
        say("%d of %d members completed" % (sum(not code for code in codes), len(codes)))
        if self._is_only_split() and not max(codes):
            _remove_own_output()
        return max(codes)

    def _has_ended_before(self, member: Member) -> bool:
        member.record = read_json(self._result_path(member))
        member.runs = int(member.record.get("runs", 0))
        member.alone = bool(member.record.get("alone"))
        # As without a split: a task that its user requeues runs again, also if it had completed.
        if member.record.get("state") not in (("cancelled",) if self._is_only_split() else ("completed", "cancelled")):
            if not self._is_cancel_requested(member):
                return False
            member.record = self._make_record(member, "cancelled")
            write_json(self._result_path(member), member.record)
            say("member %d is cancelled by its user; it is not run" % member.index)
            return True
        say("member %d has %s in an earlier run; it is not run again" % (member.index, member.record["state"]))
        return True

    def _result_path(self, member: Member) -> str:
        return os.path.join(self.results, "%d.json" % member.index)

    def _make_record(self, member: Member, state: str) -> "Dict[str, Any]":
        return {
            "index": member.index,
            "state": state,
            "task": self.task,
            "job_id": self.environ.get("SLURM_JOB_ID", ""),
            "node": self.environ.get("SLURMD_NODENAME", ""),
            "restart": self.restart,
            "runs": member.runs,
            "alone": member.alone,
            "begin": time.time(),
            "cpus": member.cpus,
            "output": os.path.abspath(member.output),
            "error": os.path.abspath(member.error) if member.error else "",
        }

    def _is_cancel_requested(self, member: Member) -> bool:
        return os.path.exists(os.path.join(self.directory, "cancel", str(member.index)))

    def _start(self, member: Member) -> None:
        member.runs += 1
        member.record = self._make_record(member, "running")
        try:
            if self.spec.get("counter"):
                os.makedirs(self._step_dir(member), 0o700, exist_ok=True)
            member.process = self._open_process(member)
        except (OSError, subprocess.SubprocessError) as error:
            say("member %d cannot be started: %s" % (member.index, error))
            member.record.update(state="failed", end=time.time(), exit_code=1, signal=0)
            write_json(self._result_path(member), member.record)
            return
        write_json(self._result_path(member), member.record)
        cpus = " on CPUs %s" % ",".join(map(str, member.cpus)) if member.cpus else ""
        say("member %d runs%s; its output: %s" % (member.index, cpus, member.output))

    def _open_process(self, member: Member) -> "subprocess.Popen[bytes]":
        # A second run adds to the files, so that the reason of the first end is not lost.
        append = self.spec["append"] or member.runs > 1
        mode = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
        opened = [os.open(path, mode, 0o666) for path in (member.output, member.error) if path]
        cpus = member.cpus
        parent = os.getpid()

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            end_with_parent(parent)
            if cpus:
                os.sched_setaffinity(0, cpus)

        try:
            return subprocess.Popen(
                [*_read_interpreter(self.script), self.script, *self.args],
                stdin=subprocess.DEVNULL,
                stdout=opened[0],
                stderr=opened[-1],
                env=self._make_environment(member),
                preexec_fn=prepare,
                start_new_session=True,
            )
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _make_environment(self, member: Member) -> "Dict[str, str]":
        own = dict(self.environ, **self.spec["environment"])
        own["SLURM_ARRAY_TASK_ID"] = str(member.index)
        own["SLURM_ARRAY_JOB_ID"] = self.array_job
        if not self._is_only_split():
            # Steps of the members run at the same time, each in the whole allocation: srun --overlap.
            own["SLURM_OVERLAP"] = "1"
        if member.cpus:
            for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
                if name in own:
                    own[name] = str(len(member.cpus))
        counter = self.spec.get("counter")
        if counter:
            path = own.get("PYTHONPATH")
            own["PYTHONPATH"] = counter + ":" + path if path else counter
            own["SLURMWRAP_STEP_DIR"], own["SLURMWRAP_STEP_NAMED"] = self._step_dir(member), "1"
        if self.mps:
            own["CUDA_MPS_PIPE_DIRECTORY"] = own["CUDA_MPS_LOG_DIRECTORY"] = self.mps
        return own

    def _wait(self) -> None:
        """Wait until no member runs: pass signals on, record ends, and cancel members on request."""
        while any(member.running for member in self.members):
            number = signal.sigtimedwait(_HANDLED | {signal.SIGCHLD}, self.poll_s)
            if number is not None and number.si_signo != signal.SIGCHLD:
                self._pass_on(number.si_signo)
            self._record_ends()
            self._cancel_on_request()
            self._watch_members()

    def _pass_on(self, number: int) -> None:
        """Send a signal to the members, unless Slurm has sent it to all processes of the job."""
        self.signalled.add(number)
        self.stopping = self.stopping or number in (signal.SIGTERM, signal.SIGINT)
        # A member that waits must be able to save its state.
        self._run_together()
        if self.witness is not None and self.witness.has_seen(number):
            return
        for member in self.members:
            if member.process is not None:
                member.process.send_signal(number)

    def _record_ends(self) -> None:
        for member in self.members:
            code = None if member.process is None else member.process.poll()
            if code is not None:
                self._record_end(member, code)

    def _record_end(self, member: Member, code: int) -> None:
        member.process = None
        if member.cancelled_at is not None:
            state = "cancelled"
        elif code == 0:
            state = "stopped" if self.signalled else "completed"
        else:
            state = "stopped" if self.stopping else "failed"
        record = member.record
        record.update(state=state, end=time.time(), exit_code=max(code, 0), signal=max(-code, 0), reason=member.reason)
        tail = read_tail(member.error or member.output) if state == "failed" else b""
        # Once only: a member that also fails alone needs a larger GPU.
        alone = member.alone or self._is_only_split()
        record["gpu_oom"] = not alone and not member.reason and bool(_GPU_OOM.search(tail))
        write_json(self._result_path(member), record)
        how = "by signal %d" % -code if code < 0 else "with exit code %d" % code
        say("member %d ended %s after %.0f s" % (member.index, how, record["end"] - record["begin"]))
        for line in tail.decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]:
            print("[%d] %s" % (member.index, line), flush=True)

    def _cancel_on_request(self) -> None:
        for member in self.members:
            if member.process is None:
                continue
            if member.cancelled_at is None:
                if self._is_cancel_requested(member):
                    member.cancelled_at = time.time()
                    _kill_session(member.process.pid, signal.SIGTERM)
                    self._continue(member)
            elif time.time() - member.cancelled_at > _KILL_WAIT_S:
                _kill_session(member.process.pid, signal.SIGKILL)

    # --- watching the members ------------------------------------------------------------------------------------

    def _make_speed_watch(self) -> "Optional[member_watch.SpeedWatch]":
        alone, gain = float(self.spec.get("alone") or 0), float(self.spec.get("separate_gain") or 0)
        if not self.spec.get("counter") or alone <= 0 or gain <= 0 or len(self.members) < 2:
            return None
        return member_watch.SpeedWatch(alone, gain, float(self.spec["separate_s"]))

    def _watch_members(self) -> None:
        now = time.monotonic()
        if now - self.looked_at < self.poll_s / 2:
            return
        self.looked_at = now
        running = {member.index: member.process.pid for member in self.members if member.process is not None}
        found = self.memory.find_member_to_end(now, running)
        if found is not None:
            self._end_for_memory(found[0], found[1])
        if self.speeds is not None and not self.stopping:
            self._watch_speeds(now, self.speeds)

    def _end_for_memory(self, index: int, used: int) -> None:
        """End the member that takes most beyond its share, before the kernel kills a process of any of them."""
        member = next(one for one in self.members if one.index == index)
        assert member.process is not None
        member.reason = "memory: it used %d MiB, and the members share %d MiB" % (used >> 20, self.memory.limit >> 20)
        say("member %d is ended, before the kernel ends any: %s" % (index, member.reason))
        _kill_session(member.process.pid, signal.SIGKILL)
        try:
            with open(member.error or member.output, "a") as file:
                file.write("slurmwrap: out of memory: this member was ended. %s\n" % member.reason.capitalize())
        except OSError:
            pass

    def _watch_speeds(self, now: float, speeds: "member_watch.SpeedWatch") -> None:
        """Let members that are no faster together run one after the other, or together again if that was wrong."""
        active = {one.index: self._read_steps(one) for one in self.members if one.running and one.paused_at is None}
        if speeds.look(now, active):
            if not speeds.apart:
                say("one member alone is not faster: the members run together again")
                self._run_together()
            elif self._has_srun():
                say("the members are not faster together, but one of them has a step of srun, and is not stopped")
                speeds.apart, speeds.stays = False, True
            else:
                times = speeds.together / speeds.alone
                say("the members together are %.2f times as fast as one alone: one after the other runs now" % times)
        if speeds.apart:
            self._run_one_member()

    def _run_one_member(self) -> None:
        """Pause all members but one, the one with the most steps; its memory stays. When it ends, the next goes on."""
        running = [member for member in self.members if member.running and member.cancelled_at is None]
        if not running:
            return
        active = [member for member in running if member.paused_at is None] or running
        chosen = max(active, key=self._read_steps)
        self._continue(chosen)
        for member in running:
            if member is not chosen:
                # Again each time: `scontrol resume` continues all processes of a job.
                self._signal_member(member, signal.SIGSTOP)
                if member.paused_at is None:
                    member.paused_at = time.time()
                    self._note_pause(member, True)
                    say("member %d waits for the others" % member.index)

    def _run_together(self) -> None:
        """Continue all members; they are not separated again."""
        if self.speeds is not None:
            self.speeds.apart, self.speeds.stays = False, True
        for member in self.members:
            self._continue(member)

    def _continue(self, member: Member) -> None:
        if member.paused_at is None:
            return
        member.record["paused_s"] = member.record.get("paused_s", 0.0) + time.time() - member.paused_at
        member.paused_at = None
        self._signal_member(member, signal.SIGCONT)
        self._note_pause(member, False)
        say("member %d goes on" % member.index)

    def _note_pause(self, member: Member, paused: bool) -> None:
        member.record["paused"] = paused
        write_json(self._result_path(member), member.record)

    def _signal_member(self, member: Member, number: int) -> None:
        """Send a signal to all processes of a member, also to those with a process group of their own."""
        if member.process is None:
            return
        session = member.process.pid
        seen = set()  # type: Set[int]
        # A process may start another one before it gets the signal.
        for _ in range(3):
            new = {pid for pid, _ in member_watch.list_sessions().get(session, ())} - seen
            for pid in new:
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
            seen |= new
            if not new:
                return

    def _has_srun(self) -> bool:
        sessions = member_watch.list_sessions()
        pids = [member.process.pid for member in self.members if member.process is not None]
        return any(program == "srun" for pid in pids for _, program in sessions.get(pid, ()))

    def _step_dir(self, member: Member) -> str:
        return os.path.join(self.directory, "steps", str(member.index))

    def _read_steps(self, member: Member) -> int:
        return member_watch.read_steps(self._step_dir(member), self.environ.get("SLURM_JOB_ID", "0"), self.restart)

    # --- MPS ------------------------------------------------------------------------------------------------------

    def _start_mps(self) -> None:
        """Start NVIDIA's MPS for this task, if its user asked for it and the node has it."""
        if not self.spec.get("mps"):
            return
        control = shutil.which("nvidia-cuda-mps-control")
        if control is None:
            say("no nvidia-cuda-mps-control on this node: the members share the GPU in time slices")
            return
        # A Unix socket is made in it, whose name may have about 100 bytes.
        self.mps = tempfile.mkdtemp(prefix="mps-")
        environ = dict(self.environ, CUDA_MPS_PIPE_DIRECTORY=self.mps, CUDA_MPS_LOG_DIRECTORY=self.mps)
        code = subprocess.call([control, "-d"], env=environ, stdin=subprocess.DEVNULL)
        if code != 0:
            say("nvidia-cuda-mps-control ended with %d: the members share the GPU in time slices" % code)
            shutil.rmtree(self.mps, ignore_errors=True)
            self.mps = ""

    def _stop_mps(self) -> None:
        if not self.mps:
            return
        environ = dict(self.environ, CUDA_MPS_PIPE_DIRECTORY=self.mps, CUDA_MPS_LOG_DIRECTORY=self.mps)
        try:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=environ, timeout=20, check=False)
        except (OSError, subprocess.SubprocessError):
            say("nvidia-cuda-mps-control did not quit")
        shutil.rmtree(self.mps, ignore_errors=True)


def end_with_parent(parent: int) -> None:
    """Let the kernel end this process when its parent is killed: else it would run at the same time as its own next run."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(1)


def _compute_exit_code(record: "Dict[str, Any]") -> int:
    if record.get("state") == "cancelled":
        return 0
    number = int(record.get("signal") or 0)
    return 128 + number if number else int(record.get("exit_code") or 0)


def _remove_own_output() -> None:
    """Remove the files in which only this program has written: there is one for each of thousands of tasks."""
    for descriptor in (1, 2):
        try:
            path = os.readlink("/proc/self/fd/%d" % descriptor)
            if path.endswith((".pack.out", ".pack.err")):
                os.unlink(path)
        except OSError:
            pass


def _kill_session(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except OSError:
        pass


def _find_user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _read_interpreter(script: str) -> "List[str]":
    """Return the words of the script's first line, as the kernel reads it. The file system may forbid execution."""
    with open(script, "rb") as file:
        line = file.readline(4096)
    return [os.fsdecode(word) for word in line[2:].strip().split(None, 1)] if line.startswith(b"#!") else ["/bin/sh"]


def main(argv: "Optional[Tuple[str, ...]]" = None) -> int:
    """Run the packed task in this process and return its exit code."""
    directory, *args = sys.argv[1:] if argv is None else argv
    return PackedTask(directory, args, dict(os.environ)).run()


if __name__ == "__main__":
    sys.exit(main())
