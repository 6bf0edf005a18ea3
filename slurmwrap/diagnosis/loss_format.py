"""Name the framework whose format the rows with a loss have. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# The first expression that a row matches names its format.
_FORMATS = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("axolotl", r"'memory/(?:max_|device_)"),
        ("llama-factory", r'"current_steps": ?\d'),
        ("fairseq", r"train_inner|\| nll_loss |num_updates"),
        ("transformers", r"\{'(?:loss|eval_\w{1,40})': "),
        ("nemo", r"reduced_train_loss"),
        ("megatron", r"lm loss(?: value)?: .{0,400}\|"),
        ("espnet", r"\depoch(?:: ?train:| results:)"),
        ("opennmt", r"\bxent: "),
        (
            "mmengine",
            r"(?:Epoch|Iter)\((?:train|val)\)|mm(?:det|engine|cv|seg|pose|cls)\b|Epoch \[\d+\]\[\d+/\d+\]\tlr",
        ),
        ("detectron2", r"d2\.utils\.events|\btotal_loss"),
        ("paddle", r"\bpp(?:det|cls|ocr|seg)\b|\[TRAIN\] epoch|batch_cost|interval_runtime|step +\d+/\d+ - loss"),
        ("torchtitan", r"step: *\d.{0,40}loss: .{0,120}(?:memory: |tps: )"),
        ("deepspeed", r"iter time \(s\)|deepspeed|\bskipped=\d"),
        ("torchtune", r"^\W{0,3}\d+\|\d+\|Loss: "),
        ("timm", r"Train: \d+ \[|Test: \[ *\d+/\d+\]\s+Time"),
        ("diffusers", r"step_loss="),
        (
            "lightning",
            r"\bv_num[=:]|train_loss_step=|epoch,step,|table (?:.* )?(?:epoch|step) .*train_loss(?:_step|_epoch)",
        ),
        ("keras", r"(?:ms|us|s)/(?:step|epoch|sample)\b|\d/\d+ \[[=.>]|\d/\w+ - \d+s - "),
        ("yolo", r"table .*(?:box|obj|cls)_loss"),
        ("fastai", r"table epoch train_loss valid_loss"),
        ("nanogpt", r"\biter \d+: loss |\bstep \d+: train loss "),
        ("lightgbm", r"\]\s+\w+'s \w+: "),
        ("xgboost", r"\[\d+\]\s+\w+-\w+(?:@\d+)?:"),
        ("catboost", r"\d+:\s+learn: "),
        ("maxtext", r"completed step: "),
        ("table", r"^table "),
        ("json", r'\{"'),
        ("tqdm", r"\d%\|"),
    )
)


def name_format(rows: Iterable[str]) -> str:
    """Return the name of the most frequent format of `rows`, "plain" for none that is known; "" without rows."""
    counts = Counter(next((name for name, pattern in _FORMATS if pattern.search(row)), "plain") for row in rows)
    return counts.most_common(1)[0][0] if counts else ""
