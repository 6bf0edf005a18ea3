#!/bin/sh
# The batch script of the job that gsub submits with each job that may be retried (docs/retries.md). Its arguments are
# the id of that job and the options with which this job was submitted: it is submitted again after each retry.
#   SLURMWRAP_PYTHON     Python interpreter with slurmwrap installed
exec "${SLURMWRAP_PYTHON:?}" -I -m slurmwrap.gsub.retry_job "$@"
