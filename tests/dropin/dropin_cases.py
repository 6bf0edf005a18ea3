"""The calls that the differential test makes with sbatch and gsub, with the releases that support them.

Every call begins with `--hold`, so that no job starts and occupies nodes. Without a GPU gsub passes a call through;
with a GPU it plans and submits the job itself. Most rows are tested both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Release = tuple[int, int]
ALWAYS: Release = (22, 5)
_SCRIPT = " a.sh one 'two words'"
_FIRST = "#!/bin/bash\n"
_GPU = "#SBATCH --gres=gpu:1\n"


@dataclass(frozen=True, slots=True)
class Case:
    """`sbatch --hold WORDS SCRIPT`; `script` replaces the default script `a.sh` and its arguments."""

    words: str  # as a shell would split them
    lines: str = ""  # directive lines of the script
    environ: Mapping[str, str] = field(default_factory=dict)
    since: Release = ALWAYS
    until: Release | None = None
    script: str | None = _SCRIPT  # what follows WORDS; None: the script comes on standard input
    body: str = "echo $0\n"
    first: str = _FIRST

    def known_to(self, release: Release) -> bool:
        """Whether the case is tested with sbatch of that release."""
        return self.since <= release and (self.until is None or release < self.until)

    @property
    def asks_for_gpu(self) -> bool:
        """Whether the case requests a GPU itself, so that gsub plans it."""
        said = (self.words, self.lines, *self.environ, *self.environ.values())
        return any("gpu" in text.lower() for text in said) or " -G" in f" {self.words}"

    @property
    def text(self) -> str:
        """The script's content."""
        return f"{self.first}{self.lines}\n{self.body}" if self.first else self.body

    @property
    def name(self) -> str:
        """The name of the case in a failure report."""
        said = [self.words, self.lines.replace("\n", " / "), " ".join(f"{k}={v}" for k, v in self.environ.items())]
        said += [self.script.strip() or "alone"] if self.script not in (None, _SCRIPT) else []
        said += ["standard input"] if self.script is None else []
        said += [self.first.strip()] if self.first != _FIRST else []
        return " | ".join(filter(None, said)).replace("[", "(").replace("]", ")") or "nothing"


# --- options, in several spellings where they exist; tested without and with a GPU ------------------------------------

_OPTIONS: tuple[str, ...] = (
    "",
    "-A acct",
    "-Aacct",
    "--account=acct",
    "--acc acct",
    "--acctg-freq=task=10",
    "--acctg-freq 0",
    "-a 0-3",
    "-a1,3,5-9%2",
    "--array=0-10:5",
    "--arr 7",
    "--batch=slow -C slow",
    "-b now+2hours",
    "--begin=2030-01-01T12:00:00",
    "--beg 16:00",
    "--bb='#BB capacity=1G'",
    "--cluster-constraint=x",
    "-D /tmp",
    "--chdir=/nonexistent/dir",
    "--chd sub",
    "--comment='a b=c JobState=RUNNING'",
    "--comm ''",
    "--contiguous",
    "-C slow",
    "--constraint='slow&slow'",
    "--constraint=slow*2 -N2",
    "-S 2",
    "--core-spec=1",
    "--thread-spec=2",
    "--cores-per-socket=4",
    "--cpu-freq=high",
    "-c4",
    "-c 4",
    "--cpus-per-task=4 -n2",
    "--deadline=2030-01-01 -t 10",
    "--delay-boot=5",
    "-d singleton",
    "--dependency=afterok:1:2,afterany:3",
    "-d after:1+5?afternotok:2",
    "-v",
    "-vv --test-only",
    "-m block:cyclic -n4",
    "--distribution=plane=2 -n4",
    "--dist=cyclic",
    "-e err.txt",
    "--error=%x-%j.err -J named",
    "-x n0",
    "--exclude=n[0-2]",
    "--exclusive",
    "--exclusive=user",
    "--excl=mcs",
    "--export=NONE",
    "--export=ALL,X=1",
    "--export=HOME,Y=2",
    "--export=NIL",
    "--export-file=env.bin",
    "-B 1:2",
    "--extra-node-info=2:4:1",
    "--get-user-env",
    "--gpu-freq=medium",
    "--gres=gpu:2",
    "--gres=gpu:a100:2 -N2",
    "--gres none",
    "-G4",
    "--gpus=a100:4",
    "--gpus 2 --cpus-per-gpu=3",
    "--gpus-per-node=2 -N2",
    "--gpus-per-task=1 -n3",
    "--gpus-per-socket=1 --sockets-per-node=2 -G2",
    "--gpus=2 --gpu-bind=none",
    "--gpus=2 --mem-per-gpu=3G",
    "--gpus=2 --ntasks-per-gpu=2",
    "--gres=gpu:2 --gres-flags=enforce-binding",
    "--gres=gpu:2 --gres-flags=disable-binding",
    "--hint=nomultithread",
    "--hint=compute_bound",
    "-H",
    "-HH",
    "-i in.txt",
    "--input=/dev/zero",
    "-J 'a name'",
    "-Jx",
    "--job-name=%A",
    "--job n",
    "--kill-on-invalid-dep=yes -d singleton",
    "--mail-type=END,FAIL --mail-user=someone",
    "--mail-type=NONE",
    "--mcs-label=x",
    "--context=x",
    "--ntasks-per-tres=2 --gres=gpu:2",
    "--mem=3G",
    "--mem 1000",
    "--mem=0",
    "--mem=2048K",
    "--mem=1T -N1",
    "--mem-per-cpu=100",
    "--mem-per-c 1G",
    "--mem-bind=local",
    "--mincpus=6",
    "--minc 3 -n2",
    "--network=ib",
    "--nice",
    "--nice=100",
    "--ni=2147483645",
    "-k",
    "-koff",
    "--no-kill=off",
    "--no-requeue",
    "-F hosts.txt",
    "--nodefile=hosts.txt -N3",
    "-w n1",
    "--nodelist=n[1-2] -N3",
    "--nodel n1,n2",
    "-N2",
    "-N 2-4",
    "--nodes=3",
    "--nodes 8-8",
    "-n7",
    "-n 7",
    "--ntasks=16 -N2",
    "--ntasks 4 --ntasks-per-core=1",
    "--ntasks-per-node=4 -N2",
    "--tasks-per-node=4 -N2",
    "--ntasks-per-n 3",
    "--ntasks-per-socket=2 -n4",
    "--open-mode=append",
    "--open-mode=t",
    "-o out.txt",
    "--output=%x.%j.%N.txt",
    "--outp /dev/null",
    "-O",
    "--overcommit -n40 -N1",
    "-s",
    "--oversubscribe",
    "--share",
    "--parsable",
    "--pars",
    "-p gpu",
    "-p gpu,prerun -t 5",
    "--partition=prerun --time=10",
    "--prefer=slow",
    "--priority=TOP",
    "--priority=50",
    "--profile=none",
    "--propagate",
    "--propagate=NOFILE,CORE",
    "-q normal",
    "--qos=high",
    "-Q",
    "--quiet",
    "-HQ",
    "-QN2",
    "-QJQ",
    "--reboot",
    "--requeue",
    "--reservation=held",
    "--signal=USR1",
    "--signal=B:TERM@120 -t 10",
    "--sockets-per-node=2",
    "--spread-job -N2",
    "--switches=1",
    "--switches=1@10:00 -N2",
    "--test-only",
    "--threads-per-core=1",
    "-t 5",
    "-t5",
    "--time=1-2:3:4",
    "--time=UNLIMITED",
    "--time=10 --time-min=5",
    "--tmp=0",
    "--use-min-nodes -N2-4",
    "--wait-all-nodes=1",
    "--wckey=key",
    "--no-requeue --requeue",
    "--requeue --no-requeue",
    "--exclusive --oversubscribe",
    "--oversubscribe --exclusive",
    "-N2 -N3 -N4",
    "--mem=1G --mem=2G",
    "-J a -J b -o x -o y",
    "-HkN2",
    "-HsOn3",
    "-c2 -- ",
    "-N1 --ntasks=2 -c3 --mem=4000 -t 1:00:00 -J all -o o-%j -e e-%j --comment=c -p gpu -x n7",
)

_NEWER: tuple[tuple[str, Release, Release | None], ...] = (
    ("--power=level", ALWAYS, (24, 5)),
    ("--get-user-env=10L", ALWAYS, (25, 5)),
    ("--container=/tmp/bundle", ALWAYS, None),
    ("--container-id=x", (23, 2), None),
    ("--extra=tag=1", (23, 2), None),
    ("--tres-per-task=cpu=2 -n2", (23, 2), None),
    ("--tres-bind=gres/gpu:none --gres=gpu:1", (23, 11), None),
    ("--oom-kill-step", (24, 11), None),
    ("--oom-kill-step=0", (24, 11), None),
    ("--resv-ports", (24, 5), None),
    ("--resv-ports=2", (24, 5), None),
    ("--segment=2 -N2", (24, 5), None),
    ("--stepmgr", (24, 5), None),
    ("--exclusive=topo", (24, 11), None),
    ("--spread-segments --segment=1 -N2", (25, 11), None),
    ("--consolidate-segments --segment=1 -N2", (25, 11), None),
    ("--requeue=expedite", (25, 11), None),
    ("--resources=x", (25, 11), None),
    ("--external", (25, 5), None),
    ("--container-type=x", (26, 5), None),
    ("--mem-update=x", (26, 5), None),
    ("--nodes=1,2", (24, 5), None),
)

# Words that sbatch or the controller refuses; tested without and with a GPU.
_REFUSED = (
    "--bogus",
    "--bogus=1",
    "-y",
    "-Hy",
    "--hold=3",
    "--exc=n1",
    "--n=1",
    "--nodes",
    "--mem=1x",
    "-t 1:2:3:4:5",
    "-t x",
    "-N 4-2",
    "-N x",
    "-n 0",
    "-c 0",
    "--nice=x",
    "-p nopart",
    "-w nonode",
    "-C nofeature",
    "-a x",
    "-a 0-99999999",
    "--gres=nosuch:1",
    "--gres=gpu:99",
    "--mem=9999999",
    "-d afterok:x",
    "--begin=never",
    "--deadline=yesterday",
    "--mail-type=bogus",
    "--signal=x",
    "--mem=1G --mem-per-cpu=1G",
    "--cpus-per-gpu=2 -c2 -G1",
    "-Q -v",
    "--uid=root",
    "--gid=0",
    "-L nolicense",
    "--reservation=nosuch",
    "-M nocluster",
    "--nodefile=nosuch.txt",
    "--bbf=nosuch.txt",
    "--open-mode=x",
    "--distribution=x",
    "--export-file=nosuch.txt",
    "--switches=x",
    "--wrap=true",
)

# --- variables -------------------------------------------------------------------------------------------------------

_VARIABLES: tuple[Mapping[str, str], ...] = (
    {"SBATCH_ACCOUNT": "acct"},
    {"SBATCH_ACCTG_FREQ": "task=10"},
    {"SBATCH_ARRAY_INX": "1-3"},
    {"SBATCH_CLUSTER_CONSTRAINT": "x"},
    {"SBATCH_CONSTRAINT": "slow"},
    {"SBATCH_CONTAINER": "/tmp/bundle"},
    {"SBATCH_CORE_SPEC": "1"},
    {"SBATCH_CPU_FREQ_REQ": "high"},
    {"SBATCH_CPUS_PER_GPU": "2"},
    {"SBATCH_DELAY_BOOT": "5"},
    {"SBATCH_DISTRIBUTION": "cyclic"},
    {"SBATCH_ERROR": "err.txt"},
    {"SBATCH_EXCLUSIVE": ""},
    {"SBATCH_EXCLUSIVE": "user"},
    {"SBATCH_EXPORT": "NONE"},
    {"SBATCH_GPU_FREQ": "low"},
    {"SBATCH_GPUS": "2"},
    {"SBATCH_GPUS_PER_NODE": "a100:1"},
    {"SBATCH_GPUS_PER_TASK": "1"},
    {"SBATCH_GRES": "gpu:3"},
    {"SBATCH_GRES_FLAGS": "enforce-binding"},
    {"SBATCH_HINT": "nomultithread"},
    {"SLURM_HINT": "nomultithread"},
    {"SBATCH_INPUT": "in.txt"},
    {"SBATCH_JOB_NAME": "from env"},
    {"SBATCH_MEM_PER_NODE": "2G"},
    {"SBATCH_MEM_PER_CPU": "100"},
    {"SBATCH_MEM_PER_GPU": "1G"},
    {"SBATCH_NETWORK": "ib"},
    {"SBATCH_NO_KILL": ""},
    {"SBATCH_NO_KILL": "off"},
    {"SBATCH_NO_REQUEUE": ""},
    {"SBATCH_NO_REQUEUE": "0"},
    {"SBATCH_NO_REQUEUE": "yes"},
    {"SBATCH_NO_REQUEUE": "no"},
    {"SBATCH_NO_REQUEUE": "1", "SBATCH_REQUEUE": ""},
    {"SBATCH_OPEN_MODE": "append"},
    {"SBATCH_OUTPUT": "o-%j"},
    {"SBATCH_OVERCOMMIT": "1"},
    {"SBATCH_PARTITION": "prerun"},
    {"SBATCH_PARTITION": "prerun", "SBATCH_TIMELIMIT": "5"},
    {"SBATCH_PROFILE": "none"},
    {"SBATCH_QOS": "normal"},
    {"SBATCH_REQ_SWITCH": "1"},
    {"SBATCH_REQ_SWITCH": "1", "SBATCH_WAIT4SWITCH": "10:00"},
    {"SBATCH_REQUEUE": ""},
    {"SBATCH_RESERVATION": "held"},
    {"SBATCH_SIGNAL": "USR1@60"},
    {"SBATCH_SPREAD_JOB": "yes"},
    {"SBATCH_SPREAD_JOB": "no"},
    {"SBATCH_THREADS_PER_CORE": "1"},
    {"SBATCH_TIMELIMIT": "7"},
    {"SBATCH_TIMELIMIT": "bogus"},
    {"SBATCH_USE_MIN_NODES": "-1"},
    {"SBATCH_WAIT": "0"},
    {"SBATCH_WAIT_ALL_NODES": "1"},
    {"SBATCH_WCKEY": "key"},
    {"SBATCH_NODES": "2", "SBATCH_NODELIST": "n1", "SBATCH_COMMENT": "no such variables"},
    {"SLURM_HOSTFILE": "hosts.txt"},
    {"SLURM_UMASK": "0077"},
    {"SLURM_EXIT_ERROR": "9"},
)

# --- scripts ---------------------------------------------------------------------------------------------------------

_LINES: tuple[str, ...] = (
    "#SBATCH -N2 -n4",
    "#SBATCH -N2\n#SBATCH -n4\n#SBATCH -c2",
    "#SBATCH --nodes=2 --comment=a#b -J x",
    "#SBATCH -J 'a b' --comment=\"c 'd' e\"",
    "#SBATCH -J a\\ b",
    '#SBATCH -J "a\\\\ b\\"c"',
    "#SBATCH -J\n#SBATCH name",
    "#SBATCH--nodes=2\n#SBATCHX",
    "#SBATCH -N2 foo",
    "#SBATCH foo",
    "#SBATCH -N2 -- foo",
    "#SBATCH -N2 --\n#SBATCH -J x",
    " #SBATCH -N2\n##SBATCH -n5\n# SBATCH -c2",
    "#SLURM -J old",
    '#SBATCH "--comment=a',
    "#SBATCH -N2 : -J x",
    "#SBATCH --bogus",
    "#SBATCH --exc=n1",
    '#SBATCH --comment="" -J x\n#SBATCH -N2',
    '#SBATCH --comment "" -J x\n#SBATCH -N2',
    "#SBATCH --help --wrap=foo -J x",
    "#SBATCH -Q --parsable",
    "#SBATCH -N2\n\t# c\n\n#SBATCH -n4\nset -e\n#SBATCH -c3",
    "#SBATCH -N2 # two\n#SBATCH -c3 #three",
    "#SBATCH -n4 \\\n#SBATCH -N2",
    "#SBATCH\t-N2\t-n4",
    "#SBATCH -HJ x",
    "#SBATCH --array=1-4%2",
    "#SBATCH --time=10\n#SBATCH --time=20",
    "#SBATCH --mem=1G\n#SBATCH -o o-%j -e e-%j",
    "#SBATCH --mem=1G --mem-per-cpu=1G",
    "#SBATCH -D /tmp",
    "#SBATCH -p prerun -t 3",
    "#SBATCH --test-only",
    "#SBATCH -N2\n#SBATCH hetjob\n#SBATCH -n3",
    "#SBATCH -N1\n#SBATCH packjob\n#SBATCH -n3",
    "#SBATCH -N1\n#SBATCH hetjob -n3 -J other\n#SBATCH hetjob\n#SBATCH -c2",
    "#PBS -l nodes=2:ppn=4\n#PBS -N pbsname",
    "#PBS -l walltime=01:00:00,mem=2gb\n#SBATCH -J x",
    "#BSUB -n 4 -J bsubname\n#BSUB -W 20",
    "#SBATCH --ignore-pbs\n#PBS -N pbsname",
    "#COBALT -n 4",
)

# How command line, environment and script rank.
_RANKS: tuple[Case, ...] = (
    Case("", "#SBATCH -p prerun -t 3", {"SBATCH_PARTITION": "gpu"}),
    Case("-p prerun -t 4", "#SBATCH -p gpu", {"SBATCH_PARTITION": "gpu"}),
    Case("-J line", "#SBATCH -J script", {"SBATCH_JOB_NAME": "environment"}),
    Case("", "#SBATCH -J script", {"SBATCH_JOB_NAME": "environment"}),
    Case("", "#SBATCH --requeue", {"SBATCH_NO_REQUEUE": "1"}),
    Case("", "#SBATCH --no-requeue", {"SBATCH_REQUEUE": ""}),
    Case("--requeue", "", {"SBATCH_NO_REQUEUE": "1"}),
    Case("", "#SBATCH --mem=1G", {"SBATCH_MEM_PER_CPU": "100"}),
    Case("", "#SBATCH --mem-per-cpu=100", {"SBATCH_MEM_PER_NODE": "1G"}),
    Case("--mem=1G", "#SBATCH --mem-per-cpu=100"),
    Case("", "", {"SBATCH_MEM_PER_CPU": "100", "SBATCH_MEM_PER_NODE": "1G"}),
    Case("", "#SBATCH -N2 -n2", {"SBATCH_TIMELIMIT": "4", "SBATCH_QOS": "q"}),
    Case("-N3", "#SBATCH -N2"),
    Case("-n4", "#SBATCH --ntasks-per-node=2 -N2"),
    Case("", "#SBATCH --oversubscribe", {"SBATCH_EXCLUSIVE": ""}),
    Case("-o line", "#SBATCH -o script", {"SBATCH_OUTPUT": "environment"}),
    Case("--gres=gpu:2", "#SBATCH --gres=gpu:4"),
    Case("", "#SBATCH --gres=gpu:4", {"SBATCH_GRES": "gpu:1"}),
    Case("-D sub", "#SBATCH -D /tmp -o o"),
    Case("--export=X=1", "#SBATCH --export=NONE", {"SBATCH_EXPORT": "ALL"}),
)

# What the script is, and what follows it.
_SCRIPTS: tuple[Case, ...] = (
    Case("-N2", script=" a.sh -c 4 --mem=9 --bogus"),
    Case("-N2", script=" ./a.sh"),
    Case("-N2", script=" sub/../a.sh x"),
    Case("-N2", script=" sub/b.sh"),
    Case("-D sub", script=" b.sh"),
    Case("", script=" a.sh : -N2 a.sh"),
    Case("", script=" -- a.sh -N2"),
    Case("", script=" nosuch.sh"),
    Case("", script=" sub"),
    Case("", script=" empty.sh"),
    Case("", script=" blank.sh"),
    Case("", script=" plain.txt"),
    Case("", script=" crlf.sh"),
    Case("", script=" nul.sh"),
    Case("", script=" unreadable.sh"),
    Case("", script=" -"),
    Case("", script=" ''"),
    Case("", script=" tool"),
    Case("", script=" 'with space.sh' '' 'a\"b' '*'"),
    Case("--wrap 'echo hi; sleep 1'", script=""),
    Case("--wrap=hostname -J wrapped -N2", script=""),
    Case("--wra='a\nb'", script=""),
    Case("--wrap=", script=""),
    Case("--wrap=true", script=" a.sh"),
    Case("", "#SBATCH -J piped -N2", script=None),
    Case("-J line", script=None),
    Case("", first="", body="", script=None),
    Case("", first="#!/usr/bin/env python3\n", body="import sys\nprint(sys.argv)\n", lines="#SBATCH -N2 -J snake"),
    Case("", first="#!/usr/bin/perl -w\n", body="print @ARGV;\n", lines="#SBATCH -n3"),
    Case("", first="#!/usr/bin/env Rscript\n", body="print(commandArgs())\n", lines="#SBATCH -c2"),
    Case("", first="#!/bin/sh -e\n", body="exit 3"),
    Case("-N1 : -N2", script=" a.sh x"),
    Case("-N1 -c2 : -n3 -J second : -c4", script=" a.sh"),
    Case("-N1 : --bogus", script=" a.sh"),
    Case("-N1 :", script=" a.sh"),
    Case("--parsable -a 1-2", "#SBATCH -N2"),
)


def with_gpu(case: Case) -> Case:
    """The same case with a GPU, so that gsub plans it."""
    return Case(
        case.words, _GPU + case.lines, case.environ, case.since, case.until, case.script,
        case.body, case.first,
    )  # fmt: skip


_CALLS: tuple[Case, ...] = (
    *(Case(words) for words in _OPTIONS),
    *(Case(words, since=since, until=until) for words, since, until in _NEWER),
    *(Case("", environ=environ) for environ in _VARIABLES),
)
_FURTHER: tuple[Case, ...] = (
    *(Case(words) for words in _REFUSED),
    *(Case("", lines) for lines in _LINES),
    *_RANKS,
    *_SCRIPTS,
)
# sbatch alone handles a call that passes through, so every third of these options is enough.
PLAIN: tuple[Case, ...] = tuple(case for case in (*_CALLS[::3], *_FURTHER) if not case.asks_for_gpu)
PLANNED: tuple[Case, ...] = tuple(with_gpu(case) for case in (*_CALLS, *_FURTHER) if case.first)
# With placement on: gsub's changes must be those that it reports, and all other fields equal.
PLACED: tuple[Case, ...] = tuple(
    with_gpu(case)
    for case in (
        *(Case(words) for words in ("", "-N2", "-N2 -c4 --mem=1000", "--exclusive", "-N4 --ntasks-per-node=2")),
        *(Case(words) for words in ("-F hosts.txt", "-w n[2-3]", "-t 5 -J x", "--array=1-3", "-Q", "--switches=2")),
        Case("", environ={"SLURM_HOSTFILE": "hosts.txt"}),
        Case("", "#SBATCH -N2 -n2 --mem=4G", {"SBATCH_REQ_SWITCH": "2"}),
        Case("-N2", script=None),
        Case("-N2 --wrap=hostname --gres=gpu:1", script=""),
    )
)
