"""Show the life of jobs on a real Slurm (`make demo`). Runs as root and removes everything that it creates.

(a) A bug in the training step is found on one GPU, and so is one in the validation after an epoch. (b) The fixed
16-GPU job is tuned, placed and run. (c) A GPU falls off the bus: the job is retried elsewhere and the node is drained.
(d) A corrupt input is blocked. (e) A job that loses a rank is reported while it runs. (f) The night report shows all of
this.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
USER = "swdemo"
COLOUR = sys.stdout.isatty()


class DemoFailed(Exception):
    """Raised when a step did not do what the demo promises."""


def heading(text: str) -> None:
    bar = "─" * 78
    print(f"\n{_bold(bar)}\n{_bold(text)}\n{_bold(bar)}", flush=True)


def note(text: str) -> None:
    print(f"   {text}", flush=True)


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if COLOUR else text


def expect(true: object, what: str) -> None:
    """Check one promise of the demo."""
    if not true:
        raise DemoFailed(what)
    mark = "\033[32m✓\033[0m" if COLOUR else "✓"
    print(f" {mark} {what}", flush=True)


class Demo:
    """The lab and an ordinary user, with methods that run commands as root or as the user."""

    def __init__(self, directory: Path) -> None:
        self.lab = directory / "lab"
        self.home = directory / USER
        self.environ = {
            "PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONWARNINGS": "ignore",
            **({"TERM": os.environ.get("TERM", "dumb")} if COLOUR else {}),
        }

    def root(self, *argv: str, quiet: bool = False) -> str:
        return self._run(list(argv), "#", user=None, quiet=quiet)

    def user(self, *argv: str, quiet: bool = False, code: int = 0) -> str:
        return self._run(list(argv), "$", user=USER, quiet=quiet, code=code)

    def _run(self, argv: list[str], prompt: str, *, user: str | None, quiet: bool, code: int = 0) -> str:
        if not quiet:
            print(f"\n{_bold(prompt + ' ' + shlex.join(argv))}", flush=True)
        home = str(self.home) if user else "/root"
        done = subprocess.run(
            argv,
            env={**self.environ, "HOME": home, "USER": user or "root", "LOGNAME": user or "root"},
            cwd=self.home if user else "/",
            user=user,
            group=user,
            extra_groups=[] if user else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        if not quiet:
            print("".join(f"  {line}\n" for line in done.stdout.splitlines()), end="", flush=True)
        if done.returncode != code:
            raise DemoFailed(f"{shlex.join(argv)} ended with {done.returncode}, not {code}\n{done.stdout}")
        return done.stdout

    def up(self) -> None:
        self.root("slurmwrap", "lab", "up", "--nodes", "8", "--gpus", "8", "--dir", str(self.lab))
        for line in self.root("slurmwrap", "lab", "env", "--dir", str(self.lab), quiet=True).splitlines():
            if found := re.fullmatch(r"export (\w+)=(.*)", line):
                value = shlex.split(found[2])[0].replace("$PATH", self.environ["PATH"])
                self.environ[found[1]] = value.replace("${PATH}", self.environ["PATH"])
        subprocess.run(["useradd", "-m", "-d", str(self.home), "-s", "/bin/bash", USER], check=True)
        shutil.copytree(HERE / "examples", self.home / "examples", dirs_exist_ok=True)
        account = pwd.getpwnam(USER)
        for path in (self.home, *self.home.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)

    def down(self) -> None:
        heading("All is taken down")
        with contextlib.suppress(DemoFailed):
            self.root("slurmwrap", "lab", "down", "--dir", str(self.lab))
        for pid in _processes_of(USER):
            os.kill(pid, signal.SIGKILL)
        subprocess.run(["userdel", "-r", USER], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def submit(self, *argv: str) -> int:
        out = self.user("gsub", *argv)
        found = re.search(r"^Submitted batch job (\d+)$", out, re.MULTILINE)
        if not found:
            raise DemoFailed(f"gsub printed no job id:\n{out}")
        return int(found[1])

    def field(self, job: int, name: str) -> str:
        out = self.user("scontrol", "show", "job", "-o", str(job), quiet=True)
        found = re.search(rf"(?:^| ){name}=(\S*)", out)
        return found[1] if found else ""

    def wait(self, job: int, *states: str, within: float = 120, restarts: int = 0) -> str:
        """Wait until the job is in one of `states` (after at least `restarts` requeues); print each change."""
        shown, until = "", time.monotonic() + within
        while time.monotonic() < until:
            state, count = self.field(job, "JobState"), int(self.field(job, "Restarts") or 0)
            line = f"job {job}: {state} {self.field(job, 'NodeList')}"
            if line != shown:
                note(line)
                shown = line
            if state in states and count >= restarts:
                return state
            time.sleep(0.5)
        raise DemoFailed(f"job {job} is {shown}, not {' or '.join(states)}, after {within:.0f} s")

    def judged(self, job: int, runs: int = 1) -> str:
        """Return the output of `slurmwrap why`, once the reconciler has diagnosed this many runs."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            told = json.loads(self.user("slurmwrap", "why", str(job), "--json", quiet=True))
            if sum(attempt["diagnosis"] is not None for attempt in told["attempts"]) >= runs:
                break
            time.sleep(0.5)
        return self.user("slurmwrap", "why", str(job))


def _processes_of(user: str) -> list[int]:
    uid = pwd.getpwnam(user).pw_uid if _exists(user) else -1
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                found.append(int(entry.name))
    return found


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def bug(demo: Demo) -> None:
    heading("(a) A bug in the training step: caught on one GPU, the 16-GPU job never starts")
    job = demo.submit("examples/buggy/train.sbatch")
    demo.wait(job, "CANCELLED")
    expect(demo.field(job, "RunTime") == "00:00:00", "the 16-GPU job never started")
    why = demo.user("slurmwrap", "why", str(job))
    expect(re.search(r"train\.py:\d+|train\.py\", line \d+", why), "the reason names the line")


def late_bug(demo: Demo) -> None:
    heading("(a2) A bug in the validation, after an epoch of hours: the pre-run rehearses the end of the epoch")
    note("--prerun=gate: the job waits for the whole pre-run; by default it may start after the three steps")
    job = demo.submit("--prerun=gate", "examples/late_bug/train.sbatch")
    demo.wait(job, "CANCELLED")
    expect(demo.field(job, "RunTime") == "00:00:00", "the 16-GPU job never started")
    why = demo.user("slurmwrap", "why", str(job))
    expect("KeyError" in why and "after 3 optimizer steps" in why, "the reason is the key that validate() reads")
    expect(re.search(r"train\.py:\d+|train\.py\", line \d+", why), "and names the line")


def good(demo: Demo) -> None:
    heading("(b) The fixed job: passes, is tuned by its own pre-run, runs on two nodes of one switch")
    note("it asks for 8 CPUs and 2 GB per node, a guess; nothing is known of it yet")
    job = demo.submit("--explain", "examples/ddp/train.sbatch")
    demo.wait(job, "RUNNING", "COMPLETED")
    nodes = demo.user("scontrol", "show", "hostnames", demo.field(job, "NodeList"), quiet=True).split()
    topology = demo.user("scontrol", "show", "topology", quiet=True)
    leaves = [leaf for leaf in topology.splitlines() if "Level=0" in leaf]
    expect(len(nodes) == 2, f"it runs on two nodes: {', '.join(nodes)}")
    expect(any(_holds(demo, leaf, nodes) for leaf in leaves), "of one switch")
    memory, cpus = demo.field(job, "MinMemoryNode"), demo.field(job, "CPUs/Task")
    expect(memory != "2G", f"its memory was tuned while it waited: 2G → {memory} per node, {cpus} CPUs per task")
    demo.wait(job, "COMPLETED")
    output = (demo.home / f"ddp-{job}.out").read_text()
    expect("world 16" in output, "16 ranks trained together")
    why = demo.judged(job)
    expect(re.search(r"PRE-RUN .* passed", why), "its pre-run passed, and `why` shows both plans")
    note("the next submission knows it from the start:")
    dry = demo.user("gsub", "--dry-run", "examples/ddp/train.sbatch")
    expect("# gsub:" in dry, "--dry-run prints the rewritten script with a reason for each change")


def _holds(demo: Demo, leaf: str, nodes: list[str]) -> bool:
    names = re.search(r"Nodes=(\S+)", leaf)
    members = demo.user("scontrol", "show", "hostnames", names[1], quiet=True).split() if names else []
    return set(nodes) <= set(members)


def hardware(demo: Demo) -> None:
    heading("(c) A GPU falls off the bus: classified, requeued elsewhere, the node drained")
    note("the kernel line is supplied (the lab's GPUs are not real); all that follows from it is real")
    job = demo.submit("--retry", "examples/gpu_fault/train.sbatch")
    demo.wait(job, "RUNNING")
    node = demo.field(job, "NodeList")
    index = re.search(r"GRES=gpu\S*\(IDX:(\d+)", demo.user("scontrol", "-d", "show", "job", "-o", str(job), quiet=True))
    bus = _bus_id(demo, node, int(index[1]) if index else 0)
    line = f"NVRM: Xid (PCI:{bus}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    demo.root("slurmwrap", "lab", "kernel", "--dir", str(demo.lab), node, line)
    demo.wait(job, "COMPLETED", restarts=1)
    second = demo.field(job, "NodeList")
    expect(second != node, f"it ran again elsewhere: {node} → {second}")
    reason = demo.root("sinfo", "-R", "-o", "%N %E")
    expect(re.search(rf"{node} slurmwrap:", reason), f"{node} is drained with an owned Reason")
    why = demo.judged(job, runs=2)
    expect("gpu_hardware" in why, "classified as gpu_hardware")
    expect(re.search(r"RUN 2 COMPLETED", why), "and the second run ended well")


def _bus_id(demo: Demo, node: str, index: int) -> str:
    for information in (demo.lab / "nodes" / node / "nvidia" / "gpus").glob("*/information"):
        if re.search(rf"Device Minor:\s*{index}\b", information.read_text()):
            return information.parent.name.rsplit(".", 1)[0]
    raise DemoFailed(f"no PCI bus id for GPU {index} of {node}")


def corrupt(demo: Demo) -> None:
    heading("(d) A corrupt input: found, blocked, and refused to the next job that names it")
    demo.user("python", "examples/corrupt_input/make_data.py", "data", quiet=True)
    job = demo.submit("examples/corrupt_input/train.sbatch", "data/truncated.pt")
    demo.wait(job, "CANCELLED")
    expect("incorrect_inputs" in demo.user("slurmwrap", "why", str(job)), "classified as incorrect_inputs")
    demo.user("gsub", "examples/ddp/train.sbatch", "--data", "data/truncated.pt", code=5)
    expect(True, "a second job that names it is refused (exit code 5)")


LOST_RANK = """\
#!/bin/bash
#SBATCH --job-name=lost-rank --nodes=2 --ntasks=2 --gres=gpu:8 --mem=1G --time=00:10:00 --output=lost-rank-%j.out
srun --kill-on-bad-exit=0 bash -c '
for step in {1..40}; do
    [ "$SLURM_PROCID" = 0 ] && echo "step $step/100000 loss 2.5"
    [ "$SLURM_PROCID.$step" = 1.40 ] && exit 1
    sleep 0.2
done
sleep 500  # the other rank waits for a message that never comes'
"""


def lost_rank(demo: Demo) -> None:
    heading("(e) A job loses a rank, and the other one waits: reported while it runs")
    note("the user's own reconciler, without an administrator; it waits 15 s here, not the usual 3 min")
    script = demo.home / "lost_rank.sbatch"
    script.write_text(LOST_RANK)
    job = demo.submit("--prerun=off", script.name)
    times = {"SLURMWRAP_EARLY_EVERY_S": "2", "SLURMWRAP_EARLY_DEAD_S": "15", "SLURMWRAP_EARLY_CPU_SHARE": "0.5"}
    own = {"HOME": str(demo.home), "USER": USER, "LOGNAME": USER}
    watching = subprocess.Popen(
        ["slurmwrap", "reconcile", "--user", "--watch", "--poll", "2"],
        env={**demo.environ, **own, **times}, cwd=demo.home, user=USER, group=USER, extra_groups=[],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        demo.wait(job, "RUNNING")
        until = time.monotonic() + 120
        while "partly dead" not in _comment(demo, job) and time.monotonic() < until:
            time.sleep(0.5)
    finally:
        watching.terminate()
        watching.wait(60)
    demo.user("squeue", "-j", str(job), "-o", "%i %T %k")
    expect("partly dead" in _comment(demo, job), "its Comment says that it is partly dead, while Slurm says RUNNING")
    why = demo.user("slurmwrap", "why", str(job))
    expect("Exited with exit code 1" in why, "and `why` shows the line that tells it")
    demo.user("scancel", str(job))


def _comment(demo: Demo, job: int) -> str:
    return demo.user("squeue", "-h", "-j", str(job), "-o", "%k", quiet=True)


def report(demo: Demo) -> None:
    heading("(f) The night report")
    out = demo.root("slurmwrap", "report", "--since", "1h")
    for word in ("GPU hardware fault", "input file missing"):
        expect(word in out, f"the report knows {word}")


def nothing_left(demo: Demo) -> None:
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(demo.lab) in line]
    marks = [p.name for p in Path("/proc").iterdir() if p.name.isdigit() and _mentions(p, str(demo.lab))]
    expect(not mounts and not marks and not _exists(USER), "no process, mount or user is left")


def _mentions(process: Path, text: str) -> bool:
    with contextlib.suppress(OSError):
        return text.encode() in (process / "cmdline").read_bytes()
    return False


def main() -> int:
    if os.geteuid() != 0:
        print("demo: must be root (the lab serves an ordinary user made for it); run it with sudo", file=sys.stderr)
        return 1
    if _exists(USER):
        print(f"demo: user {USER} exists; remove it first (userdel -r {USER})", file=sys.stderr)
        return 1
    began, failed = time.monotonic(), ""
    directory = Path(tempfile.mkdtemp(prefix="slurmwrap-demo-", dir="/var/tmp"))
    directory.chmod(0o755)
    demo = Demo(directory)
    try:
        heading("A real Slurm: 8 nodes with 8 GPUs each, two switches, slurmwrap's hooks and reconciler")
        demo.up()
        for step in (bug, late_bug, good, hardware, corrupt, lost_rank, report):
            step(demo)
    except (DemoFailed, subprocess.SubprocessError) as error:
        failed = str(error)
        print(f"\n ✗ {failed}", file=sys.stderr, flush=True)
    finally:
        demo.down()
        shutil.rmtree(directory, ignore_errors=True)
    nothing_left(demo)
    print(f"\n{'failed' if failed else 'done'} in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
