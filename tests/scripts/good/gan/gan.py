import argparse
import os
import random

import torch
import torch.nn as nn
import torch.optim as optim

parser = argparse.ArgumentParser()
parser.add_argument("--niter", type=int, default=25, help="number of epochs to train for")
parser.add_argument("--nz", type=int, default=100, help="size of the latent z vector")
parser.add_argument("--n-critic", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.0002)
parser.add_argument("--outf", default="samples", help="folder to output images and model checkpoints")
opt = parser.parse_args()

manualSeed = random.randint(1, 10000)
print("Random Seed: ", manualSeed)
random.seed(manualSeed)
torch.manual_seed(manualSeed)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
os.makedirs(opt.outf, exist_ok=True)


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Linear") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)


netG = nn.Sequential(nn.Linear(opt.nz, 32), nn.ReLU(True), nn.Linear(32, 64), nn.Tanh()).to(device)
netD = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2, inplace=True), nn.Linear(32, 1), nn.Sigmoid()).to(device)
netG.apply(weights_init)
netD.apply(weights_init)

criterion = nn.BCELoss()
fixed_noise = torch.randn(8, opt.nz, device=device)
real_label, fake_label = 1.0, 0.0
optimizerD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))

for epoch in range(opt.niter):
    for i in range(40):
        for _ in range(opt.n_critic):
            netD.zero_grad()
            real = torch.sin(torch.linspace(0, 6, 64, device=device) + torch.rand(16, 1, device=device))
            label = torch.full((16,), real_label, device=device)
            output = netD(real).view(-1)
            errD_real = criterion(output, label)
            errD_real.backward()
            fake = netG(torch.randn(16, opt.nz, device=device))
            label.fill_(fake_label)
            errD_fake = criterion(netD(fake.detach()).view(-1), label)
            errD_fake.backward()
            optimizerD.step()

        netG.zero_grad()
        label.fill_(real_label)
        errG = criterion(netD(fake).view(-1), label)
        errG.backward()
        optimizerG.step()
        if i % 10 == 0:
            print(f"[{epoch}/{opt.niter}][{i}/40] Loss_D: {(errD_real + errD_fake).item():.4f} Loss_G: {errG.item():.4f}")
            torch.save(netG(fixed_noise).detach(), f"{opt.outf}/fake_samples_epoch_{epoch:03d}.pt")
    torch.save(netG.state_dict(), f"{opt.outf}/netG_epoch_{epoch}.pth")
    torch.save(netD.state_dict(), f"{opt.outf}/netD_epoch_{epoch}.pth")
