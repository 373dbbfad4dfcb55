# mypy: ignore-errors
# ruff: noqa: T201
"""Train a small GPT-2 with the Hugging Face Trainer: nothing of the loop is in this file."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir=sys.argv[1], max_steps=24, per_device_train_batch_size=2, gradient_accumulation_steps=2,
    report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
)  # fmt: skip
print(Trainer(model=model, args=arguments, train_dataset=Tokens()).train().global_step)
