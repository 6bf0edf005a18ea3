#!/bin/sh
# The batch script of every pre-run of slurmwrap. It is not a template; its parameters are environment variables:
#   SLURMWRAP_PYTHON     Python interpreter with slurmwrap installed
#   SLURMWRAP_TRIAL_DIR  directory of this pre-run
#   SLURMWRAP_REAL_JOB   the job that waits for this pre-run; empty when none does
#   SLURMWRAP_RELEASE_AT earliest start of that job; "now" unless the user set --begin

# Release the waiting job: it must not wait when slurmwrap does not work on this node.
release_job() {
    echo "slurmwrap: pre-run not possible here: $1" >&2
    if [ -n "${SLURMWRAP_REAL_JOB:-}" ]; then
        scontrol update "JobId=$SLURMWRAP_REAL_JOB" "StartTime=${SLURMWRAP_RELEASE_AT:-now}"
    fi
    release_other_jobs
    exit 4
}

# Release later jobs of the same script that wait for this pre-run (slurmwrap/store/prerun_registry.py). Each has one
# file, named after the job, whose first line is its earliest start. After the rename no further job can register.
release_other_jobs() {
    [ -d "${SLURMWRAP_TRIAL_DIR:-}/waiting" ] || return 0
    mv "$SLURMWRAP_TRIAL_DIR/waiting" "$SLURMWRAP_TRIAL_DIR/closed" || return 0
    for waiting in "$SLURMWRAP_TRIAL_DIR/closed"/*; do
        job=${waiting##*/}
        case $job in *[!0-9]*) continue ;; esac
        IFS= read -r release_at <"$waiting" || continue
        scontrol update "JobId=$job" "StartTime=${release_at:-now}"
    done
}

# $! is set as soon as Python runs. From then on a signal is passed to Python, and the job is not released meanwhile.
trap 'if [ -n "$!" ]; then kill -TERM "$!" 2>/dev/null; else release_job "it was stopped"; fi' TERM

[ -n "${SLURMWRAP_PYTHON:-}" ] || release_job "SLURMWRAP_PYTHON is not set"
[ -d "${SLURMWRAP_TRIAL_DIR:-}" ] || release_job "no directory '${SLURMWRAP_TRIAL_DIR:-}' on $(hostname)"

# Python is not started with exec: if it cannot import slurmwrap (1), is killed, or is stopped before it handles signals,
# it has released no job, and this script must do so. With exit code 0 or 4 it has released them. Its standard input is
# the job's; without the redirection a background command would read /dev/null.
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
release_job "slurmwrap ended with status $status ($SLURMWRAP_PYTHON)"
