# mypy: ignore-errors
# ruff: noqa: T201
"""Train a DCGAN: two networks and two optimizers that take turns, as in torch's own tutorial."""

import argparse
import itertools
import random
import tempfile
from pathlib import Path

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batchSize", type=int, default=16)
parser.add_argument("--nz", type=int, default=100)
parser.add_argument("--niter", type=int, default=2)
parser.add_argument("--outf", default=None)
opt = parser.parse_args()
outf = Path(opt.outf or tempfile.mkdtemp())

random.seed(1)
torch.manual_seed(1)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
ngf = ndf = 32


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [opt.nz, ngf * 8, ngf * 4, ngf * 2, ngf]
        layers = []
        for depth, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            layers += [nn.ConvTranspose2d(inputs, outputs, 4, 2 if depth else 1, 1 if depth else 0, bias=False)]
            layers += [nn.BatchNorm2d(outputs), nn.ReLU(True)]
        self.main = nn.Sequential(*layers, nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, x):
        return self.main(x)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [3, ndf, ndf * 2, ndf * 4, ndf * 8]
        layers = []
        for depth, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            layers += [nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False)]
            layers += [nn.BatchNorm2d(outputs)] if depth else []
            layers += [nn.LeakyReLU(0.2, inplace=True)]
        self.main = nn.Sequential(*layers, nn.Conv2d(ndf * 8, 1, 4, 1, 0, bias=False), nn.Sigmoid())

    def forward(self, x):
        return self.main(x).view(-1, 1).squeeze(1)


netG, netD = Generator().to(device), Discriminator().to(device)  # noqa: N816
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(opt.batchSize, opt.nz, 1, 1, device=device)
optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))  # noqa: N816
optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))  # noqa: N816
dataloader = DataLoader(TensorDataset(torch.rand(160, 3, 64, 64) * 2 - 1), batch_size=opt.batchSize, shuffle=True)

for epoch in range(opt.niter):
    for i, data in enumerate(dataloader, 0):
        # (1) maximise log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        real = data[0].to(device)
        label = torch.full((real.size(0),), 1.0, dtype=real.dtype, device=device)
        output = netD(real)
        errD_real = criterion(output, label)  # noqa: N816
        errD_real.backward()
        D_x = output.mean().item()
        noise = torch.randn(real.size(0), opt.nz, 1, 1, device=device)
        fake = netG(noise)
        label.fill_(0.0)
        output = netD(fake.detach())
        errD_fake = criterion(output, label)  # noqa: N816
        errD_fake.backward()
        errD = errD_real + errD_fake  # noqa: N816
        optimizerD.step()
        # (2) maximise log(D(G(z)))
        netG.zero_grad()
        label.fill_(1.0)
        output = netD(fake)
        errG = criterion(output, label)  # noqa: N816
        errG.backward()
        optimizerG.step()
        print(f"[{epoch}/{opt.niter}][{i}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f} D(x): {D_x:.4f}")
    with torch.no_grad():
        torch.save(netG(fixed_noise).detach().cpu(), outf / f"samples_{epoch}.pt")
    torch.save(netG.state_dict(), outf / f"netG_{epoch}.pth")
