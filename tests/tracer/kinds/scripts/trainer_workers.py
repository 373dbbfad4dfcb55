# mypy: ignore-errors
# ruff: noqa: T201
"""Fine-tune BERT for classification with the Trainer of transformers: data-loader workers, evaluation, metrics."""

import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, DataCollatorWithPadding, Trainer, TrainingArguments


class Reviews(Dataset):
    """Token ids of different lengths, as a tokenizer returns them."""

    def __init__(self, size, seed):
        rng = np.random.default_rng(seed)
        self.rows = [rng.integers(5, 500, size=rng.integers(20, 64)).tolist() for _ in range(size)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "attention_mask": [1] * len(self.rows[index]), "labels": index % 2}


class Padder:
    """Pad on the right to a fixed length: what a tokenizer's `pad` does."""

    padding_side = "right"

    def pad(self, features, **_options):
        def fill(values):
            return values + [0] * (64 - len(values))

        batch = {name: [fill(row[name]) for row in features] for name in ("input_ids", "attention_mask")}
        return {name: torch.tensor(rows) for name, rows in batch.items()} | {
            "labels": torch.tensor([row["labels"] for row in features])
        }


def compute_metrics(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main():
    config = BertConfig(
        vocab_size=512, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512,
        max_position_embeddings=64,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=16,
        learning_rate=5e-5,
        max_steps=40,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=20,
        save_steps=20,
        bf16=torch.cuda.is_available(),
        dataloader_num_workers=2,
        report_to=[],
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Reviews(400, seed=0),
        eval_dataset=Reviews(64, seed=1),
        data_collator=DataCollatorWithPadding(Padder()),
        compute_metrics=compute_metrics,
    )
    print(trainer.train())
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
