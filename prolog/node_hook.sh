#!/bin/sh
# slurmwrap: @CONTEXT@, named in slurm.conf. It only records, and it exits 0: a failing or hanging hook would drain the
# node. Slurm runs it as root with an empty environment, so every path below was filled in at installation.
# With the gate on, a Prolog exits 1 if and only if its own run left a file with this run's token in the node's private
# directory.

python=@PYTHON@
zipapp=@ZIPAPP@
settings=@SETTINGS@
sleep=@SLEEP@
state=@STATE@
gate=@GATE@
token=
deadline=10

# Leaves word for an administrator where the node keeps its own state.
note() {
    if [ -d "$state" ]; then
        printf '%s\n' "@CONTEXT@ of job ${SLURM_JOB_ID-}: $1" >"$state/failed"
    fi
}

exec </dev/null >/dev/null 2>&1 # nobody waits for what may be left behind

if [ "$gate" = on ]; then
    read -r token </proc/sys/kernel/random/uuid
fi

# The watchdog alone holds the pipe open: it is killed when the work is done, or ends at the deadline, and either way the
# last read returns. No `wait` and no trap: slurmctld starts its hooks with SIGCHLD, SIGALRM and SIGTERM blocked (22.05),
# and then `wait` never returns in dash. Work that hangs in the kernel survives kill -9; it is left behind.
{
    "$sleep" "$deadline" &
    watchdog=$!
    {
        "$python" -I -S "$zipapp" @CONTEXT@ "$settings" "$token"
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

if [ -n "$token" ] && [ -f "$state/$token.refused" ]; then
    exit 1
fi
exit 0
