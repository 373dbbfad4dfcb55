"""The models behind public profiler traces of real GPUs, rebuilt from what the traces show, to record their shapes.

Each function returns a step that runs what one recorded iteration ran, on the meta device. Traces whose models call
custom kernels (FBGEMM's embedding tables, vLLM), were compiled, or name no network are not here.
"""

# mypy: disable-error-code="no-any-return"
# Calling an nn.Module returns Any.

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from wavecast.benchmarks.make.models import bert_base, resnet50
from wavecast.benchmarks.make.models.transformer import Attention, FeedForward, PreNormBlock

Step = Callable[[], object]
_ProcessGroup: Any = torch.distributed.ProcessGroup  # typed for the collectives of its C++ side alone


class VitSmall(nn.Module):
    """ViT with separate projections, a class token and a pooler (transformers' ViTModel, 12 layers of width 768)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 768))
        self.positions = nn.Parameter(torch.zeros(1, 197, 768))
        block: dict[str, Any] = {"dropout": 0.0, "causal": False, "epsilon": 1e-12, "approximate": "none"}
        self.layers = nn.Sequential(*(PreNormBlock(768, 12, **block) for _ in range(12)))
        for layer in self.layers:
            layer.attention = Attention(768, 12, dropout=0.0, joint=False)
        self.norm, self.pooler = nn.LayerNorm(768, 1e-12), nn.Linear(768, 768)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1) + self.positions
        return self.pooler(self.norm(self.layers(tokens))[:, 0]).tanh()


class BertSmall(nn.Module):
    """BERT of 4 layers of width 512 with a head that predicts words; looks whether its mask hides anything."""

    def __init__(self) -> None:
        super().__init__()
        width = 512
        self.words = nn.Embedding(bert_base.VOCABULARY, width)
        self.positions, self.segments = nn.Embedding(512, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.Sequential(*(_bert_layer(width) for _ in range(4)))
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, 1e-12))
        self.output = nn.Linear(width, bert_base.VOCABULARY)

    def forward(self, tokens: Tensor, segments: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        embedded = self.words(tokens) + self.segments(segments) + self.positions(places)
        _ = (mask == 1).all()  # the run reads the answer, which shapes cannot
        return self.output(self.head(self.layers(self.norm(embedded))))


def _bert_layer(width: int) -> nn.Module:
    layer = bert_base.Layer()
    layer.attention = Attention(width, 8, dropout=0.0, joint=False)
    layer.feed_forward = FeedForward(width, 4 * width)
    layer.attention_norm, layer.feed_forward_norm = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
    return layer


class AlexNet(nn.Module):
    """AlexNet with one column (Krizhevsky 2014, arXiv:1404.5997), as torchvision builds it."""

    def __init__(self) -> None:
        super().__init__()
        relu, pool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, 4, 2), relu, pool, nn.Conv2d(64, 192, 5, padding=2), relu, pool,
            nn.Conv2d(192, 384, 3, padding=1), relu, nn.Conv2d(384, 256, 3, padding=1), relu,
            nn.Conv2d(256, 256, 3, padding=1), relu, pool, nn.AdaptiveAvgPool2d(6),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(9_216, 4_096), relu, nn.Dropout(), nn.Linear(4_096, 4_096), relu,
            nn.Linear(4_096, 1_000),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


class BasicBlock(nn.Module):
    """Residual block of two 3 × 3 convolutions (He et al. 2015, arXiv:1512.03385)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn1, self.bn2, self.relu = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels:
            shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.downsample(x)
        return self.relu(out)


class ResNet18(nn.Module):
    """ResNet-18, its four stages recomputed in the backward pass where asked."""

    def __init__(self, *, recomputes: bool = False) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        widths = (64, 64, 128, 256, 512)
        self.stages = nn.ModuleList(
            nn.Sequential(BasicBlock(before, width, 1 if width == 64 else 2), BasicBlock(width, width, 1))
            for before, width in pairwise(widths)
        )
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 1_000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for stage in self.stages:
            x = checkpoint(stage, x, use_reentrant=False) if self.recomputes else stage(x)
        return self.head(self.pool(x).flatten(1))


class SilentGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group of one process whose collectives exchange nothing, on any device."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def getBackendName(self) -> str:  # noqa: N802, torch's name
        return "silent"

    def allreduce(self, tensors: list[Tensor], _options: object = None) -> Any:
        return _finished(tensors)

    def broadcast(self, tensors: list[Tensor], _options: object = None) -> Any:
        return _finished(tensors)


def _finished(tensors: list[Tensor]) -> Any:
    future: Future[list[Tensor]] = Future()
    future.set_result(tensors)
    return _create_work_from_future(future)


def vit_small() -> Step:
    with torch.device("meta"):
        model, images = VitSmall().bfloat16().eval(), torch.zeros(4, 3, 224, 224, dtype=torch.bfloat16)
    return torch.no_grad()(lambda: model(images))


def bert_small() -> Step:
    with torch.device("meta"):
        model, tokens = BertSmall().bfloat16().eval(), torch.zeros(1, 141, dtype=torch.int64)
    return torch.no_grad()(lambda: model(tokens, tokens, tokens, tokens))


def alexnet() -> Step:
    """Move the model to the GPU and run it twice on random images, dropout on."""
    with torch.device("meta"):
        model = AlexNet()
    on_host = model.to_empty(device="cpu")

    def step() -> None:
        moved = copy.deepcopy(on_host).to("meta")
        images = torch.rand(64, 3, 224, 224, device="meta")
        moved(images)
        moved(images)

    return step


def resnet18_training() -> Step:
    """Train thirty iterations on batches from the host; the first creates the momentum."""
    with torch.device("meta"):
        model = ResNet18()
    images, labels = torch.empty(128, 3, 224, 224, device="cpu"), torch.empty(128, dtype=torch.int64, device="cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def step() -> None:
        for _ in range(30):
            batch, truth = images.to("meta"), labels.to("meta")
            loss = functional.cross_entropy(model(batch), truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return step


def resnet18_checkpointed_training() -> Step:
    """Train in bf16 under DistributedDataParallel, every stage recomputed."""
    with torch.device("meta"):
        model = ResNet18(recomputes=True).bfloat16()
        images, truth = (torch.empty(size, dtype=torch.bfloat16) for size in ((10, 3, 224, 224), (10, 1_000)))
    parallel = DistributedDataParallel(model, process_group=SilentGroup(), init_sync=False)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        functional.mse_loss(parallel(images), truth).backward()
        optimizer.step()

    return step


def resnet50_training() -> Step:
    """Train under DistributedDataParallel with soft labels; the momentum is there already."""
    with torch.device("meta"):
        model, images, truth = resnet50.build(), torch.empty(32, 3, 224, 224), torch.empty(32, 1_000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter)
    parallel = DistributedDataParallel(model, process_group=SilentGroup(), init_sync=False)

    def step() -> None:
        functional.cross_entropy(parallel(images), truth).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PUBLIC: Final[dict[str, Callable[[], Step]]] = {
    "h100_vit_small_inference": vit_small,
    "mi300x_vit_small_inference": vit_small,
    "h100_bert_small_inference": bert_small,
    "mi300x_bert_small_inference": bert_small,
    "a100_alexnet_inference": alexnet,
    "mi300x_resnet_checkpointed_training": resnet18_checkpointed_training,
    "rtx2080ti_resnet_training": resnet18_training,
    "v100_convnet_ddp_training": resnet50_training,
}
"""The step of each public trace. One iteration each, without a warm-up: DistributedDataParallel sorts its buckets anew
in the second, which needs values."""
