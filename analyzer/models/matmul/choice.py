"""The tile and split that a library would launch: what takes least by a cheap score in single precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ....arrays import Codes, Singles
from ..frame.parameters import Values
from .limits import (
    L1_BYTES_PER_CLOCK,
    REDUCTION_BYTES_PER_CLOCK,
    Machine,
    cache_traffic,
    tile_cycles,
    traffic_of,
)
from .problems import MatmulProblems
from .tiles import LEAST_DEPTH, MOST_SPLITS, RESIDENT, TILES, WASTED_SIDE, WAVE_PARTS

MILLISECONDS = np.float32(1e3)
LONGEST = np.float32(1e9)
"""Milliseconds: the fourth power of more would leave single precision."""
NEVER = 1e4
"""Factor on the blocks of a tile out of proportion to its problem."""
HEIGHT, WIDTH = TILES[:, 0], TILES[:, 1]


def choose_launch(p: MatmulProblems, machine: Machine, values: Values) -> Codes:
    """Return the candidate of least score: each tile whole (first), or split over idle multiprocessors.

    The score leaves out the power limit alone, so that it and the final time rank candidates alike.
    """
    m, n = p.m[..., None], p.n[..., None]
    rows, columns = np.ceil(m / HEIGHT), np.ceil(n / WIDTH)
    is_wasted = ((HEIGHT > WASTED_SIDE) & (m <= HEIGHT / 2.0)) | ((WIDTH > WASTED_SIDE) & (n <= WIDTH / 2.0))
    tiles = _single(np.where(is_wasted, NEVER, 1.0) * rows * columns * p.batch[..., None])
    fixed = _fixed(p, machine, values)
    whole = _score(tiles, fixed["k"], fixed)
    parts = fixed["sm_count"] / tiles
    parts[parts < np.float32(2.0)] = np.float32(WAVE_PARTS)
    np.minimum(parts, fixed["k"] * np.float32(1.0 / LEAST_DEPTH), out=parts)
    parts = np.floor(np.clip(parts, np.float32(1.0), np.float32(MOST_SPLITS), out=parts), out=parts)
    split = _score(tiles * parts, fixed["k"] / parts, fixed)
    split += (fixed["split_s"] + fixed["reduction_s"] * (parts + np.float32(1.0))) * MILLISECONDS
    best, best_split = np.argmin(whole, axis=-1), np.argmin(split, axis=-1)
    least = np.take_along_axis(whole, best[..., None], axis=-1)[..., 0]
    least_split = np.take_along_axis(split, best_split[..., None], axis=-1)[..., 0]
    return np.asarray(np.where(least_split < least, best_split + len(TILES), best), dtype=np.int64)


def _single(values: Any) -> Singles:
    return np.asarray(values, dtype=np.float32)


def _fixed(p: MatmulProblems, machine: Machine, values: Values) -> Mapping[str, Singles]:
    """Return what the score needs beside the number of blocks; the last axis is the candidates'."""
    cycles, step, epilogue = tile_cycles(p, HEIGHT, WIDTH, machine, values)
    traffic = traffic_of(p, machine, values)
    period = 1.0 / machine.clock_hz
    lines = HEIGHT * p.left_bytes[..., None] + WIDTH * p.right_bytes[..., None]
    columns = {
        "k": p.k,
        "sm_count": machine.sm_count,
        "per_sm": 1.0 / machine.sm_count,
        "rounding": machine.rounding,
        "moved": traffic.operand_bytes + traffic.out_bytes,
        "operands": traffic.operand_bytes,
        "reread": values["reread"] / cache_traffic(machine, values),
        "spilled": traffic.spilled,
        "read": traffic.read_bytes,
        "written": traffic.written_bytes,
        "stage_overlap": values["stage_overlap"],
        "wave_overlap": values["wave_overlap"],
        "traffic": cache_traffic(machine, values),
        "cache_rate": machine.l2_bytes_per_s,
        "sm_cache_rate": L1_BYTES_PER_CLOCK * machine.clock_hz,
        "dram_rate": machine.bandwidth_bytes_per_s,
        "sm_dram_rate": values["sm_bytes_per_clock"] * machine.clock_hz,
        "split_s": values["split_us"] * 1e-6,
        "reduction_s": values["reduction"]
        * (4.0 * p.batch * p.m * p.n)
        / (REDUCTION_BYTES_PER_CLOCK * machine.sm_count * machine.clock_hz),
    }
    candidates = {
        "lines": lines,
        "cycles_s": cycles * period[..., None],
        "step_s": step * period[..., None],
        "epilogue_s": epilogue * period[..., None],
        "per_resident": 1.0 / RESIDENT,
    }
    return {name: _single(value) for name, value in candidates.items()} | {
        name: _single(np.asarray(value)[..., None]) for name, value in columns.items()
    }


def _score(blocks: Singles, depth: Singles, fixed: Mapping[str, Singles]) -> Singles:
    """Return milliseconds before the power limit: `unthrottled_s` with fourth powers."""
    rounds = blocks * fixed["per_sm"]
    started = np.maximum(rounds, np.float32(1.0))
    np.ceil(rounds, out=rounds)
    rounds -= started
    rounds *= fixed["rounding"]
    rounds += started
    overlap = np.float32(1.0) - np.float32(1.0) / np.maximum(rounds, np.float32(1.0))
    overlap *= fixed["wave_overlap"]
    overlap += fixed["stage_overlap"]
    np.minimum(overlap, np.float32(1.0), out=overlap)
    full = depth * fixed["cycles_s"]
    full = full * rounds
    epilogue = _single(rounds * fixed["epilogue_s"])
    latency = depth * fixed["step_s"]
    rounds *= fixed["per_resident"]
    np.maximum(rounds, np.float32(1.0), out=rounds)
    rounds *= latency
    compute = _single(np.maximum(full, rounds, out=rounds))
    active = np.minimum(blocks, fixed["sm_count"])
    cache = _single(fixed["lines"] * depth * blocks * fixed["traffic"])
    reread = fixed["reread"] / np.sqrt(active)
    reread = reread * cache
    reread -= fixed["operands"]
    np.maximum(reread, np.float32(0.0), out=reread)
    reread *= fixed["spilled"]
    reread += fixed["read"]
    cache += fixed["moved"]
    cache /= np.minimum(active * fixed["sm_cache_rate"], fixed["cache_rate"])
    active *= fixed["sm_dram_rate"]
    reread /= np.minimum(active, fixed["dram_rate"], out=active)
    main = _fourth(compute)
    main += _fourth(cache)
    main += _fourth(reread)
    last = _fourth(_single(fixed["written"] / active))
    last = last + _fourth(epilogue)
    for powers in (main, last, main, last):
        np.sqrt(powers, out=powers)
    hidden = np.minimum(main, last)
    hidden *= overlap
    main += last
    main -= hidden
    return main


def _fourth(values: Singles) -> Singles:
    """Return fourth powers, in place; of times in milliseconds, so that single precision holds 1 ns and a week."""
    values *= MILLISECONDS
    np.minimum(values, LONGEST, out=values)
    values *= values
    values *= values
    return values
