# mypy: ignore-errors
# ruff: noqa: T201
"""Train a multilayer perceptron and look at everything at every step: loss, accuracy, gradient norm, early stopping."""

import argparse
import math
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--patience", type=int, default=50)
args = parser.parse_args()
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")

features = torch.randn(2048, 256)
dataset = TensorDataset(features, (features[:, 0] > 0).long() + 2 * (features[:, 1] > 0).long())
train_set, valid_set = random_split(dataset, [1792, 256])
train_loader = DataLoader(train_set, args.batch_size, shuffle=True, pin_memory=device.type == "cuda")
valid_loader = DataLoader(valid_set, args.batch_size)
model = nn.Sequential(
    nn.Linear(256, 512), nn.BatchNorm1d(512), nn.GELU(), nn.Dropout(0.2), nn.Linear(512, 512), nn.GELU(),
    nn.Linear(512, 4),
).to(device)  # fmt: skip
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=5)


def evaluate():
    model.eval()
    total, correct = 0.0, 0
    with torch.no_grad():
        for x, y in valid_loader:
            x, y = x.to(device), y.to(device)  # noqa: PLW2901
            output = model(x)
            total += criterion(output, y).item() * len(y)
            correct += (output.argmax(dim=1) == y).sum().item()
    model.train()
    return total / len(valid_set), correct / len(valid_set)


best, bad_steps, running = math.inf, 0, 0.0
checkpoint = Path(tempfile.mkdtemp()) / "best.pt"
for epoch in range(args.epochs):
    for step, (x, y) in enumerate(train_loader):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)  # noqa: PLW2901
        optimizer.zero_grad()
        output = model(x)
        loss = criterion(output, y)
        if not torch.isfinite(loss):
            raise RuntimeError(f"loss is {loss.item()}")
        loss.backward()
        norm = sum(p.grad.norm(2).item() ** 2 for p in model.parameters()) ** 0.5
        optimizer.step()
        running = 0.9 * running + 0.1 * loss.item()
        hits = (output.argmax(1) == y).float().mean().item()
        histogram = torch.bincount(output.argmax(1).cpu(), minlength=4).tolist()
        print(
            f"{epoch}/{step}: loss {loss.item():.4f} ({running:.4f}), accuracy {hits:.3f}, |g| {norm:.3f}, {histogram}"
        )
        if loss.item() < best:
            best, bad_steps = loss.item(), 0
        else:
            bad_steps += 1
        if bad_steps > args.patience:
            break
    valid_loss, accuracy = evaluate()
    scheduler.step(valid_loss)
    torch.save({"model": model.state_dict(), "loss": valid_loss, "accuracy": accuracy}, checkpoint)
