import argparse
import random
import time
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.utils.data
import torch.utils.data.distributed

parser = argparse.ArgumentParser(description="ImageNet-style training")
parser.add_argument("-a", "--arch", default="tiny", choices=["tiny", "wide"])
parser.add_argument("-j", "--workers", default=4, type=int)
parser.add_argument("--epochs", default=90, type=int)
parser.add_argument("-b", "--batch-size", default=256, type=int, help="total over all GPUs of this node")
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("-p", "--print-freq", default=10, type=int)
parser.add_argument("--world-size", default=-1, type=int)
parser.add_argument("--rank", default=-1, type=int)
parser.add_argument("--dist-url", default="tcp://224.66.41.62:23456")
parser.add_argument("--seed", default=None, type=int)
parser.add_argument("--multiprocessing-distributed", action="store_true")


class AverageMeter:
    def __init__(self, name):
        self.name, self.sum, self.count = name, 0.0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    def __str__(self):
        return f"{self.name} {self.sum / max(1, self.count):.4f}"


def main():
    args = parser.parse_args()
    if args.seed is not None:
        random.seed(args.seed)
        warnings.warn("You have chosen to seed training.")
    ngpus_per_node = torch.cuda.device_count() if torch.cuda.is_available() else 1
    if args.multiprocessing_distributed:
        args.world_size = ngpus_per_node * args.world_size
        mp.spawn(main_worker, nprocs=ngpus_per_node, args=(ngpus_per_node, args))
    else:
        main_worker(0, ngpus_per_node, args)


def main_worker(gpu, ngpus_per_node, args):
    args.rank = args.rank * ngpus_per_node + gpu
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo", init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    width = {"tiny": 8, "wide": 32}[args.arch]
    model = nn.Sequential(nn.Conv2d(3, width, 3, 2), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))
    device = torch.device("cuda", gpu) if cuda else torch.device("cpu")
    model = nn.parallel.DistributedDataParallel(model.to(device))
    args.batch_size = int(args.batch_size / ngpus_per_node)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(640, 3, 12, 12), torch.randint(5, (640,)))
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch_size, num_workers=args.workers, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        losses, batch_time, end = AverageMeter("Loss"), AverageMeter("Time"), time.time()
        for i, (images, target) in enumerate(loader):
            loss = criterion(model(images.to(device)), target.to(device))
            losses.update(loss.item(), images.size(0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batch_time.update(time.time() - end)
            end = time.time()
            if i % args.print_freq == 0 and args.rank == 0:
                print(f"Epoch: [{epoch}][{i}/{len(loader)}] {batch_time} {losses}", flush=True)
        scheduler.step()
        if args.rank == 0:
            torch.save({"epoch": epoch + 1, "state_dict": model.state_dict()}, "checkpoint.pth.tar")


if __name__ == "__main__":
    main()
