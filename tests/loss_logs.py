"""Outputs of trainings in the formats of many frameworks, with the losses that they show.

Each format is a function that writes rows of one known training. The values are invented; the formats are those that
the frameworks print (public logs of 2018 to 2026).
"""

# ruff: noqa: E501  (messages of software are not wrapped)

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

# (step, epoch, loss, validation loss), as slurmwrap.diagnosis.loss_points makes them.
Shown = tuple[float | None, float | None, float | None, float | None]
_HEAVY = "\N{BOX DRAWINGS HEAVY HORIZONTAL}"


class Row(NamedTuple):
    """One step of the training. `epoch` counts from 0, `done` from 1 within the epoch."""

    epoch: int
    done: int
    total: int
    loss: float
    validation: float | None  # after the last step of an epoch

    @property
    def step(self) -> int:
        """The steps that are done, over all epochs."""
        return self.epoch * self.total + self.done


def train(epochs: int, total: int, start: float = 4.0) -> list[Row]:
    """Return a training with known losses."""
    rows = []
    for step in range(1, epochs * total + 1):
        epoch, done = (step - 1) // total, (step - 1) % total + 1
        loss = round(0.5 + start / (1 + 0.37 * step) + 0.01 * (step * 7 % 5), 4)
        rows.append(Row(epoch, done, total, loss, round(loss * 1.07, 4) if done == total else None))
    return rows


Format = Callable[[list[Row]], tuple[str, list[Shown]]]
FORMATS: dict[str, Format] = {}


def _format(write: Callable[[list[Row]], Iterator[tuple[str, Shown | None]]]) -> None:
    def log(rows: list[Row]) -> tuple[str, list[Shown]]:
        found = list(write(rows))
        return "".join(text for text, _ in found), [shown for _, shown in found if shown is not None]

    FORMATS[write.__name__] = log


def _bar(done: int, total: int, more: str, name: str = "") -> str:
    share = 100 * done // total
    return f"{name}{share:3d}%|{'█' * (share // 10):<10}| {done}/{total} [{done // 60:02d}:{done % 60:02d}<00:09,  1.00it/s{more}]"


@_format
def transformers(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    steps = len(rows)
    for row in rows:
        epoch = round(row.step / row.total, 4)
        yield _bar(row.step, steps, "") + "\r", None
        yield (
            f"{{'loss': {row.loss}, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': {epoch}}}\n",
            (*(None, epoch, row.loss, row.validation),),
        )
        if row.validation is not None:
            yield f"{{'eval_loss': {row.validation}, 'eval_runtime': 2.1, 'epoch': {epoch}}}\n", None
    yield "{'train_runtime': 50.1, 'train_loss': 1.9, 'epoch': 9.0}\n***** train metrics *****\n", None
    yield "  epoch                    =        9.0\n  train_loss               =     1.9000\n", None


@_format
def transformers_5(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        epoch = round(row.step / row.total, 4)
        yield (
            f"{{'loss': '{row.loss}', 'grad_norm': '1.25', 'learning_rate': '5e-05', 'epoch': '{epoch}'}}\n",
            (*(None, epoch, row.loss, None),),
        )


@_format
def axolotl(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    yield "[2025-09-10 10:58:06,758] [INFO] [axolotl.train:203] [PID:651] [RANK:0] Starting trainer...\n", None
    for row in rows:
        epoch = round(row.step / row.total, 4)
        memory = "'memory/max_active (GiB)': 19.2, 'memory/max_allocated (GiB)': 11.0"
        yield (
            f"{{'loss': {row.loss}, 'grad_norm': 9.5, 'learning_rate': 5e-06, {memory}, 'epoch': {epoch}}}\n",
            (*(None, epoch, row.loss, None),),
        )


@_format
def llama_factory(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        epoch = round(row.step / row.total, 4)
        values = {"current_steps": row.step, "total_steps": len(rows), "loss": row.loss, "lr": 1e-5, "epoch": epoch}
        yield json.dumps(values | {"elapsed_time": "0:00:28"}) + "\n", (row.step, epoch, row.loss, None)


@_format
def lightning(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    before = ""
    for row in rows:
        name = f"Epoch {row.epoch}: "
        yield (
            _bar(row.done, row.total, f", v_num=3, train_loss_step={row.loss}{before}", name) + "\r",
            (*(row.step, row.epoch, row.loss, row.validation),),
        )
        if row.validation is not None:
            before = f", val_loss={row.validation}, train_loss_epoch=1.900"
            yield "Validation DataLoader 0: 100%|██████| 7/7 [00:02<00:00, 37.48it/s]\r", None
            yield _bar(row.done, row.total, f", v_num=3, train_loss_step={row.loss}{before}", name) + "\n", None


@_format
def keras(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        if row.done == 1:
            yield f"Epoch {row.epoch + 1}/{rows[-1].epoch + 1}\n", None
        shown = (row.step, row.epoch + 1, row.loss, row.validation)
        if row.validation is None:
            yield f"\r{row.done}/{row.total} [====>.....] - ETA: 3s - loss: {row.loss} - accuracy: 0.81", shown
        else:
            more = f"val_loss: {row.validation} - val_accuracy: 0.79"
            yield (
                f"\r{row.done}/{row.total} [==========] - 5s 7ms/step - loss: {row.loss} - accuracy: 0.81 - {more}\n",
                shown,
            )
            yield f"Epoch {row.epoch + 1}: val_loss improved from 9.1 to 0.2, saving model to best.h5\n", None


@_format
def keras_3(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        if row.done == 1:
            yield f"Epoch {row.epoch + 1}/{rows[-1].epoch + 1}\n", None
        more = "" if row.validation is None else f" - val_accuracy: 0.79 - val_loss: {row.validation}"
        bar = f"\x1b[32m{_HEAVY * 20}\x1b[0m\x1b[37m\x1b[0m"
        line = f"\x1b[1m{row.done}/{row.total}\x1b[0m {bar} \x1b[1m5s\x1b[0m 50ms/step - accuracy: 0.8 - loss: {row.loss}{more}"
        yield f"\r{line}" + "\n" * bool(more), (row.step, row.epoch + 1, row.loss, row.validation)


@_format
def keras_verbose_2(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in (row for row in rows if row.validation is not None):
        yield f"Epoch {row.epoch + 1}/{rows[-1].epoch + 1}\n", None
        yield (
            f"{row.total}/{row.total} - 65s - loss: {row.loss} - val_loss: {row.validation} - 65s/epoch\n",
            (*(row.step, row.epoch + 1, row.loss, row.validation),),
        )


@_format
def megatron(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            (
                f" [2024-03-05 10:{row.step // 60:02d}:{row.step % 60:02d}] iteration {row.step:8d}/{len(rows):8d} | consumed samples: "
                f"     256 | elapsed time per iteration (ms): 500.1 | learning rate: 1.0E-05 | global batch size:   256 | "
                f"lm loss: {row.loss:.6E} | loss scale: 65536.0 | grad norm: 3.1 | number of skipped iterations:   0 | number "
                "of nan iterations:   0 |\n"
            ),
            (row.step, None, float(f"{row.loss:.6E}"), row.validation and float(f"{row.validation:.6E}")),
        )
        if row.validation is not None:
            yield "-" * 90 + "\n", None
            yield (
                f" validation loss at iteration {row.step} | lm loss value: {row.validation:.6E} | lm loss PPL: 9.1E+00 | \n",
                None,
            )


@_format
def deepspeed_pipeline(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            f"[2024-03-05 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step={row.step}, skipped=0, lr=[0.001]\n",
            None,
        )
        yield (
            f"steps: {row.step} loss: {row.loss} iter time (s): 0.123 samples/sec: 123.4\n",
            (row.step, None, row.loss, None),
        )


@_format
def deepspeed_chat(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield f"Epoch: {row.epoch}, Step: {row.done}, Rank: 1, loss = {row.loss + 1}\n" * (row.step > 1), None
        yield (
            f"Epoch: {row.epoch}, Step: {row.done}, Rank: 0, loss = {row.loss}\n",
            (row.step, row.epoch, row.loss, row.validation),
        )
        if row.validation is not None:
            yield (
                f"***** Evaluating perplexity, Epoch {row.epoch}/9 *****\nppl: 9.5, eval loss: {row.validation}\n",
                None,
            )


@_format
def nemo(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        more = f", v_num=0, reduced_train_loss={row.loss}, global_step={row.step}.0, consumed_samples=80.0"
        yield (
            _bar(row.done, row.total, f"{more}, train_step_timing in s=1.2", f"Epoch {row.epoch}: : ") + "\r",
            (*(row.step, row.epoch, row.loss, None),),
        )


@_format
def nemo_2(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    before = ""
    for row in rows:
        before = f" | val_loss: {row.validation}" if row.validation is not None else before
        yield (
            (
                f"Training epoch {row.epoch}, iteration {row.done - 1}/{row.total - 1} | lr: 1e-05 | global_batch_size: 8 | "
                f"global_step: {row.step} | reduced_train_loss: {row.loss} | train_step_timing in s: 1.2{before}\n"
            ),
            (row.step, row.epoch, row.loss, row.validation),
        )


@_format
def timm(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            (
                f"Train: {row.epoch} [{row.done:4d}/{row.total} ({100 * row.done // row.total:3d}%)]  Loss: {row.loss} (2.34)  "
                "Time: 2.134s, 120.00/s  LR: 1.000e-04  Data: 1.000 (1.000)\n"
            ),
            (row.step, row.epoch, row.loss, row.validation),
        )
        if row.validation is not None:
            yield "Test: [   0/9]  Time: 2.1 (2.1)  Loss:  9.8 (9.8)  Acc@1: 1.0 (1.0)\n", None
            yield f"Test: [   9/9]  Time: 2.1 (2.1)  Loss:  9.7 ({row.validation})  Acc@1: 1.0 (1.0)\n", None


@_format
def fairseq(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        clock = f"2021-01-01 12:{row.step // 60:02d}:{row.step % 60:02d} | INFO"
        yield (
            (
                f"{clock} | train_inner | epoch {row.epoch + 1:03d}: {row.done:6d} / {row.total} loss={row.loss}, nll_loss=9.7, "
                f"ppl=800, wps=100, num_updates={row.step}, lr=1e-5, gnorm=2.1, loss_scale=2, train_wall=30, wall=35\n"
            ),
            (row.step, row.epoch + 1, row.loss, row.validation),
        )
        if row.validation is not None:
            epoch = f"epoch {row.epoch + 1:03d}"
            yield (
                f"{clock} | valid | {epoch} | valid on 'valid' subset | loss {row.validation} | nll_loss 8 | num_updates {row.step} | best_loss 0.1\n",
                None,
            )
            yield (
                f"{clock} | train | {epoch} | loss 9.5 | nll_loss 9 | ppl 500 | num_updates {row.step} | lr 1e-5\n",
                None,
            )


@_format
def fairseq_json(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        clock, epoch = "[2021-01-01 12:00:00,123]", row.epoch + 1
        values = {
            "epoch": epoch,
            "update": 0.02,
            "loss": str(row.loss),
            "num_updates": str(row.step),
            "loss_scale": "1",
        }
        yield f"{clock}[train_inner][INFO] - {json.dumps(values)}\n", (row.step, epoch, row.loss, row.validation)
        if row.validation is not None:
            valid = {"epoch": epoch, "valid_loss": str(row.validation), "valid_num_updates": str(row.step)}
            yield f"{clock}[valid][INFO] - {json.dumps(valid)}\n", None
            yield (
                f"{clock}[train][INFO] - {json.dumps({'epoch': epoch, 'train_loss': '9.6', 'train_num_updates': str(row.step)})}\n",
                None,
            )


@_format
def detectron2(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            (
                f"[04/05 01:{row.step // 60:02d}:{row.step % 60:02d} d2.utils.events]: \x1b[0m eta: 0:03:35  iter: {row.step}  "
                f"total_loss: {row.loss}  loss_cls: 0.65  loss_box_reg: 0.58  time: 0.36  lr: 3.8e-06  max_mem: 433M\n"
            ),
            (row.step, None, row.loss, None),
        )


@_format
def mmengine(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            (
                f"2023/01/01 12:{row.step // 60:02d}:{row.step % 60:02d} - mmengine - INFO - Epoch(train)  [{row.epoch + 1}]"
                f"[{row.done:4d}/{row.total}]  lr: 1.0e-02  eta: 1:00:00  time: 0.5  memory: 3000  loss: {row.loss}  loss_cls: 0.5\n"
            ),
            (row.step, row.epoch + 1, row.loss, None),
        )


@_format
def mmengine_iterations(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            (
                f"01/01 12:{row.step // 60:02d}:{row.step % 60:02d} - mmengine - INFO - Iter(train) [{row.step:5d}/80000]  lr: 1e-2  "
                f"eta: 9:00:00  time: 0.5  loss: {row.loss}  decode.loss_ce: 0.4  aux.loss_ce: 0.1\n"
            ),
            (row.step, None, row.loss, None),
        )


@_format
def mmdetection_2(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            (
                f"2020-08-01 01:10:31,475 - mmdet - INFO - Epoch [{row.epoch + 1}][{row.done}/{row.total}]\tlr: 2.000e-02, eta: "
                f"0:52:33, time: 1.8, memory: 5280, loss_rpn_cls: 0.25, s0.loss_cls: 0.2, loss: {row.loss}, grad_norm: 0.06\n"
            ),
            (row.step, row.epoch + 1, row.loss, None),
        )


@_format
def yolo(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in (row for row in rows if row.validation is not None):
        head = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
        epoch, size = f"{row.epoch + 1:>9}/{rows[-1].epoch + 1}", "         12        640"
        yield (
            f"\n{head}{epoch}      2.5G        9.1        1.2        1.1{size}:  50%|███| 4/8 [00:01<00:00,  5.6it/s]",
            None,
        )
        yield (
            f"\r{epoch}      2.5G   {row.loss:8}        1.5        1.25{size}: 100%|███| 8/8 [00:02<00:00,  5.6it/s]\n",
            (*(None, row.epoch + 1, row.loss + 1.5 + 1.25, None),),
        )
        yield "                   all        128        929      0.6      0.5      0.6      0.4\n", None


@_format
def yolo_v5(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in (row for row in rows if row.validation is not None):
        head = "     Epoch   gpu_mem       box       obj       cls     total    labels  img_size\n"
        values = f"{row.loss:9}      0.25       0.5     9.999        28       640"
        yield (
            f"\n{head}{row.epoch:>8}/299      5.2G {values}: 100%|███| 78/78 [00:{40 + row.epoch % 2}<00:00,  4.2it/s]\n",
            (*(None, row.epoch, row.loss + 0.25 + 0.5, None),),
        )


@_format
def nanogpt(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        if row.validation is None:
            yield f"iter {row.step}: loss {row.loss}, time 100.12ms, mfu 20.10%\n", (row.step, None, row.loss, None)
        else:
            yield (
                f"step {row.step}: train loss {row.loss}, val loss {row.validation}\n",
                (row.step, None, row.loss, row.validation),
            )
            yield "saving checkpoint to out\n", None


@_format
def torchtitan(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        clock = f"[rank0]:[titan] 2025-03-12 11:{row.step // 60:02d}:{row.step % 60:02d},511 - root - INFO -"
        yield (
            (
                f"{clock} \x1b[31mstep: {row.step:2d}  \x1b[32mloss: {row.loss:7.4f}  \x1b[34mgrad_norm:  1.5  \x1b[33mmemory: "
                " 1.41GiB(1.79%)  \x1b[34mtps: 193,831  \x1b[36mtflops: 18.36  \x1b[35mmfu: 1.86%\x1b[39m\n"
            ),
            (row.step, None, row.loss, None),
        )
        yield f"[rank1]:{clock[8:]} step: {row.step:2d}  loss: 99.0  memory:  1.41GiB(1.79%)  tps: 193,831\n", None


@_format
def torchtune(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        name = f"1|{row.step}|Loss: {row.loss}: "
        yield _bar(row.step, len(rows), "", name) + "\r", (row.step, None, row.loss, None)


@_format
def espnet(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        clock, epoch = f"[gpu01:0/2] 2020-07-19 08:{row.step // 60:02d}:{row.step % 60:02d},080", row.epoch + 1
        yield (
            (
                f"{clock} (trainer:464) INFO: {epoch}epoch:train:{row.done}-{row.done}batch: iter_time=2.8e-04, loss_ctc=2.4, "
                f"loss_att=7.7, acc=0.013, loss={row.loss}, backward_time=0.111, lr_0=3.4e-06, train_time=1.8\n"
            ),
            (row.step, epoch, row.loss, row.validation),
        )
        if row.validation is not None:
            yield (
                f"{clock} (trainer:338) INFO: {epoch}epoch results: [train] iter_time=1e-4, loss=93.1, time=1 hour, [valid] loss_ctc=70, loss={row.validation}, time=9 seconds\n",
                None,
            )


@_format
def opennmt_2018(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            f"Epoch {row.epoch + 1:2d}, {row.done:5d}/{row.total}; acc:   3.99; ppl: 12792.57; xent: {row.loss}; 3438 src tok/s; 3517 tgt tok/s\n",
            (row.step, row.epoch + 1, row.loss, None),
        )


@_format
def opennmt(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            (
                f"[2018-09-20 15:{row.step // 60:02d}:{row.step % 60:02d},264 INFO] Step {row.step}/100000; acc:  42.02; ppl: 55.22; "
                f"xent: {row.loss}; lr: 0.00100; 2214/2168 tok/s;    950 sec\n"
            ),
            (row.step, None, row.loss, None),
        )
        if row.validation is not None:
            yield "[2018-09-20 15:18:47,173 INFO] Validation perplexity: 56.168\n", None


@_format
def paddle_detection(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            (
                f"[07/21 14:40:44] ppdet.engine INFO: Epoch: [{row.epoch}] [{row.done:3d}/{row.total}] learning_rate: 0.000025 loss_xy: 6.4 "
                f"loss_obj: 5.8 loss: {row.loss} eta: 9 days, 22:18:02 batch_cost: 18.5 data_cost: 17.9 ips: 1.7 images/s\n"
            ),
            (row.step, row.epoch, row.loss, None),
        )


@_format
def paddle_segmentation(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            (
                f"2021-03-30 06:55:57 [INFO]\t[TRAIN] epoch: {row.epoch + 1}, iter: {row.step}/{len(rows)}, loss: {row.loss}, lr: 0.009, "
                "batch_cost: 0.53, reader_cost: 0.07273, ips: 3.7425 samples/sec | ETA 00:04:16\n"
            ),
            (row.step, row.epoch + 1, row.loss, None),
        )


@_format
def paddle_nlp(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        epoch = round(row.step / row.total, 4)
        yield (
            (
                f"[2023-06-30 10:32:50,974] [    INFO] - loss: {row.loss}, learning_rate: 3e-05, global_step: {row.step}, "
                f"interval_runtime: 1.2, interval_steps_per_second: 0.8, epoch: {epoch}\n"
            ),
            (row.step, epoch, row.loss, None),
        )


@_format
def paddle_high_level(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        if row.done == 1:
            yield f"Epoch {row.epoch + 1}/{rows[-1].epoch + 1}\n", None
        yield (
            f"step {row.done:3d}/{row.total} - loss: {row.loss} - acc: 0.5 - 5ms/step\n",
            (*(row.step, row.epoch + 1, row.loss, row.validation),),
        )
        if row.validation is not None:
            yield f"Eval begin...\nstep 5/5 - loss: {row.validation} - acc: 0.6 - 4ms/step\nEval samples: 100\n", None


@_format
def diffusers(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            _bar(row.step, len(rows), f", lr=0.0001, step_loss={row.loss}", "Steps: ") + "\r",
            (row.step, None, row.loss, None),
        )


@_format
def fastai(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    yield "epoch     train_loss  valid_loss  accuracy  time    \n", None
    for row in (row for row in rows if row.validation is not None):
        yield (
            f"{row.epoch:<9} {row.loss:<11} {row.validation:<11} 0.853     00:12     \n",
            (None, row.epoch, row.loss, row.validation),
        )


@_format
def skorch(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    yield (
        "  epoch    train_loss    valid_acc    valid_loss     dur\n-------  ------------  -----------  ------------  ------\n",
        None,
    )
    for row in (row for row in rows if row.validation is not None):
        yield (
            f"{row.epoch + 1:7d}  \x1b[36m{row.loss:12}\x1b[0m       0.6150  {row.validation:12}  0.0360\n",
            (*(None, row.epoch + 1, row.loss, row.validation),),
        )


@_format
def chainer(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    yield "epoch       iteration   main/loss   validation/main/loss  elapsed_time  \n", None
    for row in rows:
        validation = "" if row.validation is None else row.validation
        yield (
            f"\x1b[J{row.epoch:<12}{row.step:<12}{row.loss:<12}{validation:<22}{113.5:<14}\n",
            (row.step, row.epoch, row.loss, row.validation),
        )
        yield "\x1b[J     total [....................]  0.43%\nthis epoch [.....]  0.43%\n", None


@_format
def xgboost(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        other = round(row.loss * 1.1, 4)
        yield (
            f"[{row.step}]\ttrain-auc:0.91\ttrain-logloss:{row.loss}\teval-auc:0.9\teval-logloss:{other}\n",
            (row.step, None, row.loss, other),
        )


@_format
def lightgbm(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    yield "[LightGBM] [Info] Total Bins 50\nTraining until validation scores don't improve for 100 rounds\n", None
    for row in rows:
        other = round(row.loss * 1.1, 4)
        yield f"[{row.step}]\ttraining's l2: {row.loss}\tvalid_1's l2: {other}\n", (row.step, None, row.loss, other)


@_format
def catboost(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        other = round(row.loss * 1.1, 4)
        yield (
            f"{row.step}:\tlearn: {row.loss}\ttest: {other}\tbest: 0.1 (9)\ttotal: 70.1ms\tremaining: 1m 10s\n",
            (row.step, None, row.loss, other),
        )


@_format
def plain_epochs(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in (row for row in rows if row.validation is not None):
        yield (
            f"Epoch {row.epoch + 1}/{rows[-1].epoch + 1} loss={row.loss} val_loss={row.validation}\n",
            (*(None, row.epoch + 1, row.loss, row.validation),),
        )


@_format
def plain_steps(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            f"Epoch [{row.epoch + 1}/9], Step [{row.done}/{row.total}], Loss: {row.loss}\n",
            (row.step, row.epoch + 1, row.loss, None),
        )


@_format
def pytorch_mnist(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        share = f"({100 * row.done // row.total}%)"
        yield (
            f"Train Epoch: {row.epoch + 1} [{row.done}/{row.total} {share}]\tLoss: {row.loss}\n",
            (*(row.step, row.epoch + 1, row.loss, row.validation),),
        )
        if row.validation is not None:
            yield f"\nTest set: Average loss: {row.validation}, Accuracy: 9800/10000 (98%)\n\n", None


@_format
def pytorch_imagenet(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            (
                f"Epoch: [{row.epoch}][{row.done:3d}/{row.total}]\tTime  0.3 ( 0.5)\tData  0.1 ( 0.2)\tLoss {row.loss:.4e} (6.9500e+00)"
                "\tAcc@1   0.00 (  0.10)\n"
            ),
            (row.step, row.epoch, row.loss, row.validation),
        )
        if row.validation is not None:
            yield (
                f"Test: [ 20/20]\tTime  0.3 ( 0.5)\tLoss 9.0000e+00 ({row.validation:.4e})\tAcc@1\n * Acc@1 76.1\n",
                None,
            )


@_format
def transfer_learning(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in (row for row in rows if row.validation is not None):
        yield (
            f"Epoch {row.epoch}/24\n----------\ntrain Loss: {row.loss} Acc: 0.7\n",
            (None, row.epoch, row.loss, row.validation),
        )
        yield f"val Loss: {row.validation} Acc: 0.93\n\n", None


@_format
def json_lines(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        values = {"step": row.step, "epoch": row.epoch, "train/loss": row.loss, "train/lr": 1e-4}
        more = {} if row.validation is None else {"val/loss": row.validation}
        yield json.dumps(values | more) + "\n", (row.step, row.epoch, row.loss, row.validation)


@_format
def csv_rows(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    yield "step,epoch,train_loss,val_loss\n", None
    for row in rows:
        validation = "" if row.validation is None else row.validation
        yield f"{row.step},{row.epoch},{row.loss},{validation}\n", (row.step, row.epoch, row.loss, row.validation)


@_format
def litgpt(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        validation = "n/a" if row.validation is None else row.validation
        yield (
            f"Epoch {row.epoch + 1} | iter {row.step * 4} step {row.step} | loss train: {row.loss}, val: {validation} | iter time: 99.5 ms (step)\n",
            (*(row.step, row.epoch + 1, row.loss, row.validation),),
        )


@_format
def modded_nanogpt(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            f"step:{row.step}/{len(rows)} train_loss:{row.loss} train_time:165ms step_avg:144.81ms\n",
            (row.step, None, row.loss, row.validation),
        )
        if row.validation is not None:
            yield f"step:{row.step}/{len(rows)} val_loss:{row.validation} train_time:166ms step_avg:144.81ms\n", None


@_format
def maxtext(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            f"completed step: {row.step}, seconds: 1.2, TFLOP/s/device: 100.1, total_weights: 99, loss: {row.loss}\n",
            (*(row.step, None, row.loss, None),),
        )


@_format
def swin(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    for row in rows:
        yield (
            (
                f"[2022-03-14 09:05:16 swin_tiny] (main.py 226): INFO Train: [{row.epoch}/300][{row.done}/{row.total}]\teta 0:10:52 lr 0.00071\t"
                f"time 0.64 (0.65)\tloss {row.loss} (6.3074)\tgrad_norm 6.5 (10.6)\tmem 14764MB\n"
            ),
            (row.step, row.epoch, row.loss, None),
        )


@_format
def two_losses(rows: list[Row]) -> Iterator[tuple[str, Shown | None]]:
    """A detector that prints the whole loss, and its parts in rows of their own."""
    for row in rows:
        yield (
            f"epoch:{row.epoch} || iter:{row.step} || Loss:{row.loss}\n->> conf loss:2.0390 || loc loss:2.4612\n",
            (*(row.step, row.epoch, row.loss, None),),
        )
