"""What a real Slurm says, kept as test data: brings up a lab with accounting, runs the jobs below, writes files.

    mkdir -p DIR && OUT=DIR .ci/release RELEASE run python tests/data/slurm/capture.py /out [BASE_PORT]

It makes the users alice and bob and is meant for that chroot. README.md says which file is by which command.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurmwrap.lab.teardown import down

from slurmwrap.lab.lab_directories import Layout, exports
from slurmwrap.lab.lab_spec import LabSpec
from slurmwrap.lab.lab_startup import up
from slurmwrap.slurm.squeue_parser import job_format, make_exclude_format

ROOT = Path("/var/tmp/capture")
HOOKS = ROOT / "captured"  # an environment per hook run
SEPARATOR = "\x1f0123456789abcdef\x1f"
SPEC = LabSpec(directory=ROOT / "lab", nodes=4, gpus=8, cpus=32, mem_mib=64_000, base_port=22_900, accounting=True)
PEOPLE = {"alice": 1003, "bob": 1004}
ENDED = frozenset(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"))

# Its own /proc entry is the environment as Slurm made it: a shell adds variables. By bash alone, since slurmctld 22.05
# starts its hooks with SIGCHLD blocked: a shell that waits for a program does so for ever.
RECORDER = f"""#!/bin/bash
mapfile -d "" -t environment </proc/$$/environ
name=$SLURM_SCRIPT_CONTEXT-$SLURM_JOB_ID-${{SLURM_JOB_RESTART_COUNT:-0}}-$SLURMD_NODENAME
printf '%s\\n' "${{environment[@]}}" >{HOOKS}/$name
"""
ACCOUNTS = (
    "modify account lab set GrpJobs=50 GrpTRES=cpu=120,mem=921600",
    "add account ml parent=lab Description=ml Organization=lab",
    "add qos big set MaxTRESPerJob=cpu=16,mem=204800 MaxTRESPerNode=cpu=12 MaxTRESPerUser=cpu=32,mem=300000 "
    "GrpTRES=cpu=100 MaxTRESPerAccount=cpu=64",
    "add qos part set MaxTRESPerJob=cpu=20 MaxTRESPerUser=mem=512000",
    "add user alice account=ml MaxTRESPerJob=cpu=24 qos=normal,big,part DefaultQOS=normal",
    "add user alice account=ml partition=prerun MaxTRESPerJob=cpu=4,mem=16384",
    "modify user alice where account=ml set qos=normal,big,part",
    "modify user alice set DefaultAccount=ml",
)


@dataclass(frozen=True, slots=True)
class Job:
    """One sbatch of alice's. `after` is done to it, by root, as soon as it is `when`."""

    name: str
    options: Sequence[str]
    body: str = "true"
    user: str = "alice"
    when: str = ""
    after: Sequence[Sequence[str]] = field(default_factory=tuple)


ONE = ("--gres=gpu:1", "--mem=2000")
JOBS = (
    Job("whole", ("-N2", "--ntasks-per-node=1", "--gpus-per-node=a100:2", "--mem=4000", "-c4", "--comment=a word"),
        "srun sleep 1"),
    Job("three", ONE, "exit 3"),
    Job("hidden", ONE, "srun false\ntrue"),
    Job("segv", (*ONE, "--signal=USR1@30"), "kill -SEGV $$"),
    Job("array", (*ONE, "--array=0-5%2"), 'sleep 1; [ "$SLURM_ARRAY_TASK_ID" != 3 ]'),
    Job("evil JobState=RUNNING\n x|y", (*ONE, "--comment=c JobState=FAILED Reason=x", "--exclude=n2"), "true"),
    Job("<b>&ü", ("--gpus=2", "--mem-per-gpu=3000", "--cpus-per-gpu=2")),
    Job("percpu", ("-n4", "--mem-per-cpu=500", "--gpus-per-task=1", "--switches=1@5:00")),
    Job("het", ("--gres=gpu:1", "--mem=1000", "--output=h-%j.out", ":", "-N2", "--mem=9"), "srun --het-group=0,1 true"),
    Job("excl", ("--gres=gpu:1", "--exclusive"), "sleep 1", user="bob"),
    Job("plain", ("-n2", "--mem=100", "--qos=big"), "srun true"),
    Job("limit", (*ONE, "--time=1", "--nodelist=n2"), "sleep 600"),
    Job("oom", ("--gres=gpu:1", "--mem=100"), "python3 -c 'bytearray(500 << 20)'", user="bob"),
    Job("gone", ONE, "sleep 600", when="RUNNING", after=(("scancel",),)),
    Job("unstarted", (*ONE, "--begin=now+1hour"), when="PENDING", after=(("scancel",),)),
    Job("again", ONE, '[ "$SLURM_RESTART_COUNT" ] || sleep 600', when="RUNNING",
        after=(("scontrol", "requeue"), ("scontrol", "update", "StartTime=now"))),
    Job("lost", (*ONE, "--nodelist=n3", "--no-requeue"), "sleep 600", when="RUNNING", after=(("down", "n3"),)),
    Job("moved", (*ONE, "--requeue", "--exclude=n2,n3"), '[ "$SLURM_RESTART_COUNT" ] || sleep 600', when="RUNNING",
        after=(("down", ""), ("scontrol", "update", "StartTime=now"))),
)  # fmt: skip
LEFT = (  # still there when the captures are made
    Job("running", ("-N1", "--gres=gpu:4", "--mem=8000", "-c4"), "sleep 3000"),
    Job("held", (*ONE, "--hold", "--requeue")),
    Job("later", (*ONE, "--begin=now+1hour", "--dependency=singleton", "--nice=5", "--time=2:00:00")),
    Job("waits", ("-N2", "--gres=gpu:8", "--nodelist=n0,n1", "--switches=1@10:00", "--array=0-3")),
)
SACCT = ("JobID,JobIDRaw,JobName,User,Account,Partition,Cluster,State,ExitCode,DerivedExitCode,Reason,Submit,Eligible,"
         "Start,End,ElapsedRaw,TimelimitRaw,AllocTRES,ReqTRES,NNodes,NCPUS,ReqMem,NodeList")  # fmt: skip
RUNS = ("SLUID,JobID,Restarts,User,Partition,State,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,ReqTRES,AllocTRES,"
        "NNodes,NodeList,ExitCode,Constraints,JobName")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Slurm:
    """The lab, and where captures go."""

    environ: dict[str, str]
    out: Path
    home: Path

    def run(self, *argv: str, user: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        uid = PEOPLE.get(user)
        return subprocess.run(
            argv, env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(self.home), "USER": user or "root",
                       **self.environ, **environ},
            capture_output=True, encoding="utf-8", errors="surrogateescape", timeout=60, check=False,
            cwd=self.home, stdin=subprocess.DEVNULL, user=uid, group=uid, extra_groups=[] if user else None,
        )  # fmt: skip

    def told(self, *argv: str, user: str = "", **environ: str) -> str:
        done = self.run(*argv, user=user, **environ)
        if done.returncode:
            sys.exit(f"{' '.join(argv)}: {done.stdout}{done.stderr}")
        return done.stdout

    def keep(self, name: str, text: str) -> None:
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(neutral(text), encoding="utf-8", errors="surrogateescape")


def neutral(text: str) -> str:
    """Without what is of this machine alone."""
    text = re.sub(r"(?<=OS=Linux ).*?(?= RealMemory=)", "6.1.0 #1 SMP ", text)
    text = text.replace(str(SPEC.directory), "/lab").replace(str(ROOT), "/lab").replace(platform.release(), "6.1.0")
    return re.sub(rf"\b{re.escape(platform.node())}\b", "host", text)


def wait(look: Callable[[], bool], what: str, patience_s: float = 240) -> None:
    end = time.monotonic() + patience_s
    while not look():
        if time.monotonic() > end:
            subprocess.run(["squeue", "-t", "all"], env={**os.environ, **exports(Layout(SPEC.directory))}, check=False)
            sys.exit(f"not within {patience_s:.0f} s: {what}")
        time.sleep(0.2)


def submit(slurm: Slurm, job: Job) -> str:
    script = slurm.home / "job.sh"
    script.write_text(f"#!/bin/bash\n{job.body}\n", encoding="utf-8")
    cut = job.options.index(":") if ":" in job.options else len(job.options)
    # a component of a heterogeneous job inherits nothing: only the first has the name
    argv = ["sbatch", "--parsable", f"--job-name={job.name}", *job.options[:cut], *job.options[cut:]]
    job_id = slurm.told(*argv, str(script), "one argument", "--two", user=job.user).strip()
    if job.when:
        wait(lambda: states(slurm, job_id) == {job.when}, f"{job.name} {job.when}")
        time.sleep(2)  # so that two runs of a job differ in their seconds
        for step in job.after:
            act(slurm, job_id, step)
    return job_id


def act(slurm: Slurm, job_id: str, step: Sequence[str]) -> None:
    if step[0] == "down":
        node = step[1] or slurm.told("squeue", "-h", "-o", "%N", "-j", job_id).strip()
        slurm.told("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=capture")
        wait(lambda: "RUNNING" not in states(slurm, job_id), f"{job_id} off {node}")
    elif step[:2] == ("scontrol", "update"):
        wait(lambda: states(slurm, job_id) == {"PENDING"}, f"{job_id} waits")
        time.sleep(5)  # until its first run has gone from the node: else slurmd takes the second for the first
        slurm.told("scontrol", "update", f"JobId={job_id}", *step[2:])
    else:
        slurm.told(*step, job_id)


def states(slurm: Slurm, job_id: str = "") -> set[str]:
    chosen = ("-j", job_id) if job_id else ()
    return set(slurm.told("squeue", "-h", "-t", "all", "-o", "%T", *chosen).split())


def record_hooks(layout: Layout) -> None:
    """Lets each hook write down its environment, instead of what slurmwrap would do there."""
    HOOKS.mkdir(mode=0o777)
    HOOKS.chmod(0o777)
    named = re.findall(r"^(?:Prolog|Epilog|EpilogSlurmctld)=(.*)$", layout.slurm_conf.read_text("utf-8"), re.MULTILINE)
    assert len(named) == 3
    for path in named:
        Path(path).write_text(RECORDER, encoding="utf-8")


def keep_hooks(slurm: Slurm, jobs: dict[str, str]) -> None:
    array = slurm.told("squeue", "-h", "-t", "all", "-r", "-o", "%A %F %K", "-j", jobs["array"]).split("\n")
    task = next(row.split()[0] for row in array if row.endswith(" 3"))
    kept = {name: jobs[name] for name in ("whole", "three", "hidden", "gone", "limit", "again", "lost", "moved")}
    names = {job_id: name for name, job_id in {**kept, "task": task}.items()}
    for path in sorted(HOOKS.iterdir()):
        context, job_id, run, node = path.name.split("-")
        if job_id in names and (job_id != jobs["whole"] or node in ("", "n0")):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            slurm.keep(f"hooks/{names[job_id]}.{run}.{context}.env", "".join(sorted(lines)))


def captures(slurm: Slurm) -> None:
    seconds, wide = {"SLURM_TIME_FORMAT": "%s"}, {"SACCT_FORMAT": SACCT}
    known = slurm.told("sacct", "--helpformat").split()
    runs = {"SACCT_FORMAT": ",".join(name for name in RUNS.split(",") if name in known)}
    local = {"SACCT_FORMAT": SACCT.replace("ElapsedRaw,TimelimitRaw", "Elapsed,Timelimit")}
    for name, argv, environ, user in (
        ("version.txt", "sinfo --version", {}, ""),
        ("sbatch_help.txt", "sbatch --help", {}, ""),
        ("sbatch_usage.txt", "sbatch --usage", {}, ""),
        ("nodes.txt", "scontrol show node -d -o", seconds, "alice"),
        ("topology.txt", "scontrol show topology", {}, "alice"),
        ("partitions.txt", "scontrol show partition -o", {}, "alice"),
        ("config.txt", "scontrol show config", {}, "alice"),
        ("job_records.txt", "scontrol show job -o", seconds, "alice"),
        ("job_details.txt", "scontrol show job -d -o", seconds, "alice"),
        ("jobs.txt", "squeue --noheader --all --states=all",
         {**seconds, "SQUEUE_FORMAT2": job_format(SEPARATOR)}, "alice"),
        ("excluded.txt", "squeue --noheader --all --states=all",
         {**seconds, "SQUEUE_FORMAT": make_exclude_format(SEPARATOR)}, "alice"),
        ("assoc_mgr.txt", "scontrol -o show assoc_mgr users=alice flags=assoc,qos", {}, "alice"),
        ("assoc_mgr_root.txt", "scontrol -o show assoc_mgr", {}, ""),
        ("sdiag.txt", "sdiag", {}, ""),
        ("sacct.psv", "sacct -a -P -D -S 2020-01-01", {**seconds, **wide}, ""),
        ("sacct_runs.txt", "sacct -a -D -X -P -S 2020-01-01 --delimiter=\x1f", {**seconds, **runs}, ""),
        ("sacct_padded.psv", "sacct -a -p -S 2020-01-01", local, ""),
    ):  # fmt: skip
        slurm.keep(name, slurm.told(*argv.split(" "), user=user, **environ))
    slurm.keep("sbatch_ambiguous.txt", slurm.run("sbatch", "--=x").stderr)  # names every long option
    slurm.keep("environment.txt", (slurm.home / "environment.txt").read_text(encoding="utf-8"))


def main(out: Path, base_port: int = SPEC.base_port) -> None:
    ROOT.mkdir(mode=0o755)
    home = ROOT / "home"
    home.mkdir(mode=0o777)
    home.chmod(0o777)
    for user, uid in PEOPLE.items():
        subprocess.run(
            ["useradd", "--uid", str(uid), "--home-dir", str(home), "--shell", "/bin/bash", user], check=True
        )
    layout = Layout(SPEC.directory)
    up(replace(SPEC, base_port=base_port), print, reconcile=False)
    try:
        slurm = Slurm(exports(layout), out, home)
        for words in ACCOUNTS:
            slurm.told("sacctmgr", "-i", *words.split())
        record_hooks(layout)
        jobs = {job.name: submit(slurm, job) for job in JOBS}
        everything = Job("batch", ONE, "env | sort >environment.txt")
        submit(slurm, everything)
        wait(lambda: states(slurm) <= ENDED, "all jobs end")
        for node in SPEC.node_names:
            slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME")  # refused where it is up
        wait(lambda: set(slurm.told("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}, "all nodes idle")
        left = [submit(slurm, job) for job in LEFT]
        wait(lambda: states(slurm, left[0]) == {"RUNNING"}, "the last one runs")
        time.sleep(6)  # slurmdbd hears of it, and the scheduler gave its reasons
        captures(slurm)
        keep_hooks(slurm, jobs)
    finally:
        down(layout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
