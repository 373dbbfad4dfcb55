# mypy: ignore-errors
# ruff: noqa: T201
"""Train a LightningModule with a Trainer, validation included."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
        self.log("loss", nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
trainer = lightning.Trainer(
    max_steps=24, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.fit(Regression(), DataLoader(data, batch_size=4), DataLoader(data, batch_size=4))
print(trainer.global_step)
