#!/bin/sh
# slurmwrap: EpilogSlurmctld, named in slurm.conf. It writes one record to a private directory of the controller, wakes
# the reconciler, and always exits 0. It starts no program except the sleep of its watchdog, because hundreds of these
# hooks may run at once.
#
# Users choose the names and paths. They are used only as arguments of the shell's builtin printf. Each item ends with a
# NUL byte, which no variable can contain; node_hooks/epilog_slurmctld.py parses them. A record without its last item is
# incomplete.

directory=@CONTROLLER_DIR@
cluster=@CLUSTER@
sleep=@SLEEP@
deadline=10

record() {
    umask 077
    set -C # never write to an existing file or link
    case ${SLURM_JOB_ID-} in '' | *[!0-9]* | 0* | ???????????*) return ;; esac # 32 bits: at most ten digits
    unique=$$
    read -r unique </proc/sys/kernel/random/uuid
    printf '%s\0' slurmwrap-environment-1 \
        "SLURM_CLUSTER_NAME=$cluster" \
        "SLURM_JOB_ID=${SLURM_JOB_ID-}" \
        "SLURM_JOB_RESTART_COUNT=${SLURM_JOB_RESTART_COUNT-}" \
        "SLURM_JOB_UID=${SLURM_JOB_UID-}" \
        "SLURM_JOB_USER=${SLURM_JOB_USER-}" \
        "SLURM_JOB_NAME=${SLURM_JOB_NAME-}" \
        "SLURM_JOB_ACCOUNT=${SLURM_JOB_ACCOUNT-}" \
        "SLURM_JOB_PARTITION=${SLURM_JOB_PARTITION-}" \
        "SLURM_JOB_NODELIST=${SLURM_JOB_NODELIST-}" \
        "SLURM_JOB_WORK_DIR=${SLURM_JOB_WORK_DIR-}" \
        "SLURM_ARRAY_JOB_ID=${SLURM_ARRAY_JOB_ID-}" \
        "SLURM_ARRAY_TASK_ID=${SLURM_ARRAY_TASK_ID-}" \
        "SLURM_JOB_EXIT_CODE=${SLURM_JOB_EXIT_CODE-}" \
        "SLURM_JOB_EXIT_CODE2=${SLURM_JOB_EXIT_CODE2-}" \
        "SLURM_JOB_DERIVED_EC=${SLURM_JOB_DERIVED_EC-}" \
        end >"$directory/$SLURM_JOB_ID-$unique.env"
    set +C
    printf '%s\n' "$SLURM_JOB_ID" >"$directory/wake" # its modification time is the signal
}

exec </dev/null >/dev/null 2>&1 # slurmctld must not wait for processes that this hook may leave behind

# Only the watchdog holds the pipe open. It is killed when the record has been written, or ends at the deadline; in both
# cases the last read returns. `wait` and traps cannot be used: slurmctld (22.05) starts its hooks with SIGCHLD, SIGALRM
# and SIGTERM blocked, and then `wait` never returns in dash.
{
    "$sleep" "$deadline" &
    watchdog=$!
    {
        record
        kill -9 "$watchdog"
    } >/dev/null &
    echo "$watchdog $!"
} | {
    read -r watchdog work
    read -r _
    kill -9 "$work" # the work has ended, or it hangs
}
exit 0
