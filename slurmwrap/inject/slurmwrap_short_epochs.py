"""End loaders after a few batches, and the epochs of trainers after a step, once a pre-run's rehearsal has begun.

Loaders of torch, TensorFlow and Grain end in a `for` loop, in a library, or where the program handles StopIteration; a
plain `next(batches)` still gets its batch. The trainers of transformers, Lightning and Keras are asked to end their
epoch, to validate and to save as at the end of an epoch, and to stop after the second one. Nothing changes before the
rehearsal. Python 3.6 syntax, standard library; never raises into the program but for StopIteration. Sources:
transformers/trainer_callback.py (4.30 to 5), lightning/pytorch/loops/training_epoch_loop.py (2.0 to 2.6),
keras/src/callbacks/callback_list.py (2.13 to 3.15).
"""

import functools
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OF_SLURMWRAP = True
_WRAPPED = "_slurmwrap_short"


def hook(name: str, module: "Any", rehearsal: "Any") -> None:
    """Patch `module`, which was just imported as `name`, so that `rehearsal` shortens its epochs."""
    if name == "torch.utils.data.dataloader":
        _shorten_iterator(module._BaseDataLoaderIter, rehearsal)
        _shorten_length(module.DataLoader, rehearsal)
    elif name.startswith("transformers"):
        _shorten_transformers(module.CallbackHandler, rehearsal)
    elif name.startswith(("lightning", "pytorch_lightning")):
        for kind in ("_TrainingEpochLoop", "TrainingEpochLoop"):
            if hasattr(module, kind):
                _shorten_lightning(getattr(module, kind), rehearsal)
    elif hasattr(module, "CallbackList"):
        _shorten_keras(module.CallbackList, rehearsal)
    else:
        for kind in ("OwnedIterator", "NumpyIterator", "_NumpyIterator", "DataLoaderIterator"):
            if hasattr(module, kind):
                _shorten_iterator(getattr(module, kind), rehearsal)


def _replace(kind: "Any", name: str, make: "Any") -> None:
    """Replace the method `name` of a class by `make(method)`, once."""
    plain = getattr(kind, name, None)
    if plain is not None and not getattr(plain, _WRAPPED, False):
        wrapper = functools.wraps(plain)(make(plain))
        setattr(wrapper, _WRAPPED, True)
        setattr(kind, name, wrapper)


def _quietly(action: "Any", *arguments: "Any") -> None:
    try:
        action(*arguments)
    except Exception:
        pass


# --- loaders --------------------------------------------------------------------------------------------------------


def _shorten_iterator(kind: "Any", rehearsal: "Any") -> None:
    def make(plain: "Any") -> "Any":
        def __next__(self: "Any") -> "Any":
            state = self.__dict__
            count = state.get("_slurmwrap_batches", 0)
            if rehearsal.active and (state.get("_slurmwrap_over") or count >= rehearsal.limit):
                if state.get("_slurmwrap_over") or _may_end(sys._getframe(1)):
                    rehearsal.loader_ended = True
                    _quietly(rehearsal.note_end, "loader")
                    raise StopIteration
            batch = plain(self)
            rehearsal.loader_began = rehearsal.loader_began or (rehearsal.loader_ended and not count)
            state["_slurmwrap_batches"] = count + 1
            rehearsal.fetched, rehearsal.batches = True, count + 1
            return batch

        return __next__

    _replace(kind, "__next__", make)
    kind._slurmwrap_shortened = True


def _shorten_length(kind: "Any", rehearsal: "Any") -> None:
    """Let len(loader) be what the loader will give, for loops over range(len(loader))."""

    def make(plain: "Any") -> "Any":
        def __len__(self: "Any") -> int:
            length = plain(self)
            return min(length, rehearsal.limit) if rehearsal.active else length

        return __len__

    _replace(kind, "__len__", make)


# Instructions that take StopIteration as the end: of a `for` loop and of `yield from`.
_ENDING = ("FOR_ITER", "YIELD_FROM", "SEND", "FOR_LOOP")
_GENERATOR = 0x20


def _may_end(frame: "Any") -> bool:
    """Return whether the code that asks for the next batch expects that there is none.

    A generator passes the end on to the code that asked it, unless it is one of the program that starts its loader again.
    """
    try:
        layer = sys.modules["slurmwrap_rehearsal"]
        while frame is not None and _accepts_end(frame, layer):
            if not frame.f_code.co_flags & _GENERATOR or (layer.is_own(frame) and layer.is_repeated(frame)):
                return True
            frame = frame.f_back
    except Exception:
        pass
    return False


def _accepts_end(frame: "Any", layer: "Any") -> bool:
    import linecache
    import opcode

    if opcode.opname[frame.f_code.co_code[frame.f_lasti]] in _ENDING:
        return True
    if "-packages/" in frame.f_code.co_filename or not layer.is_own(frame):
        return True
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
    # sum(batches), list(batches): whatever takes all of them.
    if line and "next" not in line:
        return True
    return bool(layer.is_stop_handled(frame))


# --- trainers -------------------------------------------------------------------------------------------------------


def _shorten_transformers(kind: "Any", rehearsal: "Any") -> None:
    def make_step_end(plain: "Any") -> "Any":
        def on_step_end(self: "Any", args: "Any", state: "Any", control: "Any", **kwargs: "Any") -> "Any":
            result = plain(self, args, state, control, **kwargs)
            if rehearsal.active:
                control.should_epoch_stop = True
            return result

        return on_step_end

    def make_epoch_end(plain: "Any") -> "Any":
        def on_epoch_end(self: "Any", args: "Any", state: "Any", control: "Any", **kwargs: "Any") -> "Any":
            result = plain(self, args, state, control, **kwargs)
            if rehearsal.active:
                _quietly(_end_transformers_epoch, self, args, control, rehearsal)
            return result

        return on_epoch_end

    _replace(kind, "on_step_end", make_step_end)
    _replace(kind, "on_epoch_end", make_epoch_end)


def _end_transformers_epoch(handler: "Any", args: "Any", control: "Any", rehearsal: "Any") -> None:
    rehearsal.note_end("epoch_end")
    ends = handler.__dict__["_slurmwrap_epochs"] = handler.__dict__.get("_slurmwrap_epochs", 0) + 1
    control.should_log = True
    strategy = getattr(args, "eval_strategy", None) or getattr(args, "evaluation_strategy", None)
    if _is_wanted(strategy):
        control.should_evaluate = True
    if _is_wanted(getattr(args, "save_strategy", None)):
        control.should_save = True
    if ends >= 2:
        control.should_training_stop = True


def _is_wanted(strategy: "Any") -> bool:
    return getattr(strategy, "value", strategy) not in (None, "no")


def _shorten_lightning(kind: "Any", rehearsal: "Any") -> None:
    def make(plain: "Any") -> "Any":
        def on_advance_end(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
            if rehearsal.active:
                _quietly(_end_lightning_epoch, self, rehearsal)
            return plain(self, *args, **kwargs)

        return on_advance_end

    _replace(kind, "on_advance_end", make)


def _end_lightning_epoch(loop: "Any", rehearsal: "Any") -> None:
    """Make the batch that was just processed the last one of the epoch, and the next epoch the last one."""
    trainer = loop.trainer
    fit = trainer.fit_loop
    batches = loop.batch_progress.current.ready
    fit.max_batches = batches
    loop.batch_progress.is_last_batch = True
    if trainer.val_check_batch != float("inf"):
        trainer.val_check_batch = batches if trainer.check_val_every_n_epoch is not None else 1
    # Also the epochs in which a validation is due.
    if trainer.check_val_every_n_epoch is not None:
        trainer.check_val_every_n_epoch = 1
    for name in ("limit_val_batches", "limit_test_batches", "limit_predict_batches"):
        if getattr(trainer, name, 0):
            setattr(trainer, name, rehearsal.limit)
    validation = loop.val_loop
    validation._max_batches = [min(each, rehearsal.limit) for each in validation._max_batches]
    if not fit.__dict__.get("_slurmwrap_last"):
        last = fit.__dict__["_slurmwrap_last"] = trainer.current_epoch + 2
        wanted = fit.max_epochs
        fit.max_epochs = last if wanted in (None, -1) else min(wanted, last)
    rehearsal.note_end("epoch_end")


def _shorten_keras(kind: "Any", rehearsal: "Any") -> None:
    def make_batch_end(plain: "Any", attribute: str) -> "Any":
        def on_batch_end(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
            result = plain(self, *args, **kwargs)
            if rehearsal.active:
                _quietly(_stop_keras, self, attribute)
            return result

        return on_batch_end

    def make_epoch_end(plain: "Any") -> "Any":
        def on_epoch_end(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
            result = plain(self, *args, **kwargs)
            if rehearsal.active:
                _quietly(_end_keras_epoch, self, rehearsal)
            return result

        return on_epoch_end

    _replace(kind, "on_train_batch_end", lambda plain: make_batch_end(plain, "stop_training"))
    _replace(kind, "on_test_batch_end", lambda plain: make_batch_end(plain, "stop_evaluating"))
    _replace(kind, "on_epoch_end", make_epoch_end)


def _find_keras_model(callbacks: "Any") -> "Any":
    # The list of tf.keras has no attribute `model`, but its callbacks have.
    model = getattr(callbacks, "model", None) or getattr(callbacks, "_model", None)
    return model if model is not None else callbacks.callbacks[0].model


def _stop_keras(callbacks: "Any", attribute: str) -> None:
    setattr(_find_keras_model(callbacks), attribute, True)


def _end_keras_epoch(callbacks: "Any", rehearsal: "Any") -> None:
    ends = callbacks.__dict__["_slurmwrap_epochs"] = callbacks.__dict__.get("_slurmwrap_epochs", 0) + 1
    _find_keras_model(callbacks).stop_training = ends >= 2
    rehearsal.note_end("epoch_end")
