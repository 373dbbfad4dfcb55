# mypy: ignore-errors
# ruff: noqa: T201
"""Train a Faster R-CNN of torchvision on boxes: lists of images, targets as dictionaries, a sum of four losses."""

import argparse
import math
import sys

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import fasterrcnn_resnet50_fpn


class Boxes(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        count = 2 + index % 3
        corners = torch.rand(count, 2, generator=generator) * 200
        sizes = 20 + torch.rand(count, 2, generator=generator) * 80
        target = {
            "boxes": torch.cat([corners, corners + sizes], dim=1),
            "labels": torch.randint(1, 5, (count,), generator=generator),
            "image_id": index,
            "area": sizes.prod(1),
            "iscrowd": torch.zeros(count, dtype=torch.int64),
        }
        return torch.rand(3, 320, 320, generator=generator), target


def collate_fn(batch):
    return tuple(zip(*batch, strict=True))


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("-b", "--batch-size", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
device = torch.device(args.device)
model = fasterrcnn_resnet50_fpn(
    weights=None, weights_backbone=None, num_classes=5, min_size=320, max_size=320, trainable_backbone_layers=5
)
model.to(device)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=args.lr, momentum=0.9)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1e-3, total_iters=10)
scaler = torch.amp.GradScaler(device.type) if args.amp else None
data_loader = DataLoader(Boxes(), batch_size=args.batch_size, shuffle=True, collate_fn=collate_fn)
model.train()
for step, (images, targets) in enumerate(data_loader):
    images = [image.to(device) for image in images]  # noqa: PLW2901
    targets = [  # noqa: PLW2901
        {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets
    ]
    with torch.amp.autocast(device.type, enabled=scaler is not None):
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
    loss_value = losses.item()
    if not math.isfinite(loss_value):
        print(f"Loss is {loss_value}, stopping training", {k: v.item() for k, v in loss_dict.items()})
        sys.exit(1)
    optimizer.zero_grad()
    if scaler is not None:
        scaler.scale(losses).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        losses.backward()
        optimizer.step()
    warmup.step()
    print(f"[{step}/{len(data_loader)}] loss {loss_value:.4f}", {k: round(v.item(), 4) for k, v in loss_dict.items()})
