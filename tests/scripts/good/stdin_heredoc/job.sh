#!/bin/bash
#SBATCH --gres=gpu:2
#SBATCH --mem=4G
#SBATCH --time=20
#SBATCH --job-name=quick-test

LR=0.05
python - --lr $LR <<'EOF'
import sys
import torch

lr = float(sys.argv[sys.argv.index("--lr") + 1])
w = torch.zeros(3, requires_grad=True)
opt = torch.optim.SGD([w], lr=lr)
true = torch.tensor([1.0, -2.0, 0.5])
for i in range(1000):
    x = torch.randn(32, 3)
    loss = ((x @ w - x @ true) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print("w =", w.tolist())
EOF
echo "finished with $?"
