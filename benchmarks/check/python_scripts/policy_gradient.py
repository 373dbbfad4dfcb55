"""A small policy that is trained by its own steps in a world of Python, one episode per iteration (REINFORCE)."""

import random

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(2)
SIDE, STEPS = 7, 8
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))


class World:
    """A walker looks for a goal among walls, and remembers where it was."""

    def __init__(self) -> None:
        cells = [(row, column) for row in range(SIDE) for column in range(SIDE)]
        self.walls = set(random.sample(cells, 9))
        free = [cell for cell in cells if cell not in self.walls]
        self.place, self.goal = random.sample(free, 2)
        self.visits: dict[tuple[int, int], int] = {}

    def look(self) -> list[float]:
        row, column = self.place
        near = [(row + down, column + right) for down, right in MOVES]
        blocked = [float(cell in self.walls or not all(0 <= index < SIDE for index in cell)) for cell in near]
        seen = [min(1.0, self.visits.get(cell, 0) / 3) for cell in near]
        return [*blocked, *seen, (self.goal[0] - row) / SIDE, (self.goal[1] - column) / SIDE]

    def step(self, move: int) -> float:
        down, right = MOVES[move % len(MOVES)]
        target = self.place[0] + down, self.place[1] + right
        self.visits[self.place] = self.visits.get(self.place, 0) + 1
        if target in self.walls or not all(0 <= index < SIDE for index in target):
            return -0.5
        self.place = target
        return 1.0 if target == self.goal else -0.05 * self.visits.get(target, 0)


policy = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, len(MOVES))).to(device)
adam = torch.optim.Adam(policy.parameters(), lr=0.01)
for _ in range(40):
    world, rewards, chosen = World(), [], []
    for _ in range(STEPS):
        logits = torch.log_softmax(policy(torch.tensor([world.look()]).to(device)), -1)
        move = int(torch.multinomial(logits.detach().exp(), 1).item())
        chosen.append(logits[0, move % len(MOVES)])
        rewards.append(world.step(move))
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.insert(0, reward + 0.9 * (returns[0] if returns else 0.0))
    mean = sum(returns) / len(returns)
    weights = torch.tensor([item - mean for item in returns]).to(device)
    loss = -(torch.stack(chosen) * weights).sum()
    adam.zero_grad()
    loss.backward()
    adam.step()
