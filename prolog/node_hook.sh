#!/bin/sh
# slurmwrap: @CONTEXT@, named in slurm.conf. It only records and exits 0, because a failing or hanging hook would drain
# the node. Slurm runs it as root with an empty environment, so the installation inserted every path below.
# With the gate on, a Prolog exits 1 if and only if its Python program wrote a file named after this run's token to the
# node's private directory.

python=@PYTHON@
zipapp=@ZIPAPP@
settings=@SETTINGS@
sleep=@SLEEP@
state=@STATE@
gate=@GATE@
token=
deadline=10

# Writes a message for administrators to the node's private directory.
note() {
    # The Python program accepts the directory only if it is private. This check is for one that another user made, and
    # for a link in one that others may write.
    if [ -d "$state" ] && [ -O "$state" ] && [ ! -L "$state" ] && [ ! -L "$state/failed" ]; then
        printf '%s\n' "@CONTEXT@ of job ${SLURM_JOB_ID-}: $1" >"$state/failed"
    fi
}

exec </dev/null >/dev/null 2>&1 # slurmd must not wait for processes that this hook may leave behind

if [ "$gate" = on ]; then
    read -r token </proc/sys/kernel/random/uuid
fi

# Only the watchdog holds the pipe open. It is killed when the work is done, or ends at the deadline; in both cases the
# last read returns. `wait` and traps cannot be used: slurmctld (22.05) starts its hooks with SIGCHLD, SIGALRM and
# SIGTERM blocked, and then `wait` never returns in dash. Work that hangs in the kernel survives kill -9 and is left
# behind.
{
    "$sleep" "$deadline" &
    watchdog=$!
    {
        # Python reads each module from the path of the zipapp when it needs it. The descriptor stays that of one file, also
        # when an upgrade replaces the zipapp meanwhile.
        "$python" -I -S /proc/self/fd/3 @CONTEXT@ "$settings" "$token" 3<"$zipapp"
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
