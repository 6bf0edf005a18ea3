"""Loaded by every Python that a counted job starts: hooks the step counter in, then runs the shadowed sitecustomize.

Found through PYTHONPATH. Python 3.6 syntax; nothing but sys and os until torch itself is imported, and no exception
of ours ever leaves this file: the user's program must not notice it.
"""

import sys


def _inject():
    import os

    if "SLURMWRAP_STEP_DIR" in os.environ:
        import slurmwrap_step

        slurmwrap_step.install()
    if os.environ.get("SLURMWRAP_PRERUN") == "1":
        import slurmwrap_launch

        slurmwrap_launch.install()


def _shadowed():
    """Runs the sitecustomize that ours hides (Debian ships one; so do some clusters' Python modules)."""
    here = __file__.rpartition("/")[0]
    path = [entry for entry in sys.path if entry.rstrip("/") != here]
    for finder in sys.meta_path:
        if getattr(finder, "__name__", "") != "PathFinder":
            continue
        spec = finder.find_spec("sitecustomize", path)
        if spec is None or spec.loader is None:
            return
        module = type(sys)("sitecustomize")
        module.__spec__, module.__file__, module.__loader__ = spec, spec.origin, spec.loader
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
        return


try:
    _inject()
except Exception:
    pass
_shadowed()  # what this raises, it raised without us, and site.py reports it as before
