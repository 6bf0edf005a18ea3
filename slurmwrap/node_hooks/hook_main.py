"""Edge: what a shim starts, `python -I -S node_hooks.pyz CONTEXT HOOKS.JSON [TOKEN]`. Never raises, always exits 0.

The shim's own watchdog is the last resort; the deadline here leaves it 2 s, so that what is known by then is sent.
"""
import os
import signal
import time

DEADLINE_S = 8.0


def main(argv):
    """Runs one hook; `argv`: [program, context, path of hooks.json, the shim's token]. The exit code: always 0."""
    deadline = time.monotonic() + DEADLINE_S
    settings = None
    try:
        _start_clean()
        from . import hook_settings as settings_module

        settings = settings_module.load(argv[2], os.environb, "".join(argv[3:4]))
        hook(argv[1])(os.environb, settings, deadline)
    except BaseException as error:
        # A hook's own fault must not drain a node: also SystemExit and KeyboardInterrupt.
        _record(settings, argv, error)
    return 0


def hook(context):
    """The function of a context: `hook(environ, settings, deadline)`."""
    if context == "prolog":
        from .prolog import run
    elif context == "epilog":
        from .epilog import run
    else:
        raise ValueError("no hook named %r" % context)
    return run


def _start_clean():
    """A session of its own, which the shim can end as a whole; no signal blocked, whatever Slurm's daemon blocks."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        os.setsid()
    except OSError:
        # we lead a group already
        pass


def _record(settings, argv, error):
    """Keeps the last failure on the node, where an administrator looks for it."""
    try:
        from . import node_state

        node_state.note(settings, "%s: %s: %s" % (" ".join(argv[1:2]), type(error).__name__, error))
    except BaseException:
        pass
