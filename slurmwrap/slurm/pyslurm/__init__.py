"""Edge: Slurm by PySlurm, where it fits (docs/pyslurm.md). Optional; the commands do everything that it does.

PySlurm runs in a child process of its own (worker.py): libslurm ends the whole process by fatal() where slurm.conf is
missing, may crash where its release is not PySlurm's, knows one slurm.conf per process, and has no deadline that could
be set. So the child can be ended, and what comes next is asked of the commands.
"""
