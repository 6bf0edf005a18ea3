import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--epochs", type=int, default=50)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=2)
    accelerator.print(accelerator.state)
    torch.manual_seed(0)
    x = torch.randn(1024, 9)
    y = x.pow(2).mean(1, keepdim=True)
    model = torch.nn.Sequential(torch.nn.Linear(9, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(args.epochs):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        accelerator.print("epoch", epoch, "loss", loss.item())
        accelerator.save_state(f"{args.output_dir}/epoch_{epoch}")


if __name__ == "__main__":
    main()
