"""A convolutional network that is trained on small pictures, which the loop mirrors, shifts and paints over itself."""

import math
import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(3)
SIDE, BATCH = 8, 4
PICTURES = [[[random.random() for _ in range(SIDE)] for _ in range(SIDE)] for _ in range(60)]  # noqa: S311
LABELS = [random.randrange(4) for _ in PICTURES]  # noqa: S311


def shift(picture: list[list[float]], down: int, right: int) -> list[list[float]]:
    return [[picture[(row - down) % SIDE][(column - right) % SIDE] for column in range(SIDE)] for row in range(SIDE)]


def augment(picture: list[list[float]]) -> list[list[float]]:
    """Mirror, shift, erase a corner and change the contrast, each by chance."""
    if random.random() < 0.5:  # noqa: S311
        picture = [row[::-1] for row in picture]
    picture = shift(picture, random.randint(-2, 2), random.randint(-2, 2))  # noqa: S311
    top, left = random.randrange(SIDE - 2), random.randrange(SIDE - 2)  # noqa: S311
    for row in range(top, top + 2):
        for column in range(left, left + 2):
            picture[row][column] = 0.0
    power = math.exp(random.gauss(0, 0.2))
    mean = sum(map(sum, picture)) / SIDE**2
    return [[min(1.0, max(0.0, mean + (value - mean) * power)) for value in row] for row in picture]


model = nn.Sequential(
    nn.Conv2d(1, 4, 3, padding=1),
    nn.BatchNorm2d(4),
    nn.ReLU(),
    nn.Conv2d(4, 4, 3, padding=1),
    nn.BatchNorm2d(4),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(4 * SIDE * SIDE, 4),
).to(device)
sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
order = list(range(len(PICTURES)))
for step in range(40):
    if step % (len(order) // BATCH) == 0:
        random.shuffle(order)
    at = step * BATCH % len(order)
    picked = order[at : at + BATCH]
    batch = [augment(PICTURES[index]) for index in picked]
    x = torch.tensor(batch).unsqueeze(1).to(device)
    labels = torch.tensor([LABELS[index] for index in picked]).to(device)
    loss = nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    sgd.step()
    sgd.zero_grad()
