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
    exit 4
}

[ -n "${SLURMWRAP_PYTHON:-}" ] || let_the_job_go "SLURMWRAP_PYTHON is not set"
[ -d "${SLURMWRAP_TRIAL_DIR:-}" ] || let_the_job_go "no directory '${SLURMWRAP_TRIAL_DIR:-}' on $(hostname)"
"$SLURMWRAP_PYTHON" -I -c 'import slurmwrap.cli.prerun_job' || let_the_job_go "$SLURMWRAP_PYTHON cannot import slurmwrap"

exec "$SLURMWRAP_PYTHON" -I -m slurmwrap.cli.prerun_job "$SLURMWRAP_TRIAL_DIR"
