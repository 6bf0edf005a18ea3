import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)
torch.set_float32_matmul_precision("high")


class Mixer(nn.Module):
    def __init__(self, tokens=8, dim=16):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mix_t = nn.Linear(tokens, tokens)
        self.mix_c = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        x = x + self.mix_t(self.norm(x).transpose(1, 2)).transpose(1, 2)
        x = x + torch.nn.functional.gelu(self.mix_c(x))
        return self.head(x.mean(1))


model = Mixer().to(device)
compiled = torch.compile(model)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
for it in range(2000):
    x = torch.randn(16, 8, 16, device=device)
    y = (x[:, 0, :4]).argmax(-1)
    loss = nn.functional.cross_entropy(compiled(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
    if it % 100 == 0:
        print(f"it {it} loss {loss.item():.3f}", flush=True)
torch.save(model.state_dict(), "mixer.pt")
