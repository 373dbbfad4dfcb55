# mypy: ignore-errors
# ruff: noqa: T201
"""Train a vision transformer of timm: compiled, channels last, mixup, an average of the weights, timm's optimizer."""

import argparse

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler, accuracy
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="vit_tiny_patch16_224")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--num-classes", type=int, default=100)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--no-compile", dest="compile", action="store_false")
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.backends.cudnn.benchmark = True
model = timm.create_model(args.model, num_classes=args.num_classes, drop_path_rate=0.1)
model = model.to(device, memory_format=torch.channels_last)
optimizer = create_optimizer_v2(model, opt="adamw", lr=5e-4, weight_decay=0.05)
ema = ModelEmaV3(model, decay=0.9998)
if args.compile:
    model = torch.compile(model)
mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=args.num_classes, label_smoothing=0.1)
criterion = SoftTargetCrossEntropy()
scaler = NativeScaler()
scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=0)
images = torch.rand(64, 3, 224, 224)
loader = DataLoader(TensorDataset(images, torch.randint(args.num_classes, (64,))), args.batch_size, drop_last=True)

losses, top1 = AverageMeter(), AverageMeter()
updates = 0
for epoch in range(args.epochs):
    model.train()
    for step, (batch, labels) in enumerate(loader):
        batch, labels = batch.to(device), labels.to(device)  # noqa: PLW2901
        batch = batch.contiguous(memory_format=torch.channels_last)  # noqa: PLW2901
        mixed, targets = mixup(batch, labels)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            output = model(mixed)
            loss = criterion(output, targets)
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        optimizer.zero_grad()
        updates += 1
        ema.update(model, step=updates)
        if device.type == "cuda":
            torch.cuda.synchronize()
        losses.update(loss.item(), batch.size(0))
        top1.update(accuracy(output, labels)[0].item(), batch.size(0))
        print(f"epoch {epoch} step {step} loss {losses.avg:.4f} acc@1 {top1.avg:.2f}")
    scheduler.step(epoch + 1)
