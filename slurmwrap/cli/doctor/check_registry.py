"""The list of checks, in the order in which they are printed, each with what it looks at and how it is fixed.

docs/doctor.md and `slurmwrap doctor --explain` are made of it.
"""

from __future__ import annotations

from slurmwrap.cli.doctor import database_checks, node_checks, site_checks, slurm_checks, user_checks
from slurmwrap.cli.doctor.check_records import SITE, YOU, CheckSpec
from slurmwrap.install.systemd_units import ENABLED

# A year of a large site is 2 GB to read.
_WHOLE_FILE_S = 120.0


def _make_check_spec(
    name: str, section: str, see: object, about: str, mend: str, deadline_s: float = 10.0
) -> CheckSpec:
    return CheckSpec(
        name=name,
        section=section,
        see=see,  # type: ignore[arg-type]
        about=" ".join(about.split()),
        mend=" ".join(mend.split()),
        deadline_s=deadline_s,
    )


LOOKS: tuple[CheckSpec, ...] = (
    _make_check_spec(
        "configuration", YOU, user_checks.check_configuration,
        """The site's and the user's file: whether others may write them, variables that set nothing, and values that
        contradict each other. A key or value that cannot be read is a failure, and nothing else is looked at.""",
        "`slurmwrap config show` tells who set what, `slurmwrap config check FILE` all mistakes of a file.",
    ),
    _make_check_spec(
        "commands", YOU, slurm_checks.check_commands,
        "Slurm's client commands on PATH, and that they are of 22.05 or newer.",
        "Install Slurm's client package, or load the site's slurm module.",
    ),
    _make_check_spec(
        "sbatch", YOU, slurm_checks.check_sbatch,
        "Slurm's own sbatch behind gsub, also where gsub stands in its place.",
        "GSUB_SBATCH names Slurm's own where PATH does not lead to it.",
    ),
    _make_check_spec(
        "slurm.conf", YOU, slurm_checks.check_slurm_conf,
        "The slurm.conf that SLURM_CONF names, or the one that is found; none where the site is configless.",
        "Correct or unset SLURM_CONF.",
    ),
    _make_check_spec(
        "controller", YOU, slurm_checks.check_controller,
        "slurmctld's answer to `scontrol show config`, and its release beside the commands'.",
        "Start slurmctld; keep the commands within two releases of it. gsub hands jobs to sbatch meanwhile.",
    ),
    _make_check_spec(
        "clock", YOU, slurm_checks.check_clock,
        "This host's clock beside slurmctld's, which says when its answer was made (to a second).",
        "chronyd or ntpd on both. MUNGE refuses credentials of clocks that are 5 minutes apart.",
    ),
    _make_check_spec(
        "adapter", YOU, slurm_checks.check_adapter,
        "What the reconciler would talk to Slurm by: the commands, or PySlurm.",
        "docs/pyslurm.md. The commands do everything.",
        30.0,
    ),
    _make_check_spec(
        "PySlurm", YOU, slurm_checks.check_pyslurm,
        "An installed PySlurm's release beside Slurm's.",
        "PySlurm X.Y works with Slurm X.Y only; it is not needed.",
    ),
    _make_check_spec(
        "munge", YOU, slurm_checks.check_munge,
        "munged seals and opens a credential.",
        "Start munged; `munge -n | unmunge` shows more. Its key must be the cluster's.",
        15.0,
    ),
    _make_check_spec(
        "accounting", YOU, slurm_checks.check_accounting,
        "slurmdbd's answer, whether limits are enforced and GPUs counted. There need be none.",
        "Start slurmdbd; AccountingStorageTRES=gres/gpu in slurm.conf counts GPUs.",
        30.0,
    ),
    _make_check_spec(
        "cgroup", YOU, slurm_checks.check_cgroups,
        "Whether Slurm puts jobs into cgroups, by which their memory is measured and limited.",
        "ProctrackType=proctrack/cgroup and TaskPlugin=task/cgroup in slurm.conf.",
    ),
    _make_check_spec(
        "prerun partition", YOU, slurm_checks.check_prerun_partition,
        """prerun.partition: whether it exists, is up, has GPUs that are up, lets a trial run for prerun.time_limit_s,
        and is open to all accounts, groups and QOS.""",
        "Correct the partition in slurm.conf, or prerun.partition and prerun.time_limit_s.",
    ),
    _make_check_spec(
        "NVML", YOU, user_checks.check_nvml,
        "NVIDIA's library on this host. Nodes: see GPUs of nodes.",
        "`nvidia-smi` must work; after an update of the driver the old module stays until a reboot.",
    ),
    _make_check_spec(
        "state", YOU, user_checks.state_dir,
        "The directory of the user's own records.",
        "XDG_STATE_HOME names another. gsub submits without one.",
    ),
    _make_check_spec(
        "database", YOU, database_checks.check_own_database,
        "The user's own database: SQLite's quick_check, its schema, its size, the room on its disk.",
        "Restore a backup, or move the file away and a new one is begun.",
        _WHOLE_FILE_S,
    ),
    _make_check_spec(
        "kept answers", YOU, user_checks.check_answer_cache,
        "Where gsub keeps Slurm's answers for some seconds: a directory that is this user's alone.",
        "Remove the directory. Until then each gsub asks Slurm by itself.",
    ),
    _make_check_spec(
        "completion", YOU, user_checks.check_completion,
        "Whether this user's shell completes gsub's options.",
        "`slurmwrap completion bash --install`.",
    ),
    _make_check_spec(
        "hooks", SITE, slurm_checks.check_hooks_in_slurm_conf,
        """Prolog, Epilog and EpilogSlurmctld of slurm.conf: whether they name our hooks (a directory of several scripts
        is looked through), PrologFlags=Alloc, and the files on this host.""",
        "`slurmwrap hooks plan` shows what is missing, `slurmwrap hooks install` adds it.",
    ),
    _make_check_spec(
        "hooks on nodes", SITE, node_checks.check_hooks_on_nodes,
        f"""By the site's database: nodes that ran jobs in the last {node_checks.WINDOW_D} days and whose Epilog was not
        heard, and nodes whose hooks are not the controller's.""",
        """`slurmwrap hooks check`; `slurmwrap hooks install --nodes` copies them. `failed` in a node's /run/slurmwrap
        holds a hook's last failure.""",
        30.0,
    ),
    _make_check_spec(
        "clocks of nodes", SITE, node_checks.check_node_clocks,
        """By the site's database: how long after the start of a job (slurmctld's clock) its Prolog ended (the node's).
        Before the start: the node is behind. Never soon: it is ahead.""",
        "chronyd or ntpd on the node.",
        30.0,
    ),
    _make_check_spec(
        "GPUs of nodes", SITE, node_checks.check_node_drivers,
        "By the site's database: what the newest Epilog of each node said that NVML could not tell.",
        "`nvidia-smi` on the node. A driver that hangs mostly wants a reboot; `slurmwrap nodes` has the history.",
        30.0,
    ),
    _make_check_spec(
        "spool", SITE, site_checks.check_spool,
        """The directory where observations arrive: owner, mode 1733, and a probe: a sealed record is written, read
        back, opened and removed. The reconciler leaves the probe alone.""",
        "`slurmwrap hooks plan` prints the `install -d` line.",
    ),
    _make_check_spec(
        "spool queue", SITE, site_checks.check_waiting_records,
        "Records that wait in the spool for more than ten minutes.",
        "Start the reconciler; its log says what it cannot do.",
    ),
    _make_check_spec(
        "set aside", SITE, node_checks.set_aside,
        f"Records of the last {node_checks.WINDOW_D} days that were not believed, with whose they were and why.",
        """They are in `rejected` of the spool. A wrong address: munged's --origin must be the address that Slurm has of
        the node.""",
    ),
    _make_check_spec(
        "published", SITE, site_checks.check_published,
        "The directory of node health and sealed diagnoses: everybody reads it, only SlurmUser writes it.",
        "`slurmwrap hooks plan` prints the `install -d` line.",
    ),
    _make_check_spec(
        "reconciler", SITE, site_checks.check_reconciler,
        """When it last made a whole pass: by its heartbeat in site.state_dir; for who cannot read that by the
        time of what it published, every five minutes.""",
        "`systemctl status slurmwrap-reconcile` on the controller.",
    ),
    _make_check_spec(
        "units", SITE, site_checks.check_units,
        """systemd's word on the reconciler's service, the report's timer and the watchdog's, on the host that has
        site.state_dir.""",
        f"`systemctl enable --now {' '.join(ENABLED)}`.",
        15.0,
    ),
    _make_check_spec(
        "night report", SITE, site_checks.night_report,
        "When the last one was made whole, as report.directory says.",
        "`systemctl list-timers slurmwrap-report.timer`, `journalctl -u slurmwrap-report`.",
    ),
    _make_check_spec(
        "site database", SITE, database_checks.check_site_database,
        """SQLite's quick_check for at most 5 s, its schema, size and WAL, the room on its disk, and whether runs
        are older than retention.keep_d.""",
        "`slurmwrap db prune`, `slurmwrap db backup`; a damaged file: restore a backup.",
        _WHOLE_FILE_S,
    ),
    _make_check_spec(
        "metrics", SITE, site_checks.check_textfile,
        "The file of metrics.textfile for node_exporter: prometheus_client, its directory, its age.",
        "docs/metrics.md.",
    ),
    _make_check_spec(
        "rules", SITE, site_checks.check_rules,
        """Whether each rule that acts can: site.slurm_user is Slurm's SlurmUser, a reconciler that resizes under
        enforced limits is root, the gate has a published directory.""",
        "`slurmwrap config show rules`.",
    ),
    _make_check_spec(
        "topology", SITE, slurm_checks.check_topology,
        "What tells which nodes are near each other: Slurm, a file of the site, features of nodes, or nothing.",
        "TopologyPlugin in slurm.conf, or placement.topology_file (docs/placement.md).",
    ),
    _make_check_spec(
        "cli_filter", SITE, slurm_checks.cli_filter,
        "Whether slurm.conf names a cli_filter.lua that is there. It is optional.",
        "`slurmwrap hooks plan --help`.",
    ),
    _make_check_spec(
        "log", SITE, site_checks.check_log,
        "Whether a journald listens here where log.to names it.",
        '`log.to = "stderr"`, or start systemd-journald.',
    ),
    _make_check_spec(
        "mail", SITE, site_checks.check_mail,
        "Whether mail.server greets us (EHLO, NOOP). No mail is sent.",
        "`slurmwrap config show mail`.",
        15.0,
    ),
)  # fmt: skip
BY_NAME = {look.name: look for look in LOOKS}
