"""u'' = -pi^2 sin(pi x) with u(0) = u(1) = 0, full-batch L-BFGS."""
import math

import torch

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
x = torch.linspace(0, 1, 64, device=device).unsqueeze(1).requires_grad_()
ends = torch.tensor([[0.0], [1.0]], device=device)
optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=10, history_size=20, line_search_fn="strong_wolfe")
evaluations = 0


def closure():
    global evaluations
    evaluations += 1
    optimizer.zero_grad()
    u = net(x)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (d2u,) = torch.autograd.grad(du.sum(), x, create_graph=True)
    residual = d2u + math.pi**2 * torch.sin(math.pi * x)
    loss = residual.pow(2).mean() + net(ends).pow(2).mean()
    loss.backward()
    return loss


for outer in range(100):
    loss = optimizer.step(closure)
    print(f"outer {outer} loss {loss.item():.3e} after {evaluations} evaluations", flush=True)
