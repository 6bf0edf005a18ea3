"""Loaded by every Python that a counted job starts: hooks the step counter in, then runs the shadowed sitecustomize.

Found through PYTHONPATH. Python 3.6 syntax; nothing but sys and os until torch itself is imported, and no exception
of slurmwrap's ever leaves this file: the user's program must not notice it.
"""

import sys

_HERE = __file__.rpartition("/")[0]


def _inject():
    import os

    if os.environ.get("SLURMWRAP_STEP_DIR"):
        _load("slurmwrap_step", [_HERE]).install()
    if os.environ.get("SLURMWRAP_PRERUN") == "1":
        _compiled("slurmwrap_launch").install()
        for name in ("shadow", "calls", "standins", "children", "guard", "entries"):
            module = _compiled("slurmwrap_" + name)
        sys.modules["slurmwrap_guard"].install(module)


def _compiled(name):
    """Imports one of these modules and keeps it compiled in the trial's own directory: else each Python start would do that."""
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return _load(name, [_HERE])
    finally:
        sys.dont_write_bytecode = kept


def _shadowed():
    """Runs the sitecustomize that ours hides (Debian ships one; so do some clusters' Python modules)."""
    loading = sys.modules.get("sitecustomize")
    if getattr(loading, "__file__", "").rpartition("/")[0] != _HERE:
        # Another one has run us, as we run it.
        return
    _load("sitecustomize", [entry for entry in sys.path if entry.rstrip("/") != _HERE])


def _load(name, path):
    """Imports `name` from `path`, whatever sys.path says; None where there is none."""
    for finder in sys.meta_path:
        if getattr(finder, "__name__", "") != "PathFinder":
            continue
        spec = finder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        module = type(sys)(name)
        module.__spec__, module.__file__, module.__loader__ = spec, spec.origin, spec.loader
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    return None


try:
    # One that runs the next sitecustomize finds us again.
    if not hasattr(sys, "_slurmwrap"):
        sys._slurmwrap = True
        _inject()
except Exception:
    pass
# What this raises, it raised without us, and site.py reports it as before.
_shadowed()
