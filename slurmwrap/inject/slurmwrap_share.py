"""Run a `gsub --share` job, and beside it on its GPU other such jobs of the same user: the program of the batch script.

Call: slurmwrap_share.py DIRECTORY [ARGUMENT ...]. DIRECTORY holds spec.json, environment.json and the user's script,
unchanged (gsub/share_submission.py). The directories of the user's other `--share` jobs are next to it.

The job that has the GPU is the holder. A job that waits is its guest while the holder runs the guest's script. A guest
belongs to the one process that created claim.json in its directory: a holder, or the job itself once Slurm has started
it. A holder claims only a job that is pending, and moves its StartTime ahead while the script runs, so that Slurm does
not start it. When the holder is lost, that time passes and Slurm starts the job as if nothing had been. A guest that
has ended waits for its own start only to end with the same exit code, so that Slurm has its state.

Python 3.6 syntax, standard library.
"""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # python -I leaves it out

from slurmwrap_members import (
    _GPU_OOM,
    _HANDLED,
    _KILL_WAIT_S,
    SignalWitness,
    _find_user_name,
    _kill_session,
    _read_interpreter,
    end_with_parent,
    expand_pattern,
    read_json,
    read_tail,
    write_json,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, NamedTuple, Optional, Tuple

    QueueRow = NamedTuple(
        "QueueRow",
        [("state", str), ("left_s", float), ("limit_s", float), ("reason", str), ("dependency", str)],
    )
else:
    from collections import namedtuple

    QueueRow = namedtuple("QueueRow", ["state", "left_s", "limit_s", "reason", "dependency"])

_POLL_S = 1.0
# Seconds until a command of Slurm is given up.
_SLURM_S = 20.0
# A guest has ended so many seconds before its holder's time limit, and before its own StartTime comes.
_MARGIN_S = 90.0
_MEMORY_USE = 0.9  # share of the holder's memory that both jobs may need together
# Added to the score by which the kernel chooses a process when the memory is full: the guest's, not the holder's.
_OOM_SCORE = 500
# Reasons of squeue for which only other jobs keep a job from starting: a user's own GPU limit among them.
_WAITS_FOR_OTHERS = re.compile(
    r"None|Priority|Resources|ReqNodeNotAvail.*|(?:QOS|Assoc)(?:Grp|Max)GRES(?:PerUser|PerAccount|PerAcct)?"
)
# Ends that a holder causes: the GPU is in exclusive mode, its memory is full. The job then runs by itself.
_GPU_BUSY = re.compile(br"all CUDA-capable devices are busy or unavailable|device\(s\) is/are busy or unavailable")
_TIME_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_SRUN = """#!/bin/sh
# The script's own job has no allocation yet: its steps run in that of the job whose GPU it shares.
export SLURM_JOB_ID=%(holder)s SLURM_JOBID=%(holder)s SLURM_TASK_PROLOG=${SLURM_TASK_PROLOG:-%(prolog)s}
exec %(srun)s "$@"
"""
_PROLOG = "#!/bin/sh\necho export SLURM_JOB_ID=%(job)s\necho export SLURM_JOBID=%(job)s\n"


class Guest:
    """A job of the same user whose script runs next to the holder's."""

    def __init__(self, directory: str, job: str, spec: "Dict[str, Any]", speed: float) -> None:
        self.directory, self.job, self.spec, self.speed = directory, job, spec, speed
        self.process = None  # type: Optional[subprocess.Popen[bytes]]
        self.record = {}  # type: Dict[str, Any]
        self.renewed = self.looked = time.monotonic()
        self.limit_s = self.until = float("inf")  # its own time limit, and time.monotonic() at its end
        self.stopped = ""  # why the holder ends it: "stopped", "alone" or "cancelled"
        self.stopped_at = 0.0


class SharedJob:
    """One `--share` job in its own allocation, from its start to its end."""

    def __init__(self, directory: str, args: "List[str]", environ: "Dict[str, str]") -> None:
        self.directory, self.args, self.environ = os.path.abspath(directory), args, environ
        self.name = os.path.basename(self.directory)
        self.place = os.path.dirname(self.directory)
        self.spec = read_json(os.path.join(self.directory, "spec.json"))
        if not self.spec:
            raise SystemExit("slurmwrap: %s/spec.json cannot be read on this node" % directory)
        # What these variables do not have was set by Slurm or the node, and holds for a guest too.
        self.submitted = read_json(os.path.join(self.directory, "environment.json"))
        self.job = environ["SLURM_JOB_ID"]
        self.restart = int(environ.get("SLURM_RESTART_COUNT") or 0)
        self.process = None  # type: Optional[subprocess.Popen[bytes]]
        self.guest = None  # type: Optional[Guest]
        self.witness = None  # type: Optional[SignalWitness]
        self.code = 0
        self.stopping = False
        self.again = False  # its script runs once more when the guest has ended
        self.alone = False  # it takes no more guests
        self.looked = float("-inf")

    def run(self) -> int:
        """Run the script, and return its exit code as subprocess does: -N for signal N."""
        ended = self._find_end_as_guest()
        if ended is not None:
            return ended
        self._truncate_outputs()
        self.witness = SignalWitness()
        # Blocked signals are read below. What started in between is not lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED | {signal.SIGCHLD})
        try:
            self._start_script()
            while self.process is not None or self.guest is not None or self.again:
                number = signal.sigtimedwait(_HANDLED | {signal.SIGCHLD}, _POLL_S)
                if number is not None and number.si_signo != signal.SIGCHLD:
                    self._pass_on(number.si_signo)
                self._look_at_script()
                try:
                    self._care_for_guests()
                except Exception as problem:  # whatever is wrong with a guest, its holder goes on
                    self._give_up_guests(problem)
                if self.again and self.guest is None:
                    self.again = False
                    if not self.stopping:
                        self._start_script()
        finally:
            self.witness.stop()
            _remove(os.path.join(self.place, "running", self.name))
            if not self.stopping:  # else it may be requeued
                _remove(os.path.join(self.directory, "environment.json"))
        return self.code

    # --- this job as a guest of another one -----------------------------------------------------------------------

    def _find_end_as_guest(self) -> "Optional[int]":
        """Return the exit code if a holder has run this job to its end; None once this process owns the job.

        A holder that still runs it is asked to end it; one that shows no life is no longer waited for.
        """
        _move_mark(self.place, self.name, self.job)
        claim = os.path.join(self.directory, "claim.json")
        beat, changed = "", time.monotonic()
        while not create_claim(self.directory, {"by": self.job, "state": "own"}):
            record = read_json(claim)
            if record.get("by") == self.job:
                return None
            if record.get("state") in ("completed", "failed"):
                if record.setdefault("passed_on", self.restart) != self.restart:
                    self._check_time_limit(record)
                    os.replace(claim, os.path.join(self.directory, "last.json"))
                    continue
                write_json(claim, record)
                _remove(os.path.join(self.place, "running", self.name))
                _remove(os.path.join(self.directory, "environment.json"))
                self.log("ends with the exit code that it had as a guest of job %s" % record["by"])
                return -int(record["signal"]) or int(record["exit_code"])
            open(os.path.join(self.directory, "wanted"), "w").close()
            now = _read_text(os.path.join(self.directory, "beat"))
            if now != beat:
                beat, changed = now, time.monotonic()
            elif time.monotonic() - changed > 3 * self.spec["look_s"] + 30:
                self.log("job %s, which ran it as a guest, shows no life" % record.get("by"))
                try:
                    os.replace(claim, os.path.join(self.directory, "last.json"))
                except OSError:
                    pass
                continue
            time.sleep(_POLL_S)
        return None

    def _check_time_limit(self, record: "Dict[str, Any]") -> None:
        """End this process if the job runs again although its time limit was lowered when it had completed."""
        if record.get("lowered"):
            raise SystemExit(
                "slurmwrap: job %s completed on the GPU of job %s, and its time limit was lowered to a minute. It cannot "
                "run again; submit it again: gsub --again %s" % (self.job, record["by"], self.job)
            )

    def _truncate_outputs(self) -> None:
        """Empty the output files as sbatch would have done: the job has --open-mode=append for the sake of guests."""
        if not self.spec["truncate"] or read_json(os.path.join(self.directory, "last.json")):
            return
        for descriptor in (1, 2):
            try:
                os.ftruncate(descriptor, 0)
            except OSError:  # no regular file
                pass

    # --- its own script -------------------------------------------------------------------------------------------

    def _start_script(self) -> None:
        environ = dict(self.environ)
        _set_cpus(environ, self.spec)
        before = int(read_json(os.path.join(self.directory, "last.json")).get("runs") or 0) + self.alone
        if before:
            environ["SLURM_RESTART_COUNT"] = str(self.restart + before)
        parent = os.getpid()

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            end_with_parent(parent)

        script = os.path.join(self.directory, "slurm_script")
        self.process = subprocess.Popen(
            [*_read_interpreter(script), script, *self.args],
            env=environ,
            preexec_fn=prepare,
            start_new_session=True,
        )

    def _pass_on(self, number: int) -> None:
        """Send a signal to the script, unless Slurm has sent it to all processes of the job."""
        self.stopping = self.stopping or number in (signal.SIGTERM, signal.SIGINT)
        if self.witness is not None and self.witness.has_seen(number):
            if self.guest is not None and self.stopping:
                self._note_stop(self.guest, "stopped")
        elif self.process is not None:
            self.process.send_signal(number)

    def _look_at_script(self) -> None:
        code = None if self.process is None else self.process.poll()
        if code is None:
            return
        self.process, self.code = None, code
        if code and self.guest is not None and not self.stopping and _is_gpu_full(read_tail("/proc/self/fd/2")):
            self.log("runs its script again, without job %s: the GPU's memory was full" % self.guest.job)
            self.again = self.alone = True
            self._stop_guest(self.guest, "alone")

    # --- guests ---------------------------------------------------------------------------------------------------

    def _care_for_guests(self) -> None:
        now = time.monotonic()
        may = self.process is not None and not self.stopping and not self.alone and bool(self.spec["demand"])
        if self.guest is not None:
            self._look_at_guest(self.guest)
        elif may and now - self.looked >= self.spec["look_s"]:
            self.looked = now
            self._find_guest()

    def _give_up_guests(self, problem: Exception) -> None:
        """Take no more guests. The claim of the present one shows no more life, so its job runs by itself."""
        self.log("takes no more guests: %s: %s" % (type(problem).__name__, problem))
        if self.guest is not None and self.guest.process is not None:
            _kill_session(self.guest.process.pid, signal.SIGKILL)
        self.guest, self.alone = None, True

    def _find_guest(self) -> None:
        """Claim and start the pending job that suits best, if there is one."""
        candidates = self._list_candidates()
        if not candidates or is_gpu_exclusive():
            return
        queue = read_queue()
        own = queue.get(self.job)
        # Jobs that wait for this one would also wait for its guest.
        if own is None or any(re.search(r"\b%s\b" % self.job, row.dependency) for row in queue.values()):
            return
        for _, guest in sorted(candidates, key=lambda one: -one[0]):
            row = queue.get(guest.job)
            if row is None:
                _remove(os.path.join(self.place, "waiting", os.path.basename(guest.directory)))
            elif row.state == "PENDING" and _WAITS_FOR_OTHERS.fullmatch(row.reason):
                guest.limit_s = row.limit_s or float("inf")
                time_s = guest.spec["time_s"] or guest.limit_s
                if time_s / guest.speed + _MARGIN_S <= own.left_s and self._take(guest):
                    return

    def _list_candidates(self) -> "List[Tuple[float, Guest]]":
        """Return (combined throughput, job) of the waiting jobs that suit this one and fit its allocation."""
        found = []
        waiting = os.path.join(self.place, "waiting")
        for name in _list_names(waiting):
            directory = os.path.join(self.place, name)
            spec = read_json(os.path.join(directory, "spec.json"))
            pair = self.spec["pairs"].get(name) or spec.get("pairs", {}).get(self.name)
            if not pair or os.path.exists(os.path.join(directory, "alone")):
                continue
            if fits_allocation(self.spec["demand"], spec["demand"], self.environ):
                guest = Guest(directory, _read_text(os.path.join(waiting, name)), spec, pair["speed"])
                found.append((2 * pair["speed"], guest))
        return found

    def _take(self, guest: Guest) -> bool:
        """Claim a job, move its start to the end of the lease, and start its script. Return whether it runs."""
        record = read_json(os.path.join(guest.directory, "last.json"))
        guest.record = {
            "by": self.job,
            "token": os.urandom(8).hex(),
            "state": "running",
            "runs": int(record.get("runs") or 0) + 1,
            "node": self.environ.get("SLURMD_NODENAME", ""),
            "begin": time.time(),
        }
        if not create_claim(guest.directory, guest.record):
            return False
        # Slurm refuses this for a job that it has started, or that has ended.
        if self._renew(guest):
            row = read_queue().get(guest.job)
            if row is not None and row.state == "PENDING" and self._start_guest(guest):
                self.guest = guest
                return True
            set_job(guest.job, "StartTime=now")
        _remove(os.path.join(guest.directory, "claim.json"))
        return False

    def _renew(self, guest: Guest) -> bool:
        at = time.monotonic()
        if not set_job(guest.job, "StartTime=now+%d" % self.spec["lease_s"]):
            return False
        guest.renewed = at
        return True

    def _start_guest(self, guest: Guest) -> bool:
        spec = guest.spec
        output, error = (self._name_output(guest, spec[one]) for one in ("output", "error"))
        guest.record.update(output=output, error=error)
        script = os.path.join(guest.directory, "slurm_script")
        again = spec["truncate"] and guest.record["runs"] == 1
        mode = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if again else os.O_APPEND)
        parent = os.getpid()

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.umask(spec["umask"])
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("%d" % _OOM_SCORE)
            end_with_parent(parent)

        opened = []
        try:
            for path in (output, error):
                if path:
                    opened.append(os.open(os.path.join(spec["chdir"], path), mode, 0o666 & ~spec["umask"]))
            guest.process = subprocess.Popen(
                [*_read_interpreter(script), script, *spec["args"]],
                stdin=subprocess.DEVNULL,
                stdout=opened[0],
                stderr=opened[-1],
                cwd=spec["chdir"],
                env=self._make_environment(guest),
                preexec_fn=prepare,
                start_new_session=True,
            )
        except (OSError, subprocess.SubprocessError) as problem:
            self.log("job %s cannot be started as a guest: %s" % (guest.job, problem))
            open(os.path.join(guest.directory, "alone"), "w").close()
            return False
        finally:
            for descriptor in opened:
                os.close(descriptor)
        guest.until = time.monotonic() + guest.limit_s / guest.speed
        self._write_record(guest)
        self.log("job %s runs as a guest" % guest.job)
        return True

    def _name_output(self, guest: Guest, pattern: "Optional[str]") -> str:
        """Return the file that sbatch would name for the guest. %j is %A here: expand_pattern adds an index to %j."""
        if not pattern:
            return ""
        values = {
            "A": guest.job,
            "a": "4294967294",
            "N": self.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0],
            "n": "0",
            "s": "batch",
            "t": "0",
            "u": _find_user_name(),
            "x": guest.spec["job_name"],
        }
        plain = re.sub(r"(%%|%\d{0,2})[jJ]", lambda m: m.group(1) + ("j" if m.group(1) == "%%" else "A"), pattern)
        return os.path.join(guest.spec["chdir"], expand_pattern(plain, values))

    def _make_environment(self, guest: Guest) -> "Dict[str, str]":
        """Return the guest's environment: as it was submitted, with what Slurm and the node set for this allocation."""
        own = {
            name: value
            for name, value in self.environ.items()
            if name.startswith(("SLURM", "CUDA_")) or (self.submitted and self.submitted.get(name) != value)
        }
        spec = guest.spec
        submitted = read_json(os.path.join(guest.directory, "environment.json"))
        environ = dict(submitted, **own)
        environ["PATH"] = submitted.get("PATH", os.defpath)
        environ.update(SLURM_JOB_ID=guest.job, SLURM_JOBID=guest.job, SLURM_JOB_NAME=spec["job_name"])
        environ.update(SLURM_SUBMIT_DIR=spec["submit_dir"], PWD=spec["chdir"], SLURM_OVERLAP="1")
        for name in ("SLURM_RESTART_COUNT", "SLURM_EXPORT_ENV"):  # what --export sets is in `submitted`
            environ.pop(name, None)
        if guest.record["runs"] > 1:
            environ["SLURM_RESTART_COUNT"] = str(guest.record["runs"] - 1)
        _set_cpus(environ, spec)
        srun = shutil.which("srun", path=environ.get("PATH"))
        if srun is not None:
            programs = os.path.join(guest.directory, "bin")
            os.makedirs(programs, 0o700, exist_ok=True)
            prolog = os.path.join(programs, "task_prolog")
            values = {"holder": self.job, "job": guest.job, "srun": _quote(srun), "prolog": _quote(prolog)}
            for path, text in ((os.path.join(programs, "srun"), _SRUN), (prolog, _PROLOG)):
                with open(path, "w") as file:
                    file.write(text % values)
                os.chmod(path, 0o700)
            environ["PATH"] = programs + os.pathsep + environ.get("PATH", os.defpath)
        return environ

    def _look_at_guest(self, guest: Guest) -> None:
        code = None if guest.process is None else guest.process.poll()
        now = time.monotonic()
        if code is not None:
            self._end_guest(guest, code)
        elif guest.stopped:
            if now - guest.stopped_at > _KILL_WAIT_S and guest.process is not None:
                _kill_session(guest.process.pid, signal.SIGKILL)
        elif self.stopping or os.path.exists(os.path.join(guest.directory, "wanted")):
            self._stop_guest(guest, "stopped")
        elif now > guest.until:
            self._stop_guest(guest, "alone")
        elif now - guest.looked >= self.spec["look_s"]:
            guest.looked = now
            self._look_at_queue(guest)

    def _look_at_queue(self, guest: Guest) -> None:
        """Renew the lease of the guest, and end it if its user cancelled it, or if it or its holder must end soon."""
        if read_json(os.path.join(guest.directory, "claim.json")).get("token") != guest.record["token"]:
            # This process stood still for so long that the job was given up for lost.
            self._stop_guest(guest, "stopped")
            guest.stopped_at = float("-inf")
            return
        with open(os.path.join(guest.directory, "beat"), "w") as file:
            file.write("%f" % guest.looked)
        queue = read_queue()
        row, own = queue.get(guest.job), queue.get(self.job)
        if own is not None and row is None:
            self._stop_guest(guest, "cancelled")
        elif own is not None and (row.state != "PENDING" or own.left_s < _MARGIN_S):
            self._stop_guest(guest, "stopped")
        elif guest.looked - guest.renewed > self.spec["lease_s"] / 6.0 and not self._renew(guest):
            if guest.looked - guest.renewed > self.spec["lease_s"] - _MARGIN_S:
                self._stop_guest(guest, "stopped")

    def _note_stop(self, guest: Guest, why: str) -> None:
        guest.stopped, guest.stopped_at = why, time.monotonic()

    def _stop_guest(self, guest: Guest, why: str) -> None:
        self._note_stop(guest, why)
        if guest.process is not None:
            _kill_session(guest.process.pid, signal.SIGTERM)

    def _end_guest(self, guest: Guest, code: int) -> None:
        """Record how the guest ended, and let Slurm start its job: to end at once, or to run by itself."""
        self.guest = None
        if guest.process is not None:
            _kill_session(guest.process.pid, signal.SIGKILL)  # what its script left behind
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        record = guest.record
        if not guest.stopped and code != 0 and (killed or _is_gpu_full(read_tail(record["error"] or record["output"]))):
            guest.stopped = "alone"
        state = guest.stopped or ("failed" if code else "completed")
        record.update(state=state, end=time.time(), exit_code=max(code, 0), signal=max(-code, 0))
        self.log("job %s, its guest, ended: %s, exit code %d" % (guest.job, state, code))
        claim, last = (os.path.join(guest.directory, name) for name in ("claim.json", "last.json"))
        if read_json(claim).get("token") != record["token"]:
            return
        if not guest.stopped:
            # A short limit lets it into a gap of the queue. The owner may not raise it again once the job runs.
            record["lowered"] = code == 0 and set_job(guest.job, "TimeLimit=1")
            self._write_record(guest)
            _remove(os.path.join(self.place, "waiting", os.path.basename(guest.directory)))
        else:
            if guest.stopped == "alone":
                open(os.path.join(guest.directory, "alone"), "w").close()
            write_json(last, record)
            _remove(claim)
        if guest.stopped == "cancelled":
            _remove(os.path.join(guest.directory, "environment.json"))
        else:
            set_job(guest.job, "StartTime=now")

    def _write_record(self, guest: Guest) -> None:
        write_json(os.path.join(guest.directory, "claim.json"), guest.record)

    def log(self, text: str) -> None:
        """Add a line to wrapper.log: the job's output is the user's alone."""
        try:
            with open(os.path.join(self.directory, "wrapper.log"), "a") as file:
                file.write("%s job %s %s\n" % (time.strftime("%Y-%m-%dT%H:%M:%S"), self.job, text))
        except OSError:
            pass


# --- Slurm ------------------------------------------------------------------------------------------------------------


def read_queue() -> "Dict[str, QueueRow]":
    """Return the user's pending and running jobs by their job id; {} if Slurm does not answer."""
    rows = {}
    for line in _run_slurm(["squeue", "--me", "-h", "-o", "%A|%T|%L|%l|%E|%r"]).splitlines():
        words = line.split("|", 5)
        if len(words) == 6:
            left_s, limit_s = parse_time(words[2]), parse_time(words[3])
            rows[words[0].strip()] = QueueRow(words[1], left_s, limit_s, words[5].strip(), words[4])
    return rows


def parse_time(text: str) -> float:
    """Return the seconds of squeue's %L and %l, as 1-02:03:04 or 03:04; inf for UNLIMITED, 0.0 for other words."""
    found = _TIME_LEFT.fullmatch(text.strip())
    if found is None:
        return float("inf") if text.strip() == "UNLIMITED" else 0.0
    days, hours, minutes, seconds = (int(word or 0) for word in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def set_job(job: str, change: str) -> bool:
    """Change one key of an own pending job. Return whether Slurm did it."""
    return _run_slurm(["scontrol", "update", "JobId=" + job, change], "refused") != "refused"


def _run_slurm(words: "List[str]", otherwise: str = "") -> str:
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_SLURM_S
        )
    except (OSError, subprocess.SubprocessError):
        return otherwise
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else otherwise


# --- what there is ----------------------------------------------------------------------------------------------------


def fits_allocation(one: "Dict[str, Any]", other: "Dict[str, Any]", environ: "Dict[str, str]") -> bool:
    """Return whether the CPUs and the memory of this allocation are enough for what both jobs need."""
    cpus = int(environ.get("SLURM_CPUS_ON_NODE") or 1)
    if one["cpus"] + other["cpus"] > cpus:
        return False
    each = environ.get("SLURM_MEM_PER_NODE") or environ.get("SLURM_MEM_PER_GPU")
    memory = int(each) if each else int(environ.get("SLURM_MEM_PER_CPU") or 0) * cpus
    if not memory:  # Slurm gives and limits no memory here
        return True
    needs = [job["mem_mib"] for job in (one, other)]
    return None not in needs and sum(needs) <= _MEMORY_USE * memory


def _set_cpus(environ: "Dict[str, str]", spec: "Dict[str, Any]") -> None:
    """Let the script see the CPUs that its user asked for: what the allocation has more is for other jobs."""
    environ.pop("SLURM_CPUS_PER_TASK", None)
    if spec["cpus_per_task"]:
        environ["SLURM_CPUS_PER_TASK"] = str(spec["cpus_per_task"])


def is_gpu_exclusive() -> bool:
    """Return whether the driver lets only one process use the GPU (compute mode); False where that is not known."""
    words = ["nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader"]
    return bool(re.search(r"Exclusive|Prohibited", _run_slurm(words)))


def _is_gpu_full(tail: bytes) -> bool:
    return bool(_GPU_OOM.search(tail) or _GPU_BUSY.search(tail))


def _read_own_tail() -> bytes:
    return read_tail("/proc/self/fd/2")


# --- files ------------------------------------------------------------------------------------------------------------


def create_claim(directory: str, record: "Dict[str, Any]") -> bool:
    """Create claim.json, which only one process can. Return whether this one did."""
    try:
        descriptor = os.open(os.path.join(directory, "claim.json"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        json.dump(record, file)
    return True


def _move_mark(place: str, name: str, job: str) -> None:
    """Note that a job runs: gsub looks for holders among these, and a holder for guests among those that wait."""
    try:
        with open(os.path.join(place, "running", name), "w") as file:
            file.write(job)
    except OSError:
        pass
    _remove(os.path.join(place, "waiting", name))


def _list_names(folder: str) -> "List[str]":
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read_text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except OSError:
        pass


def _quote(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def main(argv: "Optional[Tuple[str, ...]]" = None) -> int:
    """Run the job in this process; end as its script ended."""
    directory, *args = sys.argv[1:] if argv is None else argv
    code = SharedJob(directory, args, dict(os.environ)).run()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main())
