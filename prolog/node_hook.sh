#!/bin/sh
# slurmwrap: @CONTEXT@, named in slurm.conf. It only records, and it always exits 0: a failing or hanging hook would
# drain the node. Slurm runs it as root with an empty environment, so every path below was filled in at installation.

python=@PYTHON@
zipapp=@ZIPAPP@
settings=@SETTINGS@
sleep=@SLEEP@
state=@STATE@
deadline=10

# Leaves word for an administrator where the node keeps its own state.
note() {
    if [ -d "$state" ]; then
        printf '%s\n' "@CONTEXT@ of job ${SLURM_JOB_ID-}: $1" >"$state/failed"
    fi
}

exec </dev/null >/dev/null 2>&1 # nobody waits for what may be left behind

# The watchdog alone holds the pipe open: it is killed when the work is done, or ends at the deadline, and either way the
# last read returns. No `wait` and no trap: slurmctld starts its hooks with SIGCHLD, SIGALRM and SIGTERM blocked (22.05),
# and then `wait` never returns in dash. Work that hangs in the kernel survives kill -9; it is left behind.
{
    "$sleep" "$deadline" &
    watchdog=$!
    {
        "$python" -I -S "$zipapp" @CONTEXT@ "$settings"
        status=$?
        [ "$status" -eq 0 ] || note "python ended with $status"
        kill -9 "$watchdog"
    } >/dev/null &
    echo "$watchdog $!"
} | {
    read -r watchdog work
    read -r _
    worker=
    read -r worker _ <"/proc/$work/task/$work/children"
    if [ -n "$worker" ]; then
        kill -9 "$work" "-$worker" "$worker"
        note "stopped after $deadline s"
    fi
}
exit 0
