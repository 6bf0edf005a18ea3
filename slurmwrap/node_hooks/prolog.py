"""Prolog: marks the kernel log for the Epilog of the same job, starts the sampler, and says that the job starts here.

Where the gate is on (prolog_gate.py) it may refuse the node instead; then no mark is left, since nothing will run.
"""
import time

from . import gpu_addresses, hook_environment, munge_spool, node_state
from . import kernel_log
from . import job_cgroup

# Kept back for MUNGE and the spool.
SEND_S = 2.0


def run(environ, settings, deadline):
    """Leaves a mark on the node and sends one observation."""
    job_id = hook_environment.job_id(environ)
    mark = {"at": time.time(), "ticks": time.clock_gettime(time.CLOCK_MONOTONIC), "boot": kernel_log.boot()}
    mark["kernel"] = kernel_log.mark(settings.kernel_log)
    facts = hook_environment.common(environ)
    facts["kernel_mark"] = mark["kernel"]
    try:
        if hook_environment.gpu_indices(environ):
            mark["gpus"] = gpu_addresses.addresses(settings, deadline)
    except OSError as error:
        facts["lost"] = "no PCI addresses: %s" % error
    if settings.gate == "on" and settings.token:
        found = _gate(environ, settings, mark, deadline - SEND_S)
        if found:
            facts["gate"] = found
        if found.get("refused") and _told(settings, job_id, facts, deadline) and _refuse(settings, job_id):
            return
    try:
        node_state.save_mark(settings, job_id, mark)
        job_cgroup.start(settings, job_id, hook_environment.number(environ, "SLURM_JOB_UID"), sluid=hook_environment.sluid(environ))
    except OSError as error:
        facts["lost"] = "no kernel mark or sampler: %s" % error
    # No one would know why the node is drained.
    if facts.get("gate", {}).get("refused"):
        facts["gate"].update(refused=False, why_not="the refusal could not be recorded")
    munge_spool.send(_said(settings, job_id, facts), settings, deadline)


def _said(settings, job_id, facts):
    return munge_spool.observation(settings, job_id, "prolog", facts)


def _told(settings, job_id, facts, deadline):
    """Whether the refusal lies in the spool. It is not kept for later: the job would have started by then."""
    return munge_spool.send(_said(settings, job_id, facts), settings, deadline, keep=False)


def _gate(environ, settings, mark, deadline):
    from . import prolog_gate

    known = mark.get("gpus") or {}
    own = [(index, known.get(str(index))) for index in hook_environment.gpu_indices(environ)]
    try:
        return prolog_gate.look(settings, own, deadline)
    except Exception as error:
        # A fault of slurmwrap's lets the job start.
        return {"refused": False, "why_not": "%s: %s" % (type(error).__name__, error)}


def _refuse(settings, job_id):
    from . import prolog_gate

    # Of an earlier run that never ended here.
    node_state.take_mark(settings, job_id)
    try:
        prolog_gate.refuse(settings)
    except OSError:
        return False
    return True
