import datetime
import errno
import os
import time
from collections import defaultdict, deque

import torch
import torch.distributed as dist


class SmoothedValue:
    def __init__(self, window_size=20, fmt=None):
        self.deque = deque(maxlen=window_size)
        self.total = 0.0
        self.count = 0
        self.fmt = fmt or "{median:.4f} ({global_avg:.4f})"

    def update(self, v, n=1):
        self.deque.append(v)
        self.count += n
        self.total += v * n

    def __str__(self):
        d = torch.tensor(list(self.deque))
        return self.fmt.format(
            median=d.median().item(), global_avg=self.total / self.count, value=self.deque[-1]
        )


class MetricLogger:
    def __init__(self, delimiter="\t"):
        self.meters = defaultdict(SmoothedValue)
        self.delimiter = delimiter

    def update(self, **kw):
        for k, v in kw.items():
            self.meters[k].update(v.item() if isinstance(v, torch.Tensor) else v)

    def log_every(self, it, freq, header=""):
        i = 0
        start = time.time()
        it_time = SmoothedValue(fmt="{value:.4f}")
        for obj in it:
            t = time.time()
            yield obj
            it_time.update(time.time() - t)
            if i % freq == 0:
                eta = str(datetime.timedelta(seconds=int(it_time.total / it_time.count * (len(it) - i))))
                print(
                    self.delimiter.join(
                        [
                            header,
                            f"[{i}/{len(it)}]",
                            f"eta: {eta}",
                            self.delimiter.join(f"{k}: {v}" for k, v in self.meters.items()),
                            f"time: {it_time}",
                        ]
                    )
                )
            i += 1


def setup_for_distributed(is_master):
    import builtins as b

    bp = b.print

    def print(*a, **k):
        force = k.pop("force", False)
        if is_master or force:
            bp(*a, **k)

    b.print = print


def mkdir(path):
    try:
        os.makedirs(path)
    except OSError as e:
        if e.errno != errno.EEXIST:
            raise


def save_on_master(*a, **k):
    torch.save(*a, **k)


def init_distributed_mode(args):
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        args.rank = int(os.environ["RANK"])
        args.world_size = int(os.environ["WORLD_SIZE"])
        args.gpu = int(os.environ["LOCAL_RANK"])
    elif "SLURM_PROCID" in os.environ:
        args.rank = int(os.environ["SLURM_PROCID"])
        args.world_size = int(os.environ["SLURM_NTASKS"])
    else:
        print("Not using distributed mode")
        args.distributed = False
        return
    args.distributed = True
    args.dist_url = "env://"
    os.environ["RANK"] = str(args.rank)
    os.environ["WORLD_SIZE"] = str(args.world_size)
    print(f"| distributed init (rank {args.rank}): {args.dist_url}", flush=True)
    dist.init_process_group(
        backend="gloo", init_method=args.dist_url, world_size=args.world_size, rank=args.rank
    )
    dist.barrier()
    setup_for_distributed(args.rank == 0)
