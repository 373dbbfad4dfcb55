# mypy: ignore-errors
# ruff: noqa: T201
"""Train a digit classifier on the CPU: the script of a first lesson, which knows of no GPU."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
images, labels = torch.rand(512, 1, 28, 28), torch.randint(0, 10, (512,))
train_loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = nn.functional.relu(self.conv1(x))
        x = nn.functional.relu(self.conv2(x))
        x = self.dropout1(nn.functional.max_pool2d(x, 2))
        x = nn.functional.relu(self.fc1(torch.flatten(x, 1)))
        return nn.functional.log_softmax(self.fc2(self.dropout2(x)), dim=1)


model = LeNet()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
for epoch in range(1, 3):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        output = model(data)
        loss = nn.functional.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % 5 == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(images)}]\tLoss: {loss.item():.6f}")
    scheduler.step()
torch.save(model.state_dict(), Path(tempfile.mkdtemp()) / "mnist_cnn.pt")
