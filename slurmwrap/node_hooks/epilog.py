"""The Epilog hook: collects the facts about a job that ended on this node and sends them as one observation."""
import os
import time

from . import checksum, gpu_addresses, hook_environment, network_ports, nvml, munge_spool, node_state
from . import kernel_log
from . import log_tails

# Seconds for reading the job's logs and for asking NVML.
LOGS_S = 3.0
NVML_S = 3.0
# Seconds by which wall clock and monotonic clock must differ before the wall clock counts as having been set.
JUMP_S = 5.0
# A larger start time is not a Unix time (this one is in the year 5138).
LATEST = 1e11
# Seconds reserved for MUNGE and the spool.
SEND_S = 2.0


def run(environ, settings, deadline):
    """Collect the facts of the job and send one observation. A part that fails is omitted; the others are sent."""
    job_id = hook_environment.job_id(environ)
    facts = hook_environment.common(environ)
    facts.update(hook_environment.ending(environ))
    facts.update(_collect_facts(environ, settings, job_id, facts, deadline - SEND_S))
    munge_spool.send(munge_spool.observation(settings, job_id, "epilog", facts), settings, deadline)


def _collect_facts(environ, settings, job_id, facts, deadline):
    mark = _collect_part(facts, "mark", lambda: node_state.take_mark(settings, job_id)) or {}
    facts["started_at"], since = _start_times(mark, environ, facts)
    own = _collect_part(facts, "gpus", lambda: _gpus(environ, settings, mark, deadline)) or []
    found = _collect_part(facts, "kernel", lambda: _kernel(environ, settings, mark, own, deadline)) or {}
    found["hooks"] = _collect_part(facts, "hooks", lambda: _hook_version(settings)) or {}
    found.update(_collect_part(facts, "usage", lambda: node_state.take_usage(settings, job_id)) or {})
    found.update(_collect_part(facts, "network", lambda: _network(settings, mark.get("network"), deadline)) or {})
    if hook_environment.first_node(facts["nodes"]) == settings.node:
        late = min(deadline, time.monotonic() + LOGS_S)
        found.update(_collect_part(facts, "logs", lambda: log_tails.tails(environ, since, late)) or {})
    if own:
        found.update(_collect_part(facts, "clocks", lambda: node_state.take_clocks(settings, job_id)) or {})
        late = min(deadline, time.monotonic() + NVML_S)
        lost = found.pop("fallen", "")
        found.update(_collect_part(facts, "gpu", lambda: _gpu_states(settings, own, late, since, lost)) or {})
    return found


def _hook_version(settings):
    """Return release and checksum of this node's hooks. `slurmwrap doctor` compares them with the controller's."""
    return {"release": settings.release, "checksum": checksum.of(settings.directory)}


def _gpu_states(settings, own, deadline, since, lost):
    if os.path.exists(settings.nvidia_control):
        return nvml.states(settings, own, deadline, since, lost)
    # Imported here, as each module takes a part of the hook's time.
    from . import amd_gpus

    return amd_gpus.states(settings, own, deadline)


def _network(settings, before, deadline):
    """Return what changed on the node's network ports since the Prolog read them; {} where it could not."""
    if not isinstance(before, dict) or not before.get("ports"):
        return {}
    now, error = network_ports.read(settings, deadline, before)
    found = {"network": network_ports.compare(before, now, not error)}
    return dict(found, network_error=error) if error else found


def _start_times(mark, environ, facts):
    """Return (the job's start by the present clock, the earliest time stamp that a file of the job can have).

    Both are None when unknown. They differ when the clock was set while the job ran; then fact `clock_jump_s` is added.
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


def _collect_part(facts, name, collect):
    try:
        return collect()
    except Exception as error:
        # One unreadable source must not prevent reading the others.
        facts.setdefault("errors", []).append("%s: %s: %s" % (name, type(error).__name__, error))
        return None


def _gpus(environ, settings, mark, deadline):
    """Return [(index, PCI address or None)] of the job's GPUs.

    The addresses that the Prolog saved are preferred, since a GPU that was lost during the job has no entry any more.
    """
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
