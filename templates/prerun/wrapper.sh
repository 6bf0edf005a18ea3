#!/bin/sh
# The batch script of every pre-run of slurmwrap. Nothing is filled in: parameters come from the environment.
#   SLURMWRAP_PYTHON     interpreter that slurmwrap is installed in
#   SLURMWRAP_TRIAL_DIR  directory of this trial
#   SLURMWRAP_REAL_JOB   the job that waits for this pre-run; empty when none does
#   SLURMWRAP_RELEASE_AT when that job may start at the earliest; "now" unless the user said --begin

# Whatever happens to slurmwrap on this node, a good job must not wait for it.
let_the_job_go() {
    echo "slurmwrap: pre-run not possible here: $1" >&2
    if [ -n "${SLURMWRAP_REAL_JOB:-}" ]; then
        scontrol update "JobId=$SLURMWRAP_REAL_JOB" "StartTime=${SLURMWRAP_RELEASE_AT:-now}"
    fi
    let_the_others_go
    exit 4
}

# Later jobs of the same script that wait for this pre-run (slurmwrap/store/prerun_registry.py): one file each, named by the
# job; its first line says when it may start. The rename shuts the door.
let_the_others_go() {
    [ -d "${SLURMWRAP_TRIAL_DIR:-}/waiting" ] || return 0
    mv "$SLURMWRAP_TRIAL_DIR/waiting" "$SLURMWRAP_TRIAL_DIR/closed" || return 0
    for waiting in "$SLURMWRAP_TRIAL_DIR/closed"/*; do
        job=${waiting##*/}
        case $job in *[!0-9]*) continue ;; esac
        IFS= read -r release_at <"$waiting" || continue
        scontrol update "JobId=$job" "StartTime=${release_at:-now}"
    done
}

# $! is set as soon as Python runs: from then on a signal goes to Python, and the job is not released while it runs.
trap 'if [ -n "$!" ]; then kill -TERM "$!" 2>/dev/null; else let_the_job_go "it was stopped"; fi' TERM

[ -n "${SLURMWRAP_PYTHON:-}" ] || let_the_job_go "SLURMWRAP_PYTHON is not set"
[ -d "${SLURMWRAP_TRIAL_DIR:-}" ] || let_the_job_go "no directory '${SLURMWRAP_TRIAL_DIR:-}' on $(hostname)"

# Not exec: a Python that cannot import slurmwrap (1), is killed, or is stopped before it listens, has let nobody go. It
# ends with 0 or 4 when it has. Its standard input is the job's; without the redirection a background command would get
# /dev/null.
exec 3<&0
"$SLURMWRAP_PYTHON" -I -m slurmwrap.gsub.prerun_job "$SLURMWRAP_TRIAL_DIR" <&3 3<&- &
child=$!
wait "$child"
status=$?
while kill -0 "$child" 2>/dev/null; do # a signal ends `wait` before the child has ended
    wait "$child"
    status=$?
done
trap - TERM
case $status in
0 | 4) exit "$status" ;;
esac
let_the_job_go "slurmwrap ended with status $status ($SLURMWRAP_PYTHON)"
