"""Install the step counter in every Python of a counted job, then run the sitecustomize that this file hides.

Python finds this file through PYTHONPATH. Python 3.6 syntax. It imports only sys and os until torch itself is imported,
and raises no exception of its own: the user's program must not notice it.
"""

import sys

_HERE = __file__.rpartition("/")[0]


def _inject():
    import os

    if os.environ.get("SLURMWRAP_STEP_DIR"):
        _load("slurmwrap_step", [_HERE]).install()
    if os.environ.get("SLURMWRAP_PRERUN") == "1":
        _print_stacks_on_request()
        _compiled("slurmwrap_opened_files").install()
        _compiled("slurmwrap_launcher_options").install()
        for name in ("shadow", "os_functions", "children", "guard", "library_patches"):
            module = _compiled("slurmwrap_" + name)
        sys.modules["slurmwrap_guard"].install(module)


def _print_stacks_on_request():
    """Print the stacks on SIGURG, by which trial/activity.py asks a program that stands still. It does nothing else."""
    try:
        import faulthandler

        faulthandler.register(23, all_threads=True)
    except Exception:  # no standard error
        pass


def _compiled(name):
    """Import one of these modules and cache its bytecode in the trial's directory: this speeds up Python's start."""
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return _load(name, [_HERE])
    finally:
        sys.dont_write_bytecode = kept


def _shadowed():
    """Run the sitecustomize that this file hides (Debian ships one; so do the Python modules of some clusters)."""
    loading = sys.modules.get("sitecustomize")
    if getattr(loading, "__file__", "").rpartition("/")[0] != _HERE:
        # Another sitecustomize, which runs the next one as this file does, has run this file.
        return
    _load("sitecustomize", [entry for entry in sys.path if entry.rstrip("/") != _HERE])


def _load(name, path):
    """Import `name` from the directories `path` instead of sys.path. Return None if it is not found."""
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
    # If the hidden sitecustomize runs the next one too, this file is executed a second time.
    if not hasattr(sys, "_slurmwrap"):
        sys._slurmwrap = True
        _inject()
except Exception:
    pass
# An exception of the hidden sitecustomize is not caught: site.py reports it as it would without this file.
_shadowed()
