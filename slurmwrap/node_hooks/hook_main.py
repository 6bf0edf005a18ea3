"""Entry point of the hooks' zipapp: a shim runs `python -I -S node_hooks.pyz CONTEXT HOOKS.JSON [TOKEN]`.

As a hook it never raises and always exits 0. The deadline here is 2 s before that of the shim's watchdog, so that a late
hook can still send the facts that it has collected before the watchdog kills it.
"""
import os
import signal
import time

DEADLINE_S = 8.0


def main(argv):
    """Run one hook, or the check of a node (node_check.py), and return the exit code, which is always 0.

    `argv`: [program, context, path of hooks.json, the shim's token].
    """
    if argv[1:2] == ["check"]:
        # No hook: a job of root's runs it, and an error in it must be seen.
        from . import node_check

        return node_check.main(argv)
    deadline = time.monotonic() + DEADLINE_S
    settings = None
    try:
        _start_session()
        from . import hook_settings as settings_module

        settings = settings_module.load(argv[2], os.environb, "".join(argv[3:4]))
        hook(argv[1])(os.environb, settings, deadline)
    except BaseException as error:
        # An error in a hook must not drain the node; this includes SystemExit and KeyboardInterrupt.
        _record_failure(settings, argv, error)
    return 0


def hook(context):
    """Return the function that runs the hook of `context`; it is called with (environ, settings, deadline)."""
    if context == "prolog":
        from .prolog import run
    elif context == "epilog":
        from .epilog import run
    else:
        raise ValueError("no hook named %r" % context)
    return run


def _start_session():
    """Start a new session, so that the shim can kill all processes of the hook, and unblock all signals.

    Slurm's daemons start hooks with some signals blocked.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        os.setsid()
    except OSError:
        # This process already leads a process group.
        pass


def _record_failure(settings, argv, error):
    """Write the failure to the node's private directory, where an administrator can find it. Never raises."""
    try:
        from . import node_state

        node_state.note(settings, "%s: %s: %s" % (" ".join(argv[1:2]), type(error).__name__, error))
    except BaseException:
        pass
