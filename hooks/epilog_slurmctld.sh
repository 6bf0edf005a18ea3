#!/bin/sh
# slurmwrap: EpilogSlurmctld, named in slurm.conf. It leaves one record in a private directory of the controller, wakes the
# reconciler, and always exits 0. It starts no program but its watchdog's sleep: hundreds of these may run at once.
#
# Names and paths are users' text. They are only ever arguments of the shell's own printf, and each item ends with a NUL
# byte, which no variable can hold; node_hooks/epilog_slurmctld.py reads them. A record without its last item is not whole.

directory=@CONTROLLER_DIR@
cluster=@CLUSTER@
sleep=@SLEEP@
deadline=10

record() {
    umask 077
    set -C # never write through anything that is there already
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

exec </dev/null >/dev/null 2>&1 # nobody waits for what may be left behind

# The watchdog alone holds the pipe open: it is killed when the record is written, or ends at the deadline, and either
# way the last read returns. No `wait` and no trap: slurmctld starts its hooks with SIGCHLD, SIGALRM and SIGTERM blocked
# (22.05), and then `wait` never returns in dash.
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
    kill -9 "$work" # it has ended, or it hangs
}
exit 0
