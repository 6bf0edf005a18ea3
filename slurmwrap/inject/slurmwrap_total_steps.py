"""Find how many steps the whole training will have, when a pre-run has seen enough of them.

The trainers of transformers, Lightning and Keras know it, and a program with tqdm shows it. Nothing is patched: the
live objects are searched once, so that a step costs nothing. slurmwrap_counter imports this module. Python 3.6 syntax,
standard library; never raises into the program. Sources: transformers/trainer_callback.py (4.30 to 5),
lightning/pytorch/trainer/trainer.py (1.8 to 2.6), keras/src/callbacks/callback_list.py (2.13 to 3.15), tqdm/std.py.
"""

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OF_SLURMWRAP = True
# Whether the total gets smaller with more processes, each of which takes a part of the data.
FIXED, SHARED, UNKNOWN = 0, 1, 2
_MOST = 10**12
# Without one of these modules no trainer and no bar can exist. The search takes a third of a second in large programs.
_MODULES = ("transformers.trainer", "lightning.pytorch", "pytorch_lightning", "keras", "tf_keras", "tensorflow", "tqdm.std")


def find_total(steps: int) -> "Any":
    """Return (total, FIXED, SHARED or UNKNOWN) after `steps` steps; None if the program does not show it.

    Of several trainers the one with the largest total counts; a progress bar only counts without a trainer.
    """
    if not any(name in sys.modules for name in _MODULES):
        return None
    readers = (("trainer", _of_transformers), ("lightning", _of_lightning), ("keras", _of_keras))
    things = _find_things()
    for name, read in readers:
        found = [total for total in (_quietly(read, thing) for thing in things[name]) if _is_possible(total, steps)]
        if found:
            return max(found)
    total = _quietly(_of_bars, things["tqdm"])
    return total if _is_possible(total, steps) else None


def _is_possible(total: "Any", steps: int) -> bool:
    return bool(total) and isinstance(total[0], int) and steps < total[0] < _MOST


def _quietly(action: "Any", argument: "Any") -> "Any":
    try:
        return action(argument)
    except Exception:
        return None


def _find_things() -> "Any":
    """Return the live trainers and progress bars by kind. Only types are read, so no code of the program runs."""
    kinds = {}  # type: Any
    found = {"trainer": [], "lightning": [], "keras": [], "tqdm": []}  # type: Any
    for thing in gc.get_objects():
        kind = type(thing)
        if kind not in kinds:
            kinds[kind] = _classify(kind)
        if kinds[kind]:
            found[kinds[kind]].append(thing)
    return found


def _classify(kind: "Any") -> str:
    for base in type.mro(kind) if isinstance(kind, type) else ():
        module, name = str(base.__dict__.get("__module__", "")), type.__dict__["__name__"].__get__(base)
        if name == "Trainer" and module == "transformers.trainer":
            return "trainer"
        if name == "Trainer" and module in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"):
            return "lightning"
        if name == "CallbackList" and "keras" in module.split(".")[0:3]:
            return "keras"
        if name == "tqdm" and module == "tqdm.std":
            return "tqdm"
    return ""


def _of_transformers(trainer: "Any") -> "Any":
    return int(trainer.state.max_steps), FIXED if trainer.args.max_steps > 0 else SHARED


def _of_lightning(trainer: "Any") -> "Any":
    total = int(trainer.estimated_stepping_batches)
    return total, FIXED if total == trainer.max_steps else SHARED


def _of_keras(callbacks: "Any") -> "Any":
    # One process drives all GPUs of a node, and the batch is that of all of them.
    return int(callbacks.params["epochs"]) * int(callbacks.params["steps"]), FIXED


def _of_bars(bars: "Any") -> "Any":
    """Return the total of the only bar over a range or a count, or of a bar over epochs with one over batches in it."""
    live = [bar for bar in bars if isinstance(bar.total, int) and bar.total > 0]
    counted = [bar for bar in live if _is_counted(bar)]
    batches = [bar for bar in live if not _is_counted(bar)]
    if len(counted) == 1 and len(batches) == 1:
        return counted[0].total * batches[0].total, SHARED
    if len(counted) == 1 and not batches and "epoch" not in str(getattr(counted[0], "desc", "") or "").lower():
        return counted[0].total, UNKNOWN
    return None


def _is_counted(bar: "Any") -> bool:
    """Return whether the bar goes over numbers, not over batches."""
    return getattr(bar, "iterable", None) is None or isinstance(bar.iterable, range)
