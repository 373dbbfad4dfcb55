# mypy: ignore-errors
# ruff: noqa: T201
"""Train a small classifier the way most scripts do: arguments, a loader, a scheduler, printing, evaluation."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 36, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.stem(images))).flatten(1))


def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    model.train()
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=1e-2)
    options = parser.parse_args()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(10, (64,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    print(f"before: {evaluate(model, loader):.3f}")
    step = 0
    while step < options.steps:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 10 == 0:
                print(f"{step}: {loss.item():.6f}")
            if step == options.steps:
                break
    checksum = sum(float(parameter.double().abs().sum()) for parameter in model.parameters())
    print(f"checksum: {checksum:.12f}", torch.rand(1).item())


if __name__ == "__main__":
    main()
