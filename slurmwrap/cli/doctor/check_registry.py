"""The list of all checks in the order in which they are printed, each with what it looks at and how to fix faults.

docs/doctor.md and `slurmwrap doctor --explain` are generated from this list.
"""

from __future__ import annotations

from slurmwrap.cli.doctor import database_checks, node_checks, site_checks, slurm_checks, user_checks, webhook_checks
from slurmwrap.cli.doctor.check_records import SITE, YOU, CheckSpec
from slurmwrap.install.systemd_units import ENABLED

# Seconds. SQLite reads the whole file, which has 2 GB after a year of a large site.
_DATABASE_DEADLINE_S = 120.0


def _make_check_spec(name: str, section: str, see: object, about: str, fix: str, deadline_s: float = 10.0) -> CheckSpec:
    return CheckSpec(
        name=name,
        section=section,
        see=see,  # type: ignore[arg-type]
        about=" ".join(about.split()),
        fix=" ".join(fix.split()),
        deadline_s=deadline_s,
    )


CHECK_SPECS: tuple[CheckSpec, ...] = (
    _make_check_spec(
        "configuration", YOU, user_checks.check_configuration,
        """The site's and the user's file: whether others may write them, variables that set nothing, and values that
        contradict each other. A key or value that cannot be read is a failure, and no other check runs.""",
        "`slurmwrap config show` shows the source of each value, `slurmwrap config check FILE` all mistakes of a file.",
    ),
    _make_check_spec(
        "commands", YOU, slurm_checks.check_commands,
        "Slurm's client commands on PATH, of release 22.05 or newer.",
        "Install Slurm's client package, or load the site's slurm module.",
    ),
    _make_check_spec(
        "sbatch", YOU, slurm_checks.check_sbatch,
        "Slurm's own sbatch, which gsub calls, also if gsub is installed under the name sbatch.",
        "Set GSUB_SBATCH to the path of Slurm's own sbatch if PATH does not lead to it.",
    ),
    _make_check_spec(
        "slurm.conf", YOU, slurm_checks.check_slurm_conf,
        "The slurm.conf that SLURM_CONF names, or the one that is found; none where the site is configless.",
        "Correct or unset SLURM_CONF.",
    ),
    _make_check_spec(
        "controller", YOU, slurm_checks.check_controller,
        "slurmctld's answer to `scontrol show config`, and its release compared with that of the commands.",
        "Start slurmctld; keep the commands within two releases of it. gsub passes jobs to sbatch meanwhile.",
    ),
    _make_check_spec(
        "clock", YOU, slurm_checks.check_clock,
        "This host's clock compared with slurmctld's; its answers carry their time (to a second).",
        "Run chronyd or ntpd on both. MUNGE refuses credentials of clocks that are 5 minutes apart.",
    ),
    _make_check_spec(
        "adapter", YOU, slurm_checks.check_adapter,
        "The adapter that the reconciler would use: the commands, or PySlurm.",
        "See docs/pyslurm.md. The commands are enough for all functions.",
        30.0,
    ),
    _make_check_spec(
        "PySlurm", YOU, slurm_checks.check_pyslurm,
        "The release of an installed PySlurm compared with Slurm's.",
        "PySlurm X.Y works with Slurm X.Y only; it is not needed.",
    ),
    _make_check_spec(
        "munge", YOU, slurm_checks.check_munge,
        "Whether munged encodes and decodes a credential.",
        "Start munged; `munge -n | unmunge` shows more. It must have the key of the cluster.",
        15.0,
    ),
    _make_check_spec(
        "accounting", YOU, slurm_checks.check_accounting,
        "slurmdbd's answer, whether limits are enforced and GPUs counted. slurmdbd is optional.",
        "Start slurmdbd; AccountingStorageTRES=gres/gpu in slurm.conf counts GPUs.",
        30.0,
    ),
    _make_check_spec(
        "cgroup", YOU, slurm_checks.check_cgroups,
        "Whether Slurm puts jobs into cgroups, which measure and limit their memory.",
        "Set ProctrackType=proctrack/cgroup and TaskPlugin=task/cgroup in slurm.conf.",
    ),
    _make_check_spec(
        "prerun partition", YOU, slurm_checks.check_prerun_partition,
        """prerun.partition: whether it exists, is up, has GPUs that are up, lets a pre-run use prerun.time_limit_s,
        and is open to all accounts, groups and QOS.""",
        "Correct the partition in slurm.conf, or prerun.partition and prerun.time_limit_s.",
    ),
    _make_check_spec(
        "NVML", YOU, user_checks.check_nvml,
        "NVIDIA's library on this host. For nodes see GPUs of nodes.",
        "`nvidia-smi` must work. After an update of the driver the old module stays until a reboot.",
    ),
    _make_check_spec(
        "state", YOU, user_checks.check_state_directory,
        "The directory of the user's own records.",
        "Set XDG_STATE_HOME to another directory. gsub submits without one.",
    ),
    _make_check_spec(
        "database", YOU, database_checks.check_own_database,
        "The user's own database: SQLite's quick_check, its schema, its size, the free space on its disk.",
        "Restore a backup, or move the file away; a new one is created then.",
        _DATABASE_DEADLINE_S,
    ),
    _make_check_spec(
        "kept answers", YOU, user_checks.check_answer_cache,
        "The directory where gsub keeps Slurm's answers for some seconds: it must be private to this user.",
        "Remove the directory. Until then each call of gsub asks Slurm.",
    ),
    _make_check_spec(
        "completion", YOU, user_checks.check_completion,
        "Whether this user's shell completes gsub's options.",
        "Run `slurmwrap completion bash --install`.",
    ),
    _make_check_spec(
        "hooks", SITE, slurm_checks.check_hooks_in_slurm_conf,
        """Prolog, Epilog and EpilogSlurmctld of slurm.conf: whether they name slurmwrap's hooks (a directory of
        several scripts is searched), PrologFlags=Alloc, and the files on this host.""",
        "`slurmwrap hooks plan` shows what is missing, `slurmwrap hooks install` adds it.",
    ),
    _make_check_spec(
        "hooks on nodes", SITE, node_checks.check_hooks_on_nodes,
        f"""From the site's database: nodes that ran jobs in the last {node_checks.WINDOW_D} days without a record of
        their Epilog, and nodes whose hooks differ from the controller's.""",
        """`slurmwrap hooks check` compares the files, `slurmwrap hooks install --nodes` copies them. `failed` in a
        node's /run/slurmwrap holds a hook's last failure.""",
        30.0,
    ),
    _make_check_spec(
        "clocks of nodes", SITE, node_checks.check_node_clocks,
        """From the site's database: the time from the start of a job (slurmctld's clock) to the end of its Prolog (the
        node's clock). Negative: the node is behind. Long for every job: the node is ahead.""",
        "Run chronyd or ntpd on the node.",
        30.0,
    ),
    _make_check_spec(
        "GPUs of nodes", SITE, node_checks.check_node_drivers,
        "From the site's database: NVML errors in the newest Epilog of each node.",
        "Run `nvidia-smi` on the node. A hung driver mostly needs a reboot; `slurmwrap nodes` has the history.",
        30.0,
    ),
    _make_check_spec(
        "spool", SITE, site_checks.check_spool,
        """The directory where observations arrive: owner, mode 1733, and a probe: a signed record is written, read
        back, verified and removed. The reconciler ignores the probe.""",
        "`slurmwrap hooks plan` prints the `install -d` line.",
    ),
    _make_check_spec(
        "spool queue", SITE, site_checks.check_waiting_records,
        "Records that wait in the spool for more than ten minutes.",
        "Start the reconciler; its log names its errors.",
    ),
    _make_check_spec(
        "controllers", SITE, node_checks.check_controllers,
        f"""On a cluster with backup controllers: whether all jobs of the last {node_checks.WINDOW_D} days have the
        record of EpilogSlurmctld, which the active controller writes to its own disk.""",
        """Install the hooks on the backup, and let both controllers write to one shared directory: docs/install.md,
        Backup controllers.""",
    ),
    _make_check_spec(
        "rejected", SITE, node_checks.check_rejected_records,
        f"Records of the last {node_checks.WINDOW_D} days that were rejected, with their owners and the reasons.",
        """They are in `rejected` of the spool. If the reason is the address: munged's --origin must be the address that
        Slurm has for the node.""",
    ),
    _make_check_spec(
        "published", SITE, site_checks.check_published,
        "The directory of node health and encrypted diagnoses: all users can read it, only SlurmUser can write it.",
        "`slurmwrap hooks plan` prints the `install -d` line.",
    ),
    _make_check_spec(
        "switch", SITE, site_checks.check_switch,
        "Whether an administrator switched slurmwrap off with `slurmwrap off`: gsub passes all calls to sbatch.",
        "Run `slurmwrap on` as root or SlurmUser.",
    ),
    _make_check_spec(
        "reconciler", SITE, site_checks.check_reconciler,
        """The time of its last complete pass: from its heartbeat in site.state_dir, or for users who cannot read that
        from the time of the published file, which it writes every five minutes.""",
        "Run `systemctl status slurmwrap-reconcile` on the controller.",
    ),
    _make_check_spec(
        "units", SITE, site_checks.check_units,
        """systemd's state of the reconciler's service, the report's timer and the watchdog's, on the host that has
        site.state_dir.""",
        f"Run `systemctl enable --now {' '.join(ENABLED)}`.",
        15.0,
    ),
    _make_check_spec(
        "night report", SITE, site_checks.check_night_report,
        "The time of the last complete report, from report.directory.",
        "See `systemctl list-timers slurmwrap-report.timer`, `journalctl -u slurmwrap-report`.",
    ),
    _make_check_spec(
        "site database", SITE, database_checks.check_site_database,
        """SQLite's quick_check for at most 5 s, its schema, size and WAL, the free space on its disk, and whether
        runs are older than retention.keep_d.""",
        "Run `slurmwrap db prune` or `slurmwrap db backup`. If the file is damaged, restore a backup.",
        _DATABASE_DEADLINE_S,
    ),
    _make_check_spec(
        "metrics", SITE, site_checks.check_textfile,
        "The file of metrics.textfile for node_exporter: prometheus_client, its directory, its age.",
        "See docs/metrics.md.",
    ),
    _make_check_spec(
        "rules", SITE, site_checks.check_rules,
        """Whether each rule with mode `act` is able to act: site.slurm_user is Slurm's SlurmUser, a reconciler that
        resizes under enforced limits is root, the gate has a published directory, and the watchdog runs, which undoes
        what `order` and `limit` changed if the reconciler stops.""",
        "See `slurmwrap config show rules`.",
    ),
    _make_check_spec(
        "topology", SITE, slurm_checks.check_topology,
        "The source of the network topology: Slurm, a file of the site, features of nodes, or none.",
        "Set TopologyPlugin in slurm.conf, or placement.topology_file (docs/placement.md).",
    ),
    _make_check_spec(
        "cli_filter", SITE, slurm_checks.check_cli_filter,
        "Whether the cli_filter.lua that slurm.conf names exists. It is optional.",
        "See `slurmwrap hooks plan --help`.",
    ),
    _make_check_spec(
        "log", SITE, site_checks.check_log,
        "Whether journald listens on this host if log.to names it.",
        'Set `log.to = "stderr"`, or start systemd-journald.',
    ),
    _make_check_spec(
        "mail", SITE, site_checks.check_mail,
        "Whether mail.server answers EHLO and NOOP. No mail is sent.",
        "See `slurmwrap config show mail`.",
        15.0,
    ),
    _make_check_spec(
        webhook_checks.NAME, SITE, webhook_checks.check_webhook,
        """Whether notify.url is a usable address that no other user can read, and its server accepts a connection with
        a valid certificate. No message is sent; `slurmwrap doctor --test-notify` sends one.""",
        "See `slurmwrap config show notify` and docs/notifications.md; a site without a way out needs notify.proxy.",
        15.0,
    ),
)  # fmt: skip
BY_NAME = {look.name: look for look in CHECK_SPECS}
