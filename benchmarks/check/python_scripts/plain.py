"""A training loop with next to no Python of its own."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(16, 4)).to(device)
adam = torch.optim.Adam(model.parameters(), foreach=True)
x, labels = torch.randn(4, 16, device=device), torch.randint(0, 4, (4,), device=device)
for _ in range(40):
    loss = nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    adam.step()
    adam.zero_grad()
