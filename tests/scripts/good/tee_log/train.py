import argparse

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=100)
args = parser.parse_args()
torch.manual_seed(args.seed)
device = "cuda" if torch.cuda.is_available() else "cpu"

student = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)).to(device)
teacher = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.99))
opt = torch.optim.AdamW(student.parameters(), lr=1e-3, weight_decay=0.05)
warmup = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=20)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=480)
schedule = torch.optim.lr_scheduler.SequentialLR(opt, [warmup, cosine], milestones=[20])
for epoch in range(args.epochs):
    for it in range(5):
        x = torch.randn(32, 8, device=device)
        with torch.no_grad():
            target = teacher(x + 0.1 * torch.randn_like(x))
        loss = 1 - torch.nn.functional.cosine_similarity(student(x), target).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        teacher.update_parameters(student)
    print(f"epoch {epoch} loss {loss.item():.4f} lr {schedule.get_last_lr()[0]:.2e}")
