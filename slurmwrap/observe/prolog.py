"""Prolog: marks the kernel log for the Epilog of the same job, starts the sampler, and says that the job starts here."""
import time

from . import gpus, job, kernel, sampler, seal, state


def run(environ, settings, deadline):
    """Leaves a mark on the node and sends one observation."""
    job_id = job.job_id(environ)
    mark = {"at": time.time(), "kernel": kernel.mark(settings.kernel_log)}
    if job.gpu_indices(environ):
        mark["gpus"] = gpus.addresses(settings.nvidia_proc, deadline)
    facts = job.common(environ)
    facts["kernel_mark"] = mark["kernel"]
    try:
        state.save_mark(settings, job_id, mark)
        sampler.start(settings, job_id, job.number(environ, "SLURM_JOB_UID"))
    except OSError as error:
        facts["lost"] = "no kernel mark or sampler: %s" % error
    seal.send(seal.observation(settings, job_id, "prolog", facts), settings, deadline)
