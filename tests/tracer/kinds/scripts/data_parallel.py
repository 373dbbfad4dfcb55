# mypy: ignore-errors
# ruff: noqa: T201
"""Train a ResNet-like network on all GPUs of the machine with DataParallel, as many older scripts do."""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.backends.cudnn as cudnn
from torch import nn, optim
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="PyTorch CIFAR10 Training")
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("--resume", "-r", action="store_true")
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
best_acc, start_epoch = 0, 0
folder = Path(tempfile.mkdtemp())


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(planes), nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(nn.Conv2d(in_planes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.layers = nn.Sequential(BasicBlock(32, 32), BasicBlock(32, 64, 2), BasicBlock(64, 128, 2))
        self.linear = nn.Linear(128, 10)

    def forward(self, x):
        out = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.linear(F.avg_pool2d(out, 8).flatten(1))


trainloader = DataLoader(TensorDataset(torch.rand(256, 3, 32, 32), torch.randint(10, (256,))), 32, shuffle=True)
testloader = DataLoader(TensorDataset(torch.rand(64, 3, 32, 32), torch.randint(10, (64,))), 100)
net = Net().to(device)
if device == "cuda":
    net = torch.nn.DataParallel(net)
    cudnn.benchmark = True
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)


def run(loader, is_training):
    net.train(is_training)
    total_loss, correct, total = 0, 0, 0
    for batch_idx, (inputs, targets) in enumerate(loader):
        inputs, targets = inputs.to(device), targets.to(device)  # noqa: PLW2901
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        if is_training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total_loss += loss.item()
        _, predicted = outputs.max(1)
        total += targets.size(0)
        correct += predicted.eq(targets).sum().item()
        accuracy = 100.0 * correct / total
        print(batch_idx, len(loader), f"Loss: {total_loss / (batch_idx + 1):.3f} | Acc: {accuracy:.3f}%")
    return accuracy


for epoch in range(start_epoch, start_epoch + 2):
    print(f"\nEpoch: {epoch}")
    run(trainloader, is_training=True)
    with torch.no_grad():
        acc = run(testloader, is_training=False)
    if acc > best_acc:
        torch.save({"net": net.state_dict(), "acc": acc, "epoch": epoch}, folder / "ckpt.pth")
        best_acc = acc
    scheduler.step()
