import torch


class Gate(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.value = torch.nn.Linear(inputs, outputs)
        self.gate = torch.nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.value(x) * torch.sigmoid(self.gate(x))
