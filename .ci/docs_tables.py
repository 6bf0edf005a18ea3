"""Tables of the reference that cannot be generated from the code: environment variables, files and directories.

tests/docs/test_reference.py fails unless the tables have exactly the variables that the code names.
"""

from __future__ import annotations

# Without the variables of gsub's options, which docs_reference.py takes from the option table.
FOR_PEOPLE: dict[str, str] = {
    "GSUB_PASS": "`1`: gsub is plain sbatch, whatever the job asks for ([more](../dropin.md))",
    "GSUB_SBATCH": "the path of Slurm's own sbatch, where PATH does not lead to it",
    "SLURMWRAP_CONFIG": "the site's configuration file instead of `/etc/slurmwrap/config.toml`",
    "SLURMWRAP_HINT": "`off`: the site's `cli_filter.lua` says nothing about gsub ([more](../install.md))",
    "SLURMWRAP_STAGES": "a file that gets the time at which gsub reached each stage ([more](../latency.md))",
}

OF_OTHERS: dict[str, str] = {
    "NO_COLOR": "set to anything: no colour, on a terminal either",
    "SLURM_CONF": "Slurm's own: which cluster is meant",
    "SLURM_CLUSTERS": "Slurm's own: a call for another cluster is passed on to sbatch",
    "SLURM_TIME_FORMAT": "Slurm's own: is set by slurmwrap for its questions; sacct's dumps may be in `%s`",
    "XDG_CONFIG_HOME": "your configuration is in `slurmwrap/config.toml` below it (`~/.config`)",
    "XDG_STATE_HOME": "your database and files are in `slurmwrap/` below it (`~/.local/state`)",
    "XDG_DATA_HOME": "where completion scripts and a lab of your own lie (`~/.local/share`)",
    "XDG_RUNTIME_DIR": "Slurm's answers are kept in `slurmwrap/` below it, for the seconds that they are good for",
}

# slurmwrap sets these for its own processes; a job or its pre-run can read them.
INSIDE: dict[str, str] = {
    "SLURMWRAP_PRERUN": "`1` in a pre-run: a script may ask whether it is one",
    "SLURMWRAP_TRIAL_DIR": "the pre-run's own directory",
    "SLURMWRAP_TRIAL_GPUS": "GPUs of the pre-run",
    "SLURMWRAP_TRIAL_TASKS": "tasks of the pre-run",
    "SLURMWRAP_JOB_NODES": "nodes that the job asks for",
    "SLURMWRAP_PYTHON": "the interpreter that the pre-run's own programs run on",
    "SLURMWRAP_REAL_JOB": "the job that waits for this pre-run",
    "SLURMWRAP_RELEASE_AT": "when that job starts whatever happens to the pre-run",
    "SLURMWRAP_STEP_DIR": "where the step counter writes",
    "SLURMWRAP_ARRAY_PART": "of an array that gsub has split: the part's number and the job id of the first part",
    "SLURMWRAP_STEP_NAMED": "`1` where steps are counted in a job of its own name, not in a pre-run",
    "SLURMWRAP_COUNT_JAX": "`1`: steps of JAX are counted, too",
    "SLURMWRAP_PARK_AFTER": "steps after which a pre-run is parked and ended; 0: never",
    "SLURMWRAP_REHEARSE": "whether a pre-run goes on with shortened epochs after its steps: 1, on_request, or empty",
    "SLURMWRAP_COMPLETE": "`jobs`: gsub without words prints the user's last runs, for TAB",
    "SLURMWRAP_SHIMS": "the folder of the shims in front of PATH",
    "SLURMWRAP_UNSET": "variables that the pre-run's job has and the real job has not",
    "SLURMWRAP_ALLOCATION": "what Slurm set for the pre-run's own job, for the real srun and mpirun",
    "SLURMWRAP_INJECT": "the folder of the step counter in front of PYTHONPATH",
    "SLURMWRAP_BASH_ENV": "your own BASH_ENV, which the pre-run's goes before",
    "SLURMWRAP_FREE": "folders a pre-run may write to",
    "SLURMWRAP_HELD": "folders a pre-run's writes are kept from",
    "SLURMWRAP_CALLED": "path by which a pre-run's script calls a container runtime",
    "SLURMWRAP_CLOSED": "folders that only a pre-run binds read-only into a container",
    "SLURMWRAP_CONTAINER": "number of a container in a pre-run",
    "SLURMWRAP_OVERLAY": "folders that a pre-run's private overlay covers",
    "SLURMWRAP_CAME_FROM": "a gsub that calls itself notices it by this",
    "SLURMWRAP_PROGRAM": "on a node: the program of `slurmwrap watch --gpus`",
    "SLURMWRAP_PYTHONS": "on a node: the interpreters that may run it",
    "SLURMWRAP_LAB": "marks the processes of a lab",
}

# (path, owner and mode, purpose)
FILES: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "Configuration",
        (
            ("/etc/slurmwrap/config.toml", "root 0644", "the site's ([every key](../configuration.md))"),
            ("~/.config/slurmwrap/config.toml", "yours", "yours, over the site's where the site leaves a key to users"),
        ),
    ),
    (
        "Yours",
        (
            (
                "~/.local/state/slurmwrap/user.db",
                "yours 0600",
                "attempts, pre-runs, profiles ([tables](../database.md))",
            ),
            (
                "~/.local/state/slurmwrap/retry/",
                "yours 0700",
                "the output of retry jobs (`gsub --retry` without a site's reconciler), kept for 30 days",
            ),
            ("~/.local/state/slurmwrap/prerun/", "yours 0700", "pre-runs: the script, its output, the verdict"),
            ("~/.local/state/slurmwrap/spool/", "yours 0700", "observations, where there are no hooks"),
            ("~/.local/state/slurmwrap/fault-*.log", "yours 0600", "one for each error of ours that was not expected"),
        ),
    ),
    (
        "The site's, on the controller",
        (
            ("site.state_dir", "SlurmUser 0700, local disk", "`site.db`: all jobs ([tables](../database.md))"),
            (
                "site.published",
                "SlurmUser 0755, seen by everyone",
                "diagnoses sealed for their owners, node health, blocked inputs, shared profiles",
            ),
            (
                "site.spool",
                "SlurmUser 1733, seen by the nodes",
                "observations on their way; `rejected/` holds what was not believed",
            ),
            ("/var/lib/slurmwrap/controller", "SlurmUser 0700", "what EpilogSlurmctld leaves"),
            ("/var/lib/slurmwrap/heartbeat", "SlurmUser 0600", "its time: the last pass of the reconciler (watchdog)"),
            (
                "/var/lib/slurmwrap-install/manifest.json",
                "root 0600",
                "what `slurmwrap hooks install` did, and how to take it back",
            ),
        ),
    ),
    (
        "On every node",
        (
            ("/usr/local/lib/slurmwrap/hooks", "root, local disk", "shims, `node_hooks.pyz`, settings"),
            (
                "/run/slurmwrap",
                "root 0700",
                "the hooks' memory between two jobs; `failed` tells of a hook that could not do its work",
            ),
        ),
    ),
)
