"""Count the steps of frameworks that do not call a torch optimizer once per step: Keras, DeepSpeed, Megatron, JAX.

JAX is counted only on request. slurmwrap_step imports this module when one of the frameworks is imported. Python 3.6
syntax, standard library; never raises into the program. Sources: keras/src/callbacks/callback_list.py,
deepspeed/runtime/engine.py, megatron/training/training.py.
"""

import functools
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OF_SLURMWRAP = True
_WRAPPED = "_slurmwrap"
# Bytes of a type by the digits at the end of its name.
_BYTES = {"64": 8, "32": 4, "16": 2, "8": 1}


def hook(name: str, module: "Any", counter: "Any") -> None:
    """Patch `module`, which was just imported as `name`, so that `counter` counts its steps."""
    if name == "jax":
        if os.environ.get("SLURMWRAP_COUNT_JAX") == "1":
            _hook_jax(module, counter)
    elif name.startswith("transformers"):
        if os.environ.get("SLURMWRAP_PRERUN") == "1":
            _hook_generate(module.GenerationMixin, counter)
    elif name.startswith("deepspeed"):
        _hook_deepspeed(module.DeepSpeedEngine, counter)
        sys.modules["slurmwrap_step"]._layer("slurmwrap_losses").hook(name, module, counter)
    elif name.startswith("megatron"):
        if hasattr(module, "train_step"):
            _hook_megatron(module, counter)
    elif hasattr(module, "CallbackList"):
        _hook_keras(module.CallbackList, counter)
    elif hasattr(module, "Model"):
        _hook_keras_model(module.Model, counter)


def _marked(wrapper: "Any", plain: "Any") -> "Any":
    functools.update_wrapper(wrapper, plain)
    setattr(wrapper, _WRAPPED, True)
    return wrapper


def _quietly(action: "Any", *arguments: "Any") -> "Any":
    try:
        return action(*arguments)
    except Exception:
        return None


def _hook_keras(kind: "Any", counter: "Any") -> None:
    """Count the calls after each batch.

    With `steps_per_execution` there is one call per group of batches, with the index of the last one.
    """
    plain = kind.on_train_batch_end
    if getattr(plain, _WRAPPED, False):
        return

    def on_train_batch_end(self, batch: "Any" = 0, *args: "Any", **kwargs: "Any") -> "Any":
        result = plain(self, batch, *args, **kwargs)
        _quietly(_keras_batch, counter, self, batch)
        return result

    kind.on_train_batch_end = _marked(on_train_batch_end, plain)
    if os.environ.get("SLURMWRAP_STEP_NAMED") == "1":
        _hook_keras_epochs(kind, counter)


def _hook_keras_epochs(kind: "Any", counter: "Any") -> None:
    """Record the mean loss of each epoch, which Keras has computed anyway. On torch its losses pass through backward().

    The losses of batches would have to be fetched from the GPU.
    """
    plain = kind.on_epoch_end
    losses = sys.modules["slurmwrap_step"]._layer("slurmwrap_losses").get(counter)

    def on_epoch_end(self, epoch: "Any", logs: "Any" = None, *args: "Any", **kwargs: "Any") -> "Any":
        _quietly(_keras_epoch, losses, counter, logs)
        return plain(self, epoch, logs, *args, **kwargs)

    kind.on_epoch_end = _marked(on_epoch_end, plain)


def _keras_epoch(losses: "Any", counter: "Any", logs: "Any") -> None:
    if not losses.noted and counter.source == "keras":
        with counter.lock:
            losses.add(counter.count, counter.clock(), float(logs["loss"]))


def _hook_keras_model(kind: "Any", counter: "Any") -> None:
    """Count train_on_batch, which calls no callback: custom training loops, GANs with two models."""
    plain = kind.train_on_batch
    if getattr(plain, _WRAPPED, False):
        return

    def train_on_batch(self, *args: "Any", **kwargs: "Any") -> "Any":
        result = plain(self, *args, **kwargs)
        _quietly(counter.add_of, self, "keras")
        return result

    kind.train_on_batch = _marked(train_on_batch, plain)


def _keras_batch(counter: "Any", callbacks: "Any", batch: "Any") -> None:
    before = callbacks.__dict__.get("_slurmwrap_batch", -1)
    steps = (getattr(callbacks, "params", None) or {}).get("steps")
    # The last group of an epoch may be shorter than `steps_per_execution`.
    batch = min(int(batch), steps - 1) if steps else int(batch)
    callbacks.__dict__["_slurmwrap_batch"] = batch
    if before < 0 and "keras" not in counter.added:
        _quietly(_keras_model, counter, callbacks)
    counter.add("keras", batch - before if batch > before else batch + 1)  # smaller: the next epoch


def _keras_model(counter: "Any", callbacks: "Any") -> None:
    model = getattr(callbacks, "model", None)
    # The list of tf.keras has no attribute `model`, but its callbacks have.
    if model is None:
        model = callbacks.callbacks[0].model
    counter.model_of([_keras_bytes(variable) for variable in model.trainable_variables])


def _keras_bytes(variable: "Any") -> int:
    name = getattr(variable.dtype, "name", variable.dtype)
    size = next((size for digits, size in _BYTES.items() if str(name).endswith(digits)), 4)
    for length in variable.shape:
        size *= int(length)
    return size


def _hook_deepspeed(kind: "Any", counter: "Any") -> None:
    """Count calls of _take_model_step, each one step of the model; a step skipped for an overflow does not count."""
    plain = kind._take_model_step
    if getattr(plain, _WRAPPED, False):
        return

    def _take_model_step(self, *args: "Any", **kwargs: "Any") -> "Any":
        _quietly(counter.enter, "deepspeed")
        skipped = getattr(self, "skipped_steps", None)
        result = plain(self, *args, **kwargs)
        if getattr(self, "skipped_steps", None) == skipped:
            _quietly(_engine_step, counter, self)
        return result

    kind._take_model_step = _marked(_take_model_step, plain)


def _engine_step(counter: "Any", engine: "Any") -> None:
    if not counter.of(engine):
        _quietly(_model_of, counter, [engine.module])
    counter.add_of(engine, "deepspeed")


def _hook_generate(kind: "Any", counter: "Any") -> None:
    """Leave a mark at the first generated text. It is no step, but shows that the program does its work."""
    plain = kind.generate
    if getattr(plain, _WRAPPED, False):
        return

    def generate(self, *args: "Any", **kwargs: "Any") -> "Any":
        if kind.__dict__.get("generate") is wrapped:
            _quietly(counter.leave, "generate")
            # One mark is enough, so restore the original.
            kind.generate = plain
        return plain(self, *args, **kwargs)

    wrapped = _marked(generate, plain)
    kind.generate = wrapped


def _hook_megatron(module: "Any", counter: "Any") -> None:
    """Count calls of train_step(forward_step_func, data_iterator, model, ...), which returns (losses, skipped, ...)."""
    plain = module.train_step
    if getattr(plain, _WRAPPED, False):
        return

    def train_step(*args: "Any", **kwargs: "Any") -> "Any":
        _quietly(counter.enter, "megatron")
        result = plain(*args, **kwargs)
        _quietly(_megatron_step, counter, result, kwargs.get("model", args[2] if len(args) > 2 else None))
        return result

    module.train_step = _marked(train_step, plain)


def _megatron_step(counter: "Any", result: "Any", model: "Any") -> None:
    if isinstance(result, tuple) and len(result) > 1 and result[1]:
        return
    if counter.losses is not None and isinstance(result, tuple) and isinstance(result[0], dict):
        # Megatron calls the autograd engine directly. The last stage of its pipeline returns the mean losses.
        _quietly(counter.losses.note, [loss for name, loss in result[0].items() if "loss" in name][:1])
    if "megatron" not in counter.added and model is not None:
        _quietly(_model_of, counter, model if isinstance(model, (list, tuple)) else [model])
    counter.add("megatron")


def _model_of(counter: "Any", modules: "Any") -> None:
    layer = sys.modules["slurmwrap_torch"]
    tensors = dict((id(p), p) for module in modules for p in module.parameters() if p.requires_grad)
    counter.model_of([size for p in tensors.values() for size in layer.sizes(p)], layer.world_size())


def _hook_jax(jax: "Any", counter: "Any") -> None:
    """Count the calls of the jitted function that is called most.

    Only on request, because the program gets a proxy instead of a jitted function.
    """
    plain = jax.jit
    if getattr(plain, _WRAPPED, False):
        return

    def jit(*args: "Any", **kwargs: "Any") -> "Any":
        made = plain(*args, **kwargs)
        # Called with options only, as a decorator factory: the function comes with the next call.
        if not args and "fun" not in kwargs:
            return lambda function: _Jitted(made(function), counter)
        return _Jitted(made, counter)

    jax.jit = _marked(jit, plain)


class _Jitted(object):
    """A jitted function that counts its calls."""

    def __init__(self, function: "Any", counter: "Any") -> None:
        self._function, self._counter = function, counter
        self.__wrapped__ = getattr(function, "__wrapped__", function)

    def __call__(self, *args: "Any", **kwargs: "Any") -> "Any":
        result = self._function(*args, **kwargs)
        _quietly(self._counter.add_of, self, "jax")
        return result

    def __get__(self, instance: "Any", owner: "Any" = None) -> "Any":
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._function, name)
