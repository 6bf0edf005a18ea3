#!/bin/sh
# The batch script of every job that reads input files (slurmwrap/gsub/input_check.py). Not a template; its parameters:
#   SLURMWRAP_PYTHON     Python interpreter with slurmwrap installed
#   SLURMWRAP_TRIAL_DIR  directory of the pre-run that named the files
# No job waits for this one, so there is nothing to release when it cannot run.
idle=
command -v ionice >/dev/null 2>&1 && idle='ionice -c 3'
# $idle is one command or nothing.
exec nice -n 19 $idle "$SLURMWRAP_PYTHON" -I -m slurmwrap.gsub.input_check_job "$SLURMWRAP_TRIAL_DIR"
