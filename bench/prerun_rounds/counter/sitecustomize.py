"""Count the training steps of a program, for the ground truth of a round. Independent of slurmwrap.

Python imports this module at its start if its directory is on PYTHONPATH. Each process that makes steps writes
$PRERUN_ROUNDS_STEPS/<pid>: a JSON object of counts by source. "torch": step() of its busiest optimizer; "torch_all":
of all optimizers; "keras": batches of fit(); "optax": optax.apply_updates(); "jax": gradients. With JAX a call inside
jit() is traced once, so a callback that runs with the compiled program counts. If PRERUN_ROUNDS_LINES is set,
first_lines.py records when each line first runs. Nothing here may end the program.
"""

# mypy: ignore-errors

import json
import os
import sys

_FOLDER = os.environ.get("PRERUN_ROUNDS_STEPS", "")
_counts = {}
_optimizers = {}
_depth = {}


def _count(source, number=None):
    try:
        _counts[source] = _counts.get(source, 0) + 1 if number is None else max(number, _counts.get(source, 0))
        path = _FOLDER + "/" + str(os.getpid())
        with open(path, "w") as file:  # noqa: PTH123 - quick to import
            json.dump(_counts, file)
    except Exception:
        pass


def _patch_torch(module):
    # A subclass may call its parent's step(), and both are hooked: only the outer call counts.
    def before(optimizer, args, kwargs):
        _depth[id(optimizer)] = _depth.get(id(optimizer), 0) + 1

    def after(optimizer, args, kwargs):
        key = id(optimizer)
        _depth[key] = _depth.get(key, 1) - 1
        if _depth[key] <= 0:
            _optimizers[key] = _optimizers.get(key, 0) + 1
            _count("torch_all")
            _count("torch", _optimizers[key])

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _patch_keras(module):
    original = module.CallbackList.on_train_batch_end

    def on_train_batch_end(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        _count("keras")
        return result

    module.CallbackList.on_train_batch_end = on_train_batch_end


def _tick_when_run(source):
    try:
        import jax

        jax.debug.callback(lambda: _count(source))
    except Exception:
        pass


def _patch_optax(module):
    original = module.apply_updates

    def apply_updates(*args, **kwargs):
        result = original(*args, **kwargs)
        _tick_when_run("optax")
        return result

    module.apply_updates = apply_updates


def _patch_jax(module):
    import functools

    original = module.value_and_grad

    @functools.wraps(original)
    def value_and_grad(*args, **kwargs):
        function = original(*args, **kwargs)

        @functools.wraps(function)
        def counted(*values, **named):
            result = function(*values, **named)
            _tick_when_run("jax")
            return result

        return counted

    module.value_and_grad = value_and_grad


_PATCHES = {
    "torch.optim.optimizer": _patch_torch,
    "keras.src.callbacks.callback_list": _patch_keras,
    "optax._src.update": _patch_optax,
    "jax._src.api": _patch_jax,
}


class _Finder:
    """Finds the modules above as usual and patches them when they were executed."""

    def find_spec(self, name, path=None, target=None):
        patch = _PATCHES.get(name)
        if patch is None:
            return None
        for finder in sys.meta_path:
            found = None if finder is self or not hasattr(finder, "find_spec") else finder.find_spec(name, path, target)
            if found is not None:
                _wrap(found.loader, patch)
                return found
        return None


def _wrap(loader, patch):
    original = loader.exec_module

    def exec_module(module):
        original(module)
        try:
            patch(module)
        except Exception as error:
            sys.stderr.write(f"steps are not counted: {error!r}\n")

    loader.exec_module = exec_module


if _FOLDER:
    sys.meta_path.insert(0, _Finder())
if os.environ.get("PRERUN_ROUNDS_LINES"):
    import first_lines

    first_lines.start(_counts, os.environ["PRERUN_ROUNDS_LINES"], os.environ["PRERUN_ROUNDS_ROOT"])
