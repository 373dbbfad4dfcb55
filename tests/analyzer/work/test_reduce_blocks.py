"""Grids of PyTorch's general reduction as an H100 launched them (torch 2.11), and what follows on smaller GPUs."""

import numpy as np
import pytest
from wavecast.analyzer.work.reduce_blocks import ReduceBlocks, column_blocks, row_blocks

H100 = (132.0, 2048.0)


def launched(found: ReduceBlocks) -> tuple[float, float, float, float]:
    """Return the grid over results and the blocks that share one, and the block's two sides."""
    return float(found.grid), float(found.sharing), float(found.across), float(found.deep)


@pytest.mark.parametrize(
    ("columns", "reduced", "grid"),
    [
        (768, 2048, (6, 32, 32, 4)),
        (3072, 8192, (24, 88, 32, 4)),
        (96, 401408, (2, 1056, 16, 8)),
        (30522, 16384, (477, 8, 32, 8)),
        (32000, 12800, (250, 13, 32, 4)),
        (47, 100000, (2, 264, 32, 16)),
        (98304, 49, (192, 1, 32, 4)),
        (4194304, 1, (8192, 1, 128, 1)),
    ],
)
def test_columns(columns: float, reduced: float, grid: tuple[float, ...]) -> None:
    assert launched(column_blocks(np.asarray(columns), np.asarray(reduced), *map(np.asarray, H100))) == grid


@pytest.mark.parametrize(
    ("rows", "reduced", "grid"),
    [(8192, 2048, (512, 1, 32, 16)), (1, 4096, (1, 1, 512, 1)), (98304, 512, (6144, 1, 32, 16))],
)
def test_rows(rows: float, reduced: float, grid: tuple[float, ...]) -> None:
    assert launched(row_blocks(np.asarray(rows), np.asarray(reduced), *map(np.asarray, H100))) == grid


def test_a_smaller_gpu_is_filled_by_fewer_blocks() -> None:
    sms, threads = np.array([132.0, 40.0]), np.array([2048.0, 1024.0])
    large, small = column_blocks(np.array([[512.0]]), np.array([[65536.0]]), sms, threads).sharing[0]
    assert (large, small) == (528.0, 80.0)


def test_no_value_is_left_out() -> None:
    columns, reduced = np.array([1.0, 6.0, 1000.0, 50257.0]), np.array([7.0, 1e6, 333.0, 4096.0])
    found = column_blocks(columns, reduced, *map(np.asarray, H100))
    covered = found.grid * found.across * found.width * np.where(reduced < 64, found.deep, 1.0)
    assert (covered >= columns).all()
    assert (found.values * found.sharing * np.where(reduced < 64, 1.0, found.deep) >= reduced).all()
