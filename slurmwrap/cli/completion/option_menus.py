"""What completion says of each option: a few words, and where its values come from. Data.

Names, letters, arguments and releases are those of slurmwrap/sbatch/options.py; here stands only what a shell's menu
needs next to them. `values` is one word of a small language that the scripts in templates/completion understand:

    ""            nothing can be offered (a number, a time, free text)
    file, dir     a path
    template      asked of gsub, which knows the site's own
    run           a job in the queue, or one of the user's last: asked of Slurm, and of gsub, which knows them
    partition, qos, account, node, feature, reservation, cluster, license, gres, gpu, job, user, group
                  asked of Slurm or of the machine
    dependency, signal
                  a grammar of their own: afterok:ID[:ID...], B:USR1@60
    choice        one of `choices`; one that ends with = or : wants more
    ,anything     several of them, with commas between
"""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MenuWord:
    """An option as a menu shows it."""

    about: str
    values: str = ""
    choices: tuple[str, ...] = ()


def _(about: str, values: str = "", choices: str = "") -> MenuWord:
    return MenuWord(about, values, tuple(choices.split()))


_WHEN = "now+ now today tomorrow midnight noon teatime"
_LIMITS = "ALL NONE AS CORE CPU DATA FSIZE MEMLOCK NOFILE NPROC RSS STACK"
_MAIL = (
    "NONE BEGIN END FAIL REQUEUE ALL INVALID_DEPEND STAGE_OUT TIME_LIMIT TIME_LIMIT_90 TIME_LIMIT_80 TIME_LIMIT_50 "
    "ARRAY_TASKS"
)
_GOVERNORS = "low medium high highm1 conservative ondemand performance powersave schedutil userspace"

SBATCH_WORDS: dict[str, MenuWord] = {
    "account": _("charge this account", "account"),
    "acctg-freq": _("how often usage is sampled", "choice", "task= energy= network= filesystem="),
    "array": _("a job array: 0-15, 1,3,5, 0-99%4"),
    "autocomplete": _("names of options that begin so"),
    "batch": _("features of the node that runs the script", "feature"),
    "bb": _("burst buffer specification"),
    "bbf": _("file with the burst buffer specification", "file"),
    "begin": _("not before this time", "choice", _WHEN),
    "chdir": _("working directory of the job", "dir"),
    "cluster": _("the same as --clusters", ",cluster"),
    "cluster-constraint": _("features of the federated cluster"),
    "clusters": _("the cluster that can start it first", ",cluster"),
    "comment": _("free text kept with the job"),
    "consolidate-segments": _("put segments close together"),
    "constraint": _("features that the nodes must have", "feature"),
    "container": _("OCI container bundle", "dir"),
    "container-id": _("name of the container"),
    "container-type": _("type of the container"),
    "context": _("SELinux context"),
    "contiguous": _("nodes beside each other"),
    "core-spec": _("cores kept for the system"),
    "cores-per-socket": _("least cores of a socket"),
    "cpu-freq": _("frequency or governor of the CPUs", "choice", _GOVERNORS),
    "cpus-per-gpu": _("CPUs for each GPU"),
    "cpus-per-task": _("CPUs for each task"),
    "deadline": _("remove the job if it cannot end by then", "choice", _WHEN),
    "delay-boot": _("minutes to wait for nodes with the features"),
    "dependency": _("wait for other jobs", "dependency"),
    "distribution": _("how tasks go to nodes and sockets", "choice", "block cyclic arbitrary plane="),
    "error": _("file for stderr; %j is the job id", "file"),
    "exclude": _("nodes not to use", ",node"),
    "exclusive": _("share nodes with no other job", "choice", "user mcs"),
    "export": _("variables that the job gets", ",choice", "ALL NONE NIL"),
    "export-file": _("file with variables for the job", "file"),
    "external": _("a job without a script"),
    "extra": _("free text for plugins"),
    "extra-node-info": _("sockets[:cores[:threads]] of the nodes"),
    "get-user-env": _("environment of a login of the user"),
    "gid": _("submit for this group (root)", "group"),
    "gpu-bind": _(
        "which GPU a task sees", "choice", "closest none per_task: single: map_gpu: mask_gpu: verbose,closest"
    ),
    "gpu-freq": _("frequency of the GPUs", ",choice", "low medium high highm1 memory= verbose"),
    "gpus": _("GPUs of the whole job", ",gpu"),
    "gpus-per-node": _("GPUs of each node", ",gpu"),
    "gpus-per-socket": _("GPUs of each socket", ",gpu"),
    "gpus-per-task": _("GPUs of each task", ",gpu"),
    "gres": _("generic resources of each node", ",gres"),
    "gres-flags": _("how generic resources are bound", ",choice", "disable-binding enforce-binding"),
    "help": _("show help"),
    "hint": _("kind of application", "choice", "compute_bound memory_bound multithread nomultithread help"),
    "hold": _("submit held"),
    "ignore-pbs": _("ignore #PBS and #BSUB lines"),
    "input": _("file for stdin", "file"),
    "job-name": _("name of the job"),
    "kill-on-invalid-dep": _("end the job when its dependency cannot come", "choice", "yes no"),
    "licenses": _("licenses that it takes", ",license"),
    "mail-type": _("when to send mail", ",choice", _MAIL),
    "mail-user": _("who gets the mail", "user"),
    "mcs-label": _("label for multi-category security"),
    "mem": _("memory of each node: 180G"),
    "mem-bind": _(
        "how memory is bound", ",choice", "local none map_mem: mask_mem: rank sort nosort prefer verbose quiet"
    ),
    "mem-per-cpu": _("memory for each CPU"),
    "mem-per-gpu": _("memory for each GPU"),
    "mem-update": _("memory later in the job"),
    "mincpus": _("least CPUs of a node"),
    "network": _("what the network is asked for"),
    "nice": _("lower priority by so much"),
    "no-kill": _("go on when a node fails", "choice", "off"),
    "no-requeue": _("never requeue it"),
    "nodefile": _("file with the nodes to use", "file"),
    "nodelist": _("nodes to use", ",node"),
    "nodes": _("how many nodes: 2, 2-4"),
    "ntasks": _("how many tasks"),
    "ntasks-per-core": _("tasks of each core"),
    "ntasks-per-gpu": _("tasks for each GPU"),
    "ntasks-per-node": _("tasks of each node"),
    "ntasks-per-socket": _("tasks of each socket"),
    "ntasks-per-tres": _("tasks for each of a resource"),
    "oom-kill-step": _("kill the whole step on out of memory", "choice", "0 1"),
    "open-mode": _("what becomes of output files that exist", "choice", "append truncate"),
    "output": _("file for stdout; %j is the job id", "file"),
    "overcommit": _("more tasks than CPUs"),
    "oversubscribe": _("share resources with other jobs"),
    "parsable": _("print the job id only"),
    "partition": _("partition to run in", ",partition"),
    "power": _("power management", "choice", "level"),
    "prefer": _("features that the nodes should have", "feature"),
    "priority": _("a priority of its own (operators)"),
    "profile": _("data gathered into HDF5 files", ",choice", "all none energy task filesystem network"),
    "propagate": _("resource limits to take along", ",choice", _LIMITS),
    "qos": _("quality of service", "qos"),
    "quiet": _("print nothing but errors"),
    "reboot": _("reboot the nodes first"),
    "requeue": _("requeue it after node failure or preemption"),
    "reservation": _("use this reservation", ",reservation"),
    "resources": _("predefined resources"),
    "resv-ports": _("communication ports to reserve"),
    "segment": _("nodes in each segment"),
    "signal": _("signal before the time limit: B:USR1@60", "signal"),
    "sockets-per-node": _("least sockets of a node"),
    "spread-job": _("over as many nodes as possible"),
    "spread-segments": _("put segments far apart"),
    "stepmgr": _("manage the steps on the job's nodes"),
    "switches": _("leaf switches at most: 1@30:00"),
    "tasks-per-node": _("the same as --ntasks-per-node"),
    "test-only": _("say when it would start; submit nothing"),
    "thread-spec": _("threads kept for the system"),
    "threads-per-core": _("least threads of a core"),
    "time": _("time limit: minutes, h:m:s, d-h:m:s"),
    "time-min": _("least time limit that will do"),
    "tmp": _("least temporary disk of a node"),
    "tres-bind": _("how resources are bound to tasks", "choice", "gres/gpu:"),
    "tres-per-task": _("resources for each task", ",choice", "cpu= mem= gres/gpu= gres/gpu: license/"),
    "uid": _("submit for this user (root)", "user"),
    "usage": _("show the usage in short"),
    "use-min-nodes": _("the least number of nodes"),
    "verbose": _("say more"),
    "version": _("show Slurm's version"),
    "wait": _("until the job has ended; its exit code"),
    "wait-all-nodes": _("start when all nodes are ready", "choice", "0 1"),
    "wckey": _("workload characterization key"),
    "wrap": _("a command in place of a script"),
}

OWN_WORDS: dict[str, MenuWord] = {
    "prerun": _("what the pre-run does", "choice"),  # its choices are in the option table
    "prerun-gpus": _("GPUs of the pre-run"),
    "prerun-steps": _("training steps that the pre-run must reach"),
    "prerun-command": _("what the pre-run runs in place of the script"),
    "count-steps": _("count the steps of the real job"),
    "resource-profile": _("keep what is learnt under this name"),
    "retry": _("retry failures that are not the job's own"),
    "no-retry": _("never retry it"),
    "no-tune": _("leave CPUs and memory as asked"),
    "no-place": _("leave nodes and switches as asked"),
    "dry-run": _("show the rewritten script; submit nothing"),
    "explain": _("show what is changed, and why"),
    "force": _("submit although a check refuses"),
    "json": _("with --prerun=only: the verdict as JSON"),
    "template": _("make the script from this template", "template"),
    "values": _("with --template=array: a task for each of them"),
}

# Taken when typed, but not offered: sbatch's second names of options, and what is for Slurm's own completion.
NOT_OFFERED: frozenset[str] = frozenset({"autocomplete", "cluster", "tasks-per-node"})
