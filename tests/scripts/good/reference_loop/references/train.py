import argparse
import os
import time

import torch
import torch.utils.data
import utils
from torch import nn


def train_one_epoch(model, criterion, opt, loader, epoch, args, ema=None, scaler=None):
    model.train()
    ml = utils.MetricLogger()
    for i, (image, target) in enumerate(ml.log_every(loader, args.print_freq, f"Epoch: [{epoch}]")):
        with torch.amp.autocast("cpu", enabled=scaler is not None):
            loss = criterion(model(image), target)
        opt.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            opt.step()
        if ema and i % 1 == 0:
            ema.update_parameters(model)
        ml.update(loss=loss, lr=opt.param_groups[0]["lr"])


def main(args):
    if args.output_dir:
        utils.mkdir(args.output_dir)
    utils.init_distributed_mode(args)
    print(args)
    torch.backends.cudnn.benchmark = True
    ds = torch.utils.data.TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(4, (64,)))
    sampler = (
        torch.utils.data.distributed.DistributedSampler(ds)
        if args.distributed
        else torch.utils.data.RandomSampler(ds)
    )
    loader = torch.utils.data.DataLoader(ds, 16, sampler=sampler, num_workers=1, pin_memory=True)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.SyncBatchNorm(8) if False else nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    if args.distributed:
        model = nn.parallel.DistributedDataParallel(model)
    mw = model.module if args.distributed else model
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler("cpu") if args.amp else None
    sched = torch.optim.lr_scheduler.SequentialLR(
        opt,
        [
            torch.optim.lr_scheduler.LinearLR(opt, total_iters=1),
            torch.optim.lr_scheduler.CosineAnnealingLR(opt, 4),
        ],
        milestones=[1],
    )
    ema = torch.optim.swa_utils.AveragedModel(
        mw, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
    )
    for epoch in range(args.epochs):
        if args.distributed:
            sampler.set_epoch(epoch)
        train_one_epoch(
            model, nn.CrossEntropyLoss(label_smoothing=0.1), opt, loader, epoch, args, ema, scaler
        )
        sched.step()
        utils.save_on_master(
            {"model": mw.state_dict(), "epoch": epoch}, os.path.join(args.output_dir, f"model_{epoch}.pth")
        )


p = argparse.ArgumentParser()
p.add_argument("--model")
p.add_argument("--epochs", type=int)
p.add_argument("--output-dir")
p.add_argument("--print-freq", type=int)
p.add_argument("--amp", action="store_true")
if __name__ == "__main__":
    main(p.parse_args())
