"""The Prolog hook: marks the kernel log for the Epilog of the same job, starts the sampler and reports the job's start.

When the gate is on (prolog_gate.py) it may refuse the node instead. Then it leaves no mark, since the job will not run.
"""
import os
import time

from . import gpu_addresses, hook_environment, munge_spool, network_ports, node_state
from . import kernel_log
from . import job_cgroup

# Seconds reserved for MUNGE and the spool.
SEND_S = 2.0


def run(environ, settings, deadline):
    """Leave a mark on the node and send one observation."""
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
    # Root's jobs are checks of nodes, also of nodes with a known fault (node_check.py).
    if settings.gate == "on" and settings.token and facts["uid"] != 0:
        found = _ask_gate(environ, settings, mark, deadline - SEND_S)
        if found:
            facts["gate"] = found
        # The node is refused only after the refusal is in the spool: otherwise no one could see why it was drained.
        if found.get("refused") and _send_refusal(settings, job_id, facts, deadline) and _refuse(settings, job_id):
            return
    try:
        mark["network"] = _read_network(settings, facts, deadline - SEND_S)
        node_state.save_mark(settings, job_id, mark)
        uid, sluid = hook_environment.number(environ, "SLURM_JOB_UID"), hook_environment.sluid(environ)
        sample_gpus = _make_gpu_sampler(environ, settings, mark, facts, sluid)
        job_cgroup.start(settings, job_id, uid, sluid=sluid, beside=sample_gpus)
    except OSError as error:
        facts["lost"] = "no kernel mark or sampler: %s" % error
    if facts.get("gate", {}).get("refused"):
        facts["gate"].update(refused=False, why_not="the refusal could not be recorded")
    munge_spool.send(_observation(settings, job_id, facts), settings, deadline)


def _read_network(settings, facts, deadline):
    try:
        found, error = network_ports.read(settings, deadline)
    except Exception as error_read:
        found, error = None, "%s: %s" % (type(error_read).__name__, error_read)
    if error:
        facts["network_error"] = error
    return found


def _make_gpu_sampler(environ, settings, mark, facts, sluid):
    """Return the function that samples the job's GPUs while it runs; None without GPUs or their driver."""
    job_id, own = hook_environment.job_id(environ), hook_environment.gpu_indices(environ)
    known = sorted((int(minor), address) for minor, address in (mark.get("gpus") or {}).items())
    if not own or not known or not (os.path.exists(settings.nvidia_control) or gpu_addresses.has_amd(settings)):
        return None
    gpus, others = [one for one in known if one[0] in own], [one for one in known if one[0] not in own]
    run = dict((key, facts[key]) for key in ("restarts", "uid"))

    def sample():
        # Imported here: the Prolog itself has no use for ctypes.
        from . import gpu_use_sampler

        gpu_use_sampler.watch(settings, job_id, run, gpus, others, sluid)

    return sample


def _observation(settings, job_id, facts):
    return munge_spool.observation(settings, job_id, "prolog", facts)


def _send_refusal(settings, job_id, facts, deadline):
    """Send the refusal; return whether it is in the spool. It is not kept for later, when the job will have started."""
    return munge_spool.send(_observation(settings, job_id, facts), settings, deadline, keep=False)


def _ask_gate(environ, settings, mark, deadline):
    from . import prolog_gate

    known = mark.get("gpus") or {}
    own = [(index, known.get(str(index))) for index in hook_environment.gpu_indices(environ)]
    try:
        return prolog_gate.look(settings, own, deadline)
    except Exception as error:
        # After an error in slurmwrap the job starts.
        return {"refused": False, "why_not": "%s: %s" % (type(error).__name__, error)}


def _refuse(settings, job_id):
    from . import prolog_gate

    # An earlier run whose Epilog never ran here may have left a mark.
    node_state.take_mark(settings, job_id)
    try:
        prolog_gate.refuse(settings)
    except OSError:
        return False
    return True
