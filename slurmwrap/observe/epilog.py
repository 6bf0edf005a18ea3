"""Epilog: what root on this node can say about a job that ended here."""
import time

from . import gpus, job, kernel, kernel_filter, logs, nvml, seal, state

LOGS_S = 3.0
NVML_S = 2.0


def run(environ, settings, deadline):
    """Collects the facts of the job and sends one observation. A part that fails is left out, the others are sent."""
    job_id = job.job_id(environ)
    facts = job.common(environ)
    facts.update(job.ending(environ))
    mark = _part(facts, "mark", lambda: state.take_mark(settings, job_id)) or {}
    facts["started_at"] = mark.get("at") or job.number(environ, "SLURM_JOB_START_TIME")
    own = _part(facts, "gpus", lambda: _gpus(environ, settings, mark, deadline)) or []
    facts.update(_part(facts, "kernel", lambda: _kernel(environ, settings, mark, own, deadline)) or {})
    facts.update(_part(facts, "usage", lambda: state.take_usage(settings, job_id)) or {})
    if job.first_node(facts["nodes"]) == settings.node:
        late = min(deadline, time.monotonic() + LOGS_S)
        facts.update(_part(facts, "logs", lambda: logs.tails(environ, facts["started_at"], late)) or {})
    if own:
        late = min(deadline, time.monotonic() + NVML_S)
        facts.update(_part(facts, "gpu", lambda: nvml.states(settings, own, late)) or {})
    seal.send(seal.observation(settings, job_id, "epilog", facts), settings, deadline)


def _part(facts, name, collect):
    try:
        return collect()
    except Exception as error:  # one unreadable source must not cost the others
        facts.setdefault("errors", []).append("%s: %s: %s" % (name, type(error).__name__, error))
        return None


def _gpus(environ, settings, mark, deadline):
    """[(index, PCI address or None)]; as the Prolog saw them, since a lost GPU has no entry any more."""
    indices = job.gpu_indices(environ)
    known = mark.get("gpus") or (gpus.addresses(settings.nvidia_proc, deadline) if indices else {})
    return [(index, known.get(str(index))) for index in indices]


def _kernel(environ, settings, mark, own, deadline):
    lines = kernel.since(settings.kernel_log, mark.get("kernel"), mark.get("at"), deadline)
    addresses = [address for _, address in own if address]
    job_id, uid = job.job_id(environ), job.number(environ, "SLURM_JOB_UID")
    kept, foreign = kernel_filter.relevant(lines, job_id, uid, addresses, bool(own))
    found = {"kernel": kept, "kernel_source": settings.kernel_log.split(":", 1)[0]}
    if foreign and len(addresses) < len(own):
        found["kernel_error"] = "%d lines name a GPU, and which GPUs the job had is unknown" % foreign
    return found
