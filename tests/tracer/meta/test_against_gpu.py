"""Shape-only recordings against public profiler traces of the same architectures on real GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import streams

pytestmark = pytest.mark.data

ALMOST_ALL = 0.9999
"""Of the measured time outside collectives."""
CASES = {
    "h100_vit_small_inference": ALMOST_ALL,
    "mi300x_vit_small_inference": ALMOST_ALL,
    "h100_bert_small_inference": 0.99,  # the rest waits for a value: nothing of a shape
    "mi300x_bert_small_inference": 0.99,
    "mi300x_resnet_checkpointed_training": ALMOST_ALL,
    "a100_alexnet_inference": ALMOST_ALL,
    "v100_convnet_ddp_training": ALMOST_ALL,
}
WITHOUT_SHAPES = {"a100_alexnet_inference", "v100_convnet_ddp_training"}


@pytest.mark.parametrize(("name", "bar"), CASES.items(), ids=list(CASES))
def test_a_rebuilt_model_issues_the_ops_that_took_the_time(data_dir: Path, name: str, bar: float) -> None:
    pair = streams.record_beside(name, data_dir / "traces" / f"{name}.json.gz")
    shapes, measured = streams.match_on_h100(*pair).sides
    assert measured.share >= bar
    assert shapes.share >= ALMOST_ALL
    assert (measured.unshaped_share > 0.9) == (name in WITHOUT_SHAPES)


def test_the_ops_of_another_model_are_told_apart(data_dir: Path) -> None:
    other = data_dir / "traces" / "h100_bert_small_inference.json.gz"
    match = streams.match_on_h100(*streams.record_beside("h100_vit_small_inference", other))
    assert max(side.share for side in match.sides) == 0
