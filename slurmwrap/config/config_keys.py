"""The meaning, unit and readers of every configuration key. Pure.

docs/configuration.md, `slurmwrap config template` and `slurmwrap config show` are generated from this module. Defaults
and allowed values come from the records and bounds in config_defaults.py. A test checks that both have the same keys.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from slurmwrap.config.config_defaults import BOUNDS, CHOICES, SECRETS, Config
from slurmwrap.config.load_config import NOUNS, make_variable_name
from slurmwrap.fast_dataclasses import dataclass

# MEANINGS: section → key → (reader, unit, description). The reader is a value of KeyReader.
_G, _R, _S = "gsub", "reconcile", "site"

SECTIONS: Mapping[str, str] = {
    "": "Above the first [section].",
    "submit": "Which calls gsub handles itself (docs/dropin.md). Patterns are the shell's: `debug*`, `[ab]?`.",
    "prerun": "The pre-run of a job on one GPU (docs/prerun.md).",
    "pack": "Several tasks of an array on one GPU, `gsub --pack` (docs/packing.md).",
    "placement": "Where jobs go (docs/placement.md).",
    "tuning": "CPUs and memory from resource profiles (docs/placement.md, docs/profile.md).",
    "share": "Jobs of one user that share a GPU: gsub --share (docs/sharing.md).",
    "order": "The order of waiting jobs by predicted run times: rule `order` (docs/scheduling.md).",
    "limit": "Time limits of waiting jobs by their earlier runs: rule `limit` (docs/scheduling.md).",
    "early": "What is found about gsub's jobs while they run, and after which time: rule `early` (docs/running.md).",
    "move": "Which running jobs are moved at a checkpoint, by consent: rule `move` (docs/moving.md).",
    "retry": "Retries of failed jobs and their limits (docs/retries.md).",
    "site": "What the administrator installed. Where these are empty, slurmwrap works for each user's own jobs only.",
    "slurm": "How the reconciler talks to Slurm (docs/pyslurm.md). gsub always uses the commands.",
    "mail": "Mail to the owner of a job that failed finally, and mail of the night report.",
    "notify": "Messages to a chat or another web server about failed and running jobs (docs/notifications.md).",
    "diagnosis": "How failures are classified (docs/diagnosis.md).",
    "incidents": "When failures of several jobs are one incident, and how its retries wait (docs/incidents.md).",
    "nodes": "When a node is suspect, and when it is a lemon (docs/nodes.md).",
    "report": "The night report of the site.",
    "metrics": "Figures for monitoring, for node_exporter's textfile collector (docs/metrics.md).",
    "log": "Where the reconciler's log goes.",
    "retention": "How long the site's database keeps its rows (docs/database.md).",
    "rules": """What each rule may do (docs/retries.md): `observe` records, `advise` shows the advice, `act` changes
        Slurm. Switch a rule to act when the report has shown how often its advice was right. Without a site's
        reconciler, retry, retry_elsewhere and resize act on a user's own jobs of --retry unless a mode is set.""",
}

MEANINGS: Mapping[str, Mapping[str, tuple[str, str, str]]] = {
    "": {
        "slurm_timeout_s": (
            _G,
            "seconds",
            "How long one command of Slurm may take before Slurm counts as unreachable.",
        ),
    },
    "submit": {
        "enabled": (_G, "", "Whether gsub handles jobs at all; false passes every call to sbatch unchanged."),
        "array_threshold": (
            _G,
            "tasks",
            "Arrays with more tasks are passed to sbatch unchanged; 0: gsub handles arrays of any size.",
        ),
        "pass_partitions": (
            _G,
            "",
            "Jobs for these partitions, for example interactive ones, are passed to sbatch unchanged.",
        ),
        "pass_accounts": (_G, "", "Jobs of these accounts are passed to sbatch unchanged."),
        "pass_qos": (_G, "", "Jobs with one of these QOS are passed to sbatch unchanged."),
        "pass_users": (_G, "", "Jobs of these users are passed to sbatch unchanged."),
        "snapshot_kept_s": (
            _G,
            "seconds",
            """How long a user's later calls reuse the node data of an earlier call, so that a loop of gsub costs the
            controller little more than a loop of sbatch. Partitions, limits and topology are kept six times as long;
            0: every call reads.""",
        ),
        "templates": (
            _G,
            "",
            "The site's own launch templates. They replace shipped ones of the same name (docs/templates.md).",
        ),
    },
    "prerun": {
        "mode": (
            _G,
            "",
            """How the job waits for its pre-run: auto: until it ends, at most grace_s; gate: without a limit; wait: the
            job is submitted after it; only: no job is submitted; off: no pre-run.""",
        ),
        "partition": (_G, "", "The partition of pre-runs; empty: the job's own."),
        "grace_s": (
            _G,
            "seconds",
            "The longest time that the job waits for its pre-run, even if the pre-run never starts or is lost.",
        ),
        "time_limit_s": (_G, "seconds", "The time limit of a pre-run."),
        "steps": (_G, "optimizer steps", "A pre-run passes after this many steps."),
        "select": (
            _G,
            "",
            """Which jobs that may fail have a pre-run: value: those for which it is expected to save more GPU time than
            it costs (docs/prerun-reference.md); all: all of them.""",
        ),
        "min_gpus": (_G, "GPUs", "Jobs with fewer GPUs have no pre-run, unless their users ask for one."),
        "wait_weight": (
            _G,
            "GPU-seconds per second",
            """What one second of delay costs, for a job that could start at once, when the value of a pre-run is
            estimated; 0: the delay costs nothing.""",
        ),
        "profile_s": (
            _G,
            "seconds",
            "How long a pre-run may continue to measure the CPU curve of an unknown job; 0: only on request.",
        ),
        "rehearse_s": (
            _G,
            "seconds",
            """How long a pre-run may go on after its steps with shortened epochs, so that validation, checkpoints and
            the end of the program are executed; 0: it stops after its steps.""",
        ),
        "sweep_s": (
            _G,
            "seconds",
            """How long, counted from its start, a pre-run for several jobs of a sweep continues after a pass: it tries
            the jobs with other arguments one after the other; 0: one pass releases all.""",
        ),
        "holdout": (
            _G,
            "share of jobs",
            """This share of jobs, chosen at random, has no pre-run, so that the report can measure what pre-runs save;
            0.05 is enough for most sites, 0: none.""",
        ),
        "overlay": (
            _G,
            "",
            "A private overlay over the user's directories, where namespaces allow it: a pre-run then leaves no files.",
        ),
        "inputs": (
            _G,
            "",
            """Whether a job without GPUs reads the input files of a pre-run's job completely: auto: while that job
            cannot start yet; all: always, and after the start it only reports; off: never.""",
        ),
        "inputs_partition": (_G, "", "The partition of the jobs that read input files; empty: that of the pre-run."),
        "inputs_limit_s": (_G, "seconds", "The time limit of a job that reads input files."),
        "inputs_mib_s": (_G, "MiB/s", "The rate at which such a job reads at most; 0: no limit."),
        "no_training_s": (
            _G,
            "seconds",
            """How long a pre-run waits for an error of a program that does not train: evaluation, generation, a server.
            Its job starts then; for programs that may train `time_limit_s` applies.""",
        ),
        "no_activity_s": (
            _G,
            "seconds",
            """How long a pre-run continues without any activity: no training step, no output, no use of CPU, GPU, disk
            and network. Its job starts then.""",
        ),
        "no_training_programs": (
            _G,
            "",
            """Servers and tools in addition to those that slurmwrap knows (docs/prerun.md): a script that starts
            nothing else has no pre-run. The first words of a command, each a shell pattern: `my-server`,
            `myapp serve`, `python -m myapp.*`.""",
        ),
        "caches": (
            _G,
            "",
            """Caches that a pre-run writes to directly, so that its job need not download again. Each entry lists the
            places where a tool looks; the first that is set counts. []: none.""",
        ),
    },
    "pack": {
        "measure_s": (
            _G,
            "seconds",
            """How long the pre-run of --pack=auto runs each number of members side by side (1, 2, 4, ...) to measure
            their speeds; 0: nothing is measured, and the profile alone decides.""",
        ),
        "least_gain": (
            _G,
            "times the speed of one",
            "--pack=auto packs members only if all of them together were measured to be at least so fast.",
        ),
        "separate_gain": (
            _G,
            "times the speed of one",
            """Members of a job of --pack=auto that together are slower than this for separate_s run one after the other
            from then on; 0: never.""",
        ),
        "separate_s": (_G, "seconds", "How long members must be that slow together before they are separated."),
        "memory_near": (
            _G,
            "share of the memory limit",
            """From this use of a packed task's memory on, the member that exceeds its share most is ended, if several
            run; 0: the kernel alone decides.""",
        ),
    },
    "placement": {
        "enabled": (_G, "", "Whether gsub plans where jobs run."),
        "switch_wait_s": (
            _G,
            "seconds",
            "How long a job insists on few switches (--switches=N@this; Slurm cuts it to its max_switch_wait).",
        ),
        "exclude_cap": (
            _G,
            "share of nodes",
            "The largest share of a partition's nodes that slurmwrap excludes or drains.",
        ),
        "skew_limit": (_G, "ratio", "Only models with a larger share in one tensor insist on nodes close together."),
        "network_gbit_s": (
            _G,
            "Gbit/s",
            """Speed of the network of one node, all its ports together, in one direction. With it the time that a model
            loses on several nodes is predicted. 0: unknown.""",
        ),
        "gpu_link_gbit_s": (
            _G,
            "Gbit/s",
            "Speed of the link between the GPUs of a node, of one GPU in one direction. 0: assumed by the GPU's type.",
        ),
        "topology_file": (_G, "", "The site's own description of racks, where Slurm knows no topology."),
        "topology_features": (
            _G,
            "",
            'Prefixes of node features that name domains, widest last: "rack,row" for rack1 and row3; empty: none.',
        ),
        "pin_s": (
            _R,
            "seconds",
            "How long a job may insist on the nodes that were free when it was planned; 0: never.",
        ),
        "relax_jobs": (_R, "jobs", "For how many waiting jobs at the head of the queue locality is relaxed."),
        "relax_updates_per_s": (_R, "per second", "The largest number of updates of waiting jobs that slurmctld gets."),
    },
    "tuning": {
        "enabled": (_G, "", "Whether CPUs and memory follow the job's resource profile."),
        "memory_margin": (_G, "factor", "Memory requested, as a multiple of the measured peak (without page cache)."),
        "memory_floor_mib": (_G, "MiB", "Memory is never set below this."),
        "runs_before_shrink": (_G, "runs", "Complete runs needed before memory goes below what the user asked for."),
        "policy": (_G, "", "How waiting jobs share CPUs and memory."),
        "assumed_run_s": (
            _G,
            "seconds",
            """Run time assumed for a job without an earlier run. A job waits for more CPUs than its share for at most
            half of the time that they would save; 0: it never waits for them.""",
        ),
    },
    "share": {
        "enabled": (_G, "", "Whether users may submit with --share."),
        "look_s": (_G, "seconds", "How often a running job looks for one to share its GPU with, and for changes."),
        "lease_s": (
            _G,
            "seconds",
            """How far ahead the start of a job is moved while it runs on the GPU of another one. It starts by itself so
            much later if that one is lost.""",
        ),
        "shards": (
            _G,
            "",
            """Whether a job of --share asks for gres/shard in place of a GPU, where nodes have it. Then it also shares
            the GPU with jobs of other users, and Slurm does not limit what each uses of it.""",
        ),
    },
    "order": {
        "index": (
            _R,
            "",
            """By what waiting jobs are ordered: shortest: predicted run time times GPUs; gittins: the Gittins index of
            the predicted distribution; las: what earlier runs of a requeued job used; srtf: shortest, with the time
            that is left for jobs that resume.""",
        ),
        "within": (_R, "", "Which waiting jobs are compared: those of one partition, one account or one user."),
        "classes": (_R, "classes", "Number of classes of the order; a job changes its priority only with its class."),
        "band": (
            _R,
            "priority points",
            "By how much the order may change a priority; 0: a tenth of the sum of the site's PriorityWeight settings.",
        ),
        "most_wait_s": (
            _R,
            "seconds",
            """A job that has waited so long, and four times as long as it is predicted to run (7 days at most), enters
            the first class.""",
        ),
    },
    "limit": {
        "runs": (_R, "runs", "Complete runs of a job's key that are needed before its time limit is lowered."),
        "factor": (_R, "factor", "The limit of a waiting job, as a multiple of the predicted 90th percentile."),
        "least_s": (_R, "seconds", "No time limit is set below this."),
        "at_start": (
            _R,
            "",
            """What happens when such a job starts: restore: it gets its user's limit back; keep: the limit is extended
            in steps, up to its user's.""",
        ),
        "extend_s": (
            _R,
            "seconds",
            """By how much the time limit of a running job that resumes from checkpoints may be extended beyond its
            user's, once, up to its next checkpoint. 0: never; such a job ends after its last checkpoint.""",
        ),
    },
    "early": {
        "every_s": (_R, "seconds", "Least time between two looks at the output and the steps of one running job."),
        "jobs": (_R, "jobs", "Running jobs that are looked at in one pass; 0: none."),
        "cpu_share": (
            _R,
            "of one core, 0 to 1",
            "CPU time that the looks may take in the long run; further jobs are looked at later.",
        ),
        "diverged_rows": (
            _R,
            "rows",
            "A job has diverged if its last rows with a training loss, at least so many, are NaN or infinite.",
        ),
        "diverged_s": (
            _R,
            "seconds",
            """How long that must last; five times as long and four times as many rows if no finite loss was seen
            before: some programs print NaN until they have the first values.""",
        ),
        "dead_s": (
            _R,
            "seconds",
            "A job is partly dead if one of its ranks ended with an error and it makes no step for so long afterwards.",
        ),
        "stuck_s": (
            _R,
            "seconds",
            """A job is stuck if it makes no step for so long, and for stuck_gaps times its own usual gap, and no GPU is
            used; three times as long if its last rows say what it does, if other output goes on or its GPUs' use is not
            known.""",
        ),
        "stuck_gaps": (_R, "factor", "See stuck_s: multiple of the 99th percentile of the gaps between its steps."),
        "idle_s": (_R, "seconds", "A job has idle GPUs if no process runs on one of them for so long."),
        "unused_s": (_R, "seconds", "The same if one of its GPUs is used and another one is not for so long."),
        "forecast_s": (
            _R,
            "seconds",
            "A job without a checkpoint will not finish if its progress says so for so long, with a margin of a fifth.",
        ),
    },
    "move": {
        "gain_factor": (
            _R,
            "factor",
            "A job is moved only if that gains so many times the work since its last checkpoint and its restart.",
        ),
        "every_s": (_R, "seconds", "Least time between two moves of one job, also of moves that were given up."),
        "gpu_share": (
            _R,
            "share of all GPUs",
            "GPUs whose jobs may be moved at the same time; one job always may be.",
        ),
        "last_share": (_R, "share of a run", "A job is not moved in the last part of its expected run time."),
        "most_jobs": (_R, "jobs", "Jobs that are moved together so that one waiting job can start."),
        "slowdown": (
            _R,
            "factor",
            "A run that is so many times slower than its resource profile is moved to other nodes.",
        ),
        "look_s": (_R, "seconds", "Least time between two looks at the checkpoints of one running job."),
        "wait_s": (
            _R,
            "seconds",
            """How long a job that gets no signal may take to its next checkpoint; without one until then, it is not
            moved.""",
        ),
        "headstart_s": (
            _R,
            "seconds",
            "How long a moved job stays out of the queue, so that the job for which it was moved starts first.",
        ),
        "lost_s": (
            _R,
            "seconds",
            "A job that began again before its checkpoint after moves is no longer moved once it lost so much time.",
        ),
    },
    "retry": {
        "default": (_G, "", "Whether a job that was submitted with neither --retry nor --no-retry is retried."),
        "per_root_cause": (_R, "retries", "Retries of one job for one root cause."),
        "confirmations": (_R, "retries", "Retries that confirm the blame where an input or a node is blamed."),
        "resize_memory_factor": (_R, "factor", "How much more memory the retry of a job gets that ran out of memory."),
        "resize_time_factor": (_R, "factor", "How much more time the retry of a job gets that is known to resume."),
        "backoff_s": (_R, "seconds", "The wait before a retry; it grows with each retry."),
        "max_restarts": (
            _R,
            "failures",
            "Failures of one job (no preemptions) after which there is no retry, whatever its progress; 0: no cap.",
        ),
        "max_lost_gpu_hours": (
            _R,
            "GPU-hours",
            "GPU-hours of a job's failed runs, less what resumed runs kept, after which there is no retry; 0: no cap.",
        ),
        "max_per_hour": (_R, "retries", "Retries of all jobs together; further ones start later; 0: no limit."),
        "own_job": (
            _G,
            "",
            "Without a site's reconciler: whether gsub --retry submits a small job that retries a failed job.",
        ),
        "partition": (_G, "", "The partition of these small jobs, such as one without GPUs; empty: the job's own."),
    },
    "site": {
        "spool": (_G, "", "The directory shared by nodes and controller where observations arrive, mode 1733."),
        "published": (_G, "", "The world-readable directory of node health and encrypted diagnoses."),
        "state_dir": (
            _R,
            "",
            "SlurmUser's own directory on the controller: the site's database, the controller's records.",
        ),
        "munge_socket": (_G, "", "munged's socket; empty: MUNGE's default."),
        "dcgmi": (
            _G,
            "",
            """The path of DCGM's client on the nodes, /usr/bin/dcgmi, for the shares of GPUs before Hopper
            (docs/profile.md) and for the check of a node (docs/nodes.md); empty: DCGM is not asked. While it is asked,
            users' profilers (Nsight) fail there. The nodes get it with `slurmwrap hooks install`.""",
        ),
        "slurm_user": (
            _G,
            "",
            "The user trusted besides root; empty: the reconciler asks Slurm for SlurmUser, gsub trusts only root.",
        ),
    },
    "slurm": {
        "adapter": (
            _R,
            "",
            "auto: PySlurm where it is installed, matches Slurm's release and was tested with it, else the commands.",
        ),
    },
    "mail": {
        "server": (_S, "", "host or host:port of an SMTP server that takes mail without a login; empty: none is sent."),
        "sender": (_S, "", "The address that mail comes from."),
        "to": (_S, "", 'The address that mail goes to, with {user} for the owner\'s name: "{user}@example.org".'),
    },
    "notify": {
        "url": (
            _R,
            "",
            """Where messages go: the https:// address of an incoming webhook, or the absolute path of a file that holds
            it. The address is a secret; it is never shown.""",
        ),
        "format": (_R, "", "Format of the messages; auto: by the address, and json for an unknown one."),
        "proxy": (_R, "", "host:port of an HTTP proxy through which the address is reached; empty: directly."),
        "per_hour": (_R, "messages", "At most so many messages about running jobs per user, the last one a summary."),
        "show_evidence": (
            _R,
            "",
            """Whether messages to the site's address contain job names, log lines and reports. Those to a user's own
            address always do.""",
        ),
    },
    "diagnosis": {
        "signatures": (_R, "", "The site's own file of signatures, in addition to the shipped ones."),
    },
    "incidents": {
        "window_s": (_R, "seconds", "Failures further apart than this are not related."),
        "min_jobs": (_R, "jobs", "At least so many jobs failed, ..."),
        "min_users": (
            _R,
            "users",
            "... of at least so many users (many failures of one user are that user's own problem), ...",
        ),
        "min_nodes": (_R, "nodes", "... or kernel, NVML or Slurm report so many nodes."),
        "quiet_s": (_R, "seconds", "The incident is over when no run failed of it for so long."),
        "spread_s": (_R, "seconds", "After its end its retries start spread over this time, not all at once."),
        "max_s": (
            _R,
            "seconds",
            "The longest time that an incident lasts, even if runs still fail; then retries continue.",
        ),
    },
    "nodes": {
        "window_days": (_R, "days", "How far back a node's faults count (28 in Kokolis et al. 2024)."),
        "suspect_ratio": (_R, "times the fleet's rate", "From this rate of faults a node is suspect."),
        "lemon_ratio": (_R, "times the fleet's rate", "From this rate of faults a node is a lemon."),
        "suspect_jobs": (
            _R,
            "jobs",
            "Faults of a suspect node hit so many distinct jobs, or a conclusive fault hit one.",
        ),
        "lemon_jobs": (_R, "jobs", "Faults of a lemon hit so many distinct jobs, ..."),
        "lemon_users": (_R, "users", "... of so many distinct users."),
        "prior": (
            _R,
            "faults",
            """How much evidence it takes to move a node from the fleet's rate; a higher value asks for more evidence
            against nodes that ran little.""",
        ),
        "repair_discount": (_R, "weight", "The weight of a fault from before a repair."),
        "relapse_factor": (_R, "weight", "The weight of a fault after a repair."),
        "check_mounts": (_S, "", "The mount points that must answer in `slurmwrap nodes check`: /home, /scratch."),
        "check_skip": (_S, "", "The parts of that check that are not made, by their names in its output."),
        "check_s": (_S, "seconds", "The time for all parts of that check on one node."),
    },
    "report": {
        "to": (_S, "", "The addresses that get the night report by [mail], separated by commas; empty: no mail."),
        "directory": (_S, "", "The directory of its pages, one per day; empty: reports below site.state_dir."),
        "keep_d": (_S, "days", "How long pages are kept."),
    },
    "metrics": {
        "textfile": (
            _S,
            "",
            """The file that the reconciler writes, for example /var/lib/prometheus/node-exporter/slurmwrap.prom; empty:
            none.""",
        ),
        "every_s": (_S, "seconds", "How often the file is written."),
    },
    "log": {
        "to": (_R, "", "auto: journald with fields where the reconciler runs as a systemd service, else stderr."),
    },
    "retention": {
        "detail_d": (
            _S,
            "days",
            "How long details are kept: records of hooks, log lines, plans. Node scores and retries use them.",
        ),
        "keep_d": (_S, "days", "How long runs are kept, with their diagnosis and decision."),
    },
    "rules": {
        "retry": (_R, "", "Start a failed job again."),
        "retry_elsewhere": (_R, "", "Start it again with the blamed node excluded."),
        "resize": (_R, "", "Start it again with more memory or time."),
        "drain": (_R, "", "Drain a node with a conclusive fault, and resume it when it is repaired."),
        "block_input": (_R, "", "Refuse jobs that read an input that made jobs fail."),
        "gate": (_S, "", "Permit the nodes' Prolog to refuse a node with a conclusive fault (docs/hooks.md)."),
        "relax": (_R, "", "Relax the locality that a waiting job asks for."),
        "tune": (_R, "", "Change CPUs and memory of waiting jobs by their present resource profiles."),
        "order": (_R, "", "Order waiting jobs of gsub by their predicted run times, within a band of the priority."),
        "limit": (_R, "", "Lower the time limits of waiting jobs to what their earlier runs needed."),
        "early": (
            _R,
            "",
            """Find jobs that are diverged, partly dead, stuck, idle or will not finish while they run. act: cancel or
            requeue those of --retry, if more than their output shows it.""",
        ),
        "move": (
            _R,
            "",
            """Take running jobs of --preemptible from their GPUs at a checkpoint, where others gain much more by that
            (docs/moving.md).""",
        ),
        "resume": (
            _S,
            "",
            """Lift a drain of slurmwrap's whose node was rebooted since, if `slurmwrap nodes check` passes
            (docs/nodes.md).""",
        ),
    },
}


class KeyReader(Enum):
    """The programs that read a key. They determine what the key does in a user's own file."""

    GSUB = "gsub"
    RECONCILE = "reconcile"
    SITE = "site"

    @property
    def in_a_users_file(self) -> str:
        """The effect of the key there, in two words; docs/configuration.md explains them."""
        return _IN_A_USERS_FILE[self]

    @property
    def sentence(self) -> str:
        """The effect as a sentence, for output without that explanation."""
        return _SENTENCES[self]


_IN_A_USERS_FILE = {KeyReader.GSUB: "their jobs", KeyReader.RECONCILE: "their reconcile", KeyReader.SITE: "nothing"}
_SENTENCES = {
    KeyReader.GSUB: "In a user's own file it applies to their own submissions.",
    KeyReader.RECONCILE: "In a user's own file it applies when they run `slurmwrap reconcile`.",
    KeyReader.SITE: "In a user's own file it does nothing: only the site's own processes use it.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One configuration key. `default` is a string, a number, a boolean or a tuple of strings."""

    name: str  # "prerun.grace_s"; "slurm_timeout_s" is in no section
    default: Any
    unit: str  # "seconds"; "" if it has none
    text: str  # the description, with its full stop
    reader: KeyReader

    @property
    def section(self) -> str:
        """The name of the section; "" for a key above all sections."""
        return self.name.rpartition(".")[0]

    @property
    def word(self) -> str:
        """The name within its section."""
        return self.name.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return make_variable_name(self.name)

    @property
    def allowed(self) -> str:
        """The allowed values: `one of auto, off`, `a whole number from 1 to 60`, `text`."""
        if self.name in CHOICES:
            return f"one of {', '.join(CHOICES[self.name])}"
        noun = NOUNS.get(type(self.default), "text")
        if self.name not in BOUNDS:
            return noun
        least, most = BOUNDS[self.name]
        return f"{noun} from {_format_number(least)} to {_format_number(most)}"


def list_keys() -> tuple[Key, ...]:
    """Return all keys, in the order of docs/configuration.md and the template."""
    return tuple(_make_key(section, name) for section, names in MEANINGS.items() for name in names)


def describe_section(section: str) -> str:
    """Return one or two sentences about a section; "" for an unknown one."""
    return SECTIONS.get(section, "")


def get_value(config: Config, name: str) -> Any:
    """Return the value of a key in `config`."""
    section, _, word = name.rpartition(".")
    if section == "rules":
        return config.mode_of(word)
    return getattr(getattr(config, section) if section else config, word)


def hide_secret(name: str, value: Any) -> Any:
    """Return the value of a key as it may be shown: of a secret address the scheme and the host, else the value.

    An absolute path is no secret: it names the file that holds one.
    """
    if name not in SECRETS or not value or value.startswith("/"):
        return value
    with suppress(ValueError):
        parts = urlsplit(value)
        if parts.scheme in ("http", "https") and parts.hostname:
            return f"{parts.scheme}://{parts.hostname}/…"
    return "…"


def format_toml(value: Any) -> str:
    """Return a value in TOML syntax."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(format_toml(one) for one in value)}]"
    return _quote_toml(value) if isinstance(value, str) else _format_number(value)


def _make_key(section: str, name: str) -> Key:
    reader, unit, text = _parse_meaning(MEANINGS[section][name])
    full = f"{section}.{name}" if section else name
    return Key(name=full, default=get_value(Config(), full), unit=unit, text=text, reader=reader)


def _parse_meaning(meaning: tuple[str, str, str]) -> tuple[KeyReader, str, str]:
    return KeyReader(meaning[0]), meaning[1], " ".join(meaning[2].split())


def _quote_toml(text: str) -> str:
    """Return a TOML basic string."""
    escaped = "".join(_ESCAPED.get(c) or (c if c.isprintable() else f"\\u{ord(c):04x}") for c in text)
    return f'"{escaped}"'


_ESCAPED: Mapping[str, str] = {'"': '\\"', "\\": "\\\\", "\t": "\\t", "\n": "\\n"}


def _format_number(value: float) -> str:
    """Return plain digits, never 1e+09: they are easier to read, and a TOML integer has no exponent."""
    return str(int(value)) if isinstance(value, int) or value >= 1e6 else repr(value)


# The template of a configuration file and the Markdown reference, both generated from MEANINGS.
_WIDE = 80
_HEAD = """\
slurmwrap's configuration. The site's is /etc/slurmwrap/config.toml, a user's own
~/.config/slurmwrap/config.toml overrides it, and variables such as SLURMWRAP_PRERUN_STEPS override both.
Every key is here with its default; remove the "#" in front of a key that you change.
`slurmwrap config check FILE` reports mistakes, `slurmwrap config show` the values in force and their sources.
"""


def make_template() -> str:
    """Return a complete config.toml. Every key is a comment with its default, so that the file changes nothing."""
    blocks = ["\n".join(_format_comment(_HEAD))]
    for section in dict.fromkeys(key.section for key in list_keys()):
        title = [f"[{section}]"] if section else []
        blocks.append("\n".join([*_format_comment(describe_section(section)), *title]))
        blocks += ["\n".join(_explain_key(key)) for key in list_keys() if key.section == section]
    return "\n\n".join(blocks) + "\n"


def _explain_key(key: Key) -> list[str]:
    description = f"{key.text} {_capitalize(_format_terms(key))}."
    return [*_format_comment(description), f"#{key.word} = {format_toml(key.default)}"]


def _format_terms(key: Key) -> str:
    return f"{key.unit}, {key.allowed}" if key.unit else key.allowed


def _format_comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), _WIDE - 2, break_on_hyphens=False)]


def format_reference() -> str:
    """Return the tables of docs/configuration.md, one per section, in Markdown."""
    return "\n\n".join(_format_section(section) for section in dict.fromkeys(key.section for key in list_keys()))


def _format_section(section: str) -> str:
    title = f"### [{section}]" if section else "### Above all sections"
    rows = [
        _format_row(("key", "default", "unit", "allowed", "what it does", "in a user's own file")),
        _format_row(("---",) * 6),
    ]
    rows += [_format_row(_list_cells(key)) for key in list_keys() if key.section == section]
    return f"{title}\n\n{' '.join(describe_section(section).split())}\n\n" + "\n".join(rows)


def _list_cells(key: Key) -> Iterator[str]:
    yield f"`{key.word}`"
    yield f"`{format_toml(key.default)}`"
    yield key.unit
    yield key.allowed
    yield key.text.replace("|", "\\|")
    yield key.reader.in_a_users_file


def _format_row(cells: Iterator[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
