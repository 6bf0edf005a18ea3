"""Epilog: what root on this node can say about a job that ended here."""
import time

from . import checksum, gpu_addresses, hook_environment, nvml, munge_spool, node_state
from . import kernel_log
from . import kernel_log
from . import log_tails

LOGS_S = 3.0
NVML_S = 3.0
JUMP_S = 5.0
# No Unix time: the year 5138.
LATEST = 1e11
# Kept back for MUNGE and the spool.
SEND_S = 2.0


def run(environ, settings, deadline):
    """Collects the facts of the job and sends one observation. A part that fails is left out, the others are sent."""
    job_id = hook_environment.job_id(environ)
    facts = hook_environment.common(environ)
    facts.update(hook_environment.ending(environ))
    facts.update(_collected(environ, settings, job_id, facts, deadline - SEND_S))
    munge_spool.send(munge_spool.observation(settings, job_id, "epilog", facts), settings, deadline)


def _collected(environ, settings, job_id, facts, deadline):
    mark = _part(facts, "mark", lambda: node_state.take_mark(settings, job_id)) or {}
    facts["started_at"], since = _started(mark, environ, facts)
    own = _part(facts, "gpus", lambda: _gpus(environ, settings, mark, deadline)) or []
    found = _part(facts, "kernel", lambda: _kernel(environ, settings, mark, own, deadline)) or {}
    found["hooks"] = _part(facts, "hooks", lambda: _hooks(settings)) or {}
    found.update(_part(facts, "usage", lambda: node_state.take_usage(settings, job_id)) or {})
    if hook_environment.first_node(facts["nodes"]) == settings.node:
        late = min(deadline, time.monotonic() + LOGS_S)
        found.update(_part(facts, "logs", lambda: log_tails.tails(environ, since, late)) or {})
    if own:
        late = min(deadline, time.monotonic() + NVML_S)
        lost = found.pop("fallen", "")
        found.update(_part(facts, "gpu", lambda: nvml.states(settings, own, late, since, lost)) or {})
    return found


def _hooks(settings):
    """What ran here: `slurmwrap doctor` compares it with the controller's files."""
    return {"release": settings.release, "checksum": checksum.of(settings.directory)}


def _started(mark, environ, facts):
    """(the job's start by the clock of now, the earliest time that a file of the job's can bear), None where unknown.

    The two differ where the clock was set while the job ran; fact `clock_jump_s` then.
    """
    at = mark.get("at") or hook_environment.number(environ, "SLURM_JOB_START_TIME")
    if not isinstance(at, (int, float)) or not 0 < at < LATEST:
        return None, None
    if not isinstance(mark.get("ticks"), float) or mark.get("boot") != kernel_log.boot():
        return at, at
    by_ticks = time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - mark["ticks"])
    if abs(by_ticks - at) < JUMP_S:
        return at, at
    facts["clock_jump_s"] = round(by_ticks - at, 1)
    return by_ticks, min(at, by_ticks)


def _part(facts, name, collect):
    try:
        return collect()
    except Exception as error:
        # One unreadable source must not cost the others.
        facts.setdefault("errors", []).append("%s: %s: %s" % (name, type(error).__name__, error))
        return None


def _gpus(environ, settings, mark, deadline):
    """[(index, PCI address or None)]; as the Prolog saw them, since a lost GPU has no entry any more."""
    indices = hook_environment.gpu_indices(environ)
    known = mark.get("gpus") or (gpu_addresses.addresses(settings, deadline) if indices else {})
    return [(index, known.get(str(index))) for index in indices]


def _kernel(environ, settings, mark, own, deadline):
    log = kernel_log.since(settings.kernel_log, mark.get("kernel"), mark.get("at"), deadline)
    addresses = [address for _, address in own if address]
    job_id, uid = hook_environment.job_id(environ), hook_environment.number(environ, "SLURM_JOB_UID")
    kept, foreign = kernel_log.relevant(log.lines, job_id, uid, addresses, bool(own), hook_environment.sluid(environ))
    found = {"kernel": kept, "kernel_source": settings.kernel_log.split(":", 1)[0]}
    errors = [log.lost] if log.lost else []
    if foreign and len(addresses) < len(own):
        errors.append("%d lines name a GPU, and which GPUs the job had is unknown" % foreign)
    if errors:
        found["kernel_error"] = "; ".join(errors)
    if own:
        found["fallen"] = nvml.fallen(settings, log.lines)
    return found
