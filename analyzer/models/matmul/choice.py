"""The tile and split that a library would launch: what takes least by a cheap score in single precision.

The score joins its limits by the norm that is fitted for the time. Three norms were tried, each judged on the chips
that the model trains on: a fixed 4 here alone, a fixed 4 in both, the fitted one in both, which keeps faster GPUs no
slower.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask, Rows, Singles, fourth, single
from ..frame.parameters import Values
from .feed import ALIGNED_BYTES, aligned_bytes, segment_s, split_us
from .limits import L1_BYTES_PER_CLOCK, REDUCTION_BYTES_PER_CLOCK, Machine, cache_traffic, tile_cycles, traffic_of
from .menus import FULL_SIDE, LEAST_DEPTH, MOST_SPLITS, RESIDENT, TILES, WASTED_SIDE, WAVE_PARTS
from .problems import MatmulKernel, MatmulProblems

MILLISECONDS: Final = np.float32(1e3)
NEVER: Final = 1e4
"""Factor on the blocks of a tile out of proportion to its problem."""
ONE: Final = single(1.0)
NONE: Final = single(0.0)
LEAST_UNALIGNED_SIDE: Final = 64.0
"""Hopper's library has no smaller tiles for operands off 16-byte boundaries, but for batches of the smallest."""
FILLED_WAVES: Final = 2.0
"""Of 128 x 128 tiles, from which on libraries before Hopper's take none narrower for plain operands: the best of all
would leave less of the last wave idle than products there do. Of 1, 2 and 3, what left-out A100, GA102 and L40S like
best, by shapes that train."""
LEAST_PARTS: Final = 2.0
BELOW: Final = np.float32(0.9999)
"""On a bound, so that rounding does not lift it over the score."""
FEW: Final = 0.6
"""Share of the pairs of problem and GPU below which a candidate is scored on a copy of these alone."""
Columns = Mapping[str, Singles]
"""What scores are computed from, by name: arrays that broadcast with problems and GPUs."""


def choose_launch(p: MatmulProblems, machine: Machine, values: Values) -> Codes:
    """Return the candidate of least score: each tile whole (first), or split over idle multiprocessors.

    The score is the time in single precision without the power limit, so that both rank candidates alike and none is
    taken that a better GPU would be slower with. A candidate is
    scored only for pairs of problem and GPU where a bound on its score is less than the least score so far.
    """
    shape = np.broadcast_shapes(p.m.shape, machine.sm_count.shape)
    fixed, tiles = _fixed(p, machine, values), _tiles(p, machine, values)
    least, choice = np.full(shape, np.inf, dtype=np.float32), np.zeros(shape, dtype=np.int64)
    for number, tile in enumerate(tiles):
        is_open = _bound(tile, fixed, ONE) < least
        if np.count_nonzero(is_open) > FEW * is_open.size:
            score = _score(tile, fixed)
            is_better = score < least
            np.copyto(least, score, where=is_better)
            choice[is_better] = number
        else:
            pairs = np.flatnonzero(is_open)
            _update(least, choice, pairs, number, _score(_taken(tile, pairs, shape), _taken(fixed, pairs, shape)))
    cost = fixed["split_ms"] + np.float32(1.0 + LEAST_PARTS) * fixed["reduction_ms"]
    for number, tile in enumerate(tiles, len(tiles)):
        bound = _bound(tile, fixed, NONE)
        bound += cost
        pairs = np.flatnonzero(bound < least)
        own = _taken(fixed, pairs, shape)
        split = _split(_taken(tile, pairs, shape), own)
        left = np.flatnonzero(_bound(split, own, ONE) < least.ravel()[pairs])
        score = _score(_taken(split, left, pairs.shape), _taken(own, left, pairs.shape))
        _update(least, choice, pairs[left], number, score)
    return choice


def _update(least: Singles, choice: Codes, pairs: Rows, number: int, score: Singles) -> None:
    """Take a candidate for those of some pairs of problem and GPU where its score is less than the least so far."""
    is_better = score < least.ravel()[pairs]
    least.ravel()[pairs[is_better]], choice.ravel()[pairs[is_better]] = score[is_better], number


def _taken(columns: Columns, pairs: Rows, shape: tuple[int, ...]) -> Columns:
    """Return the columns of some pairs of problem and GPU, by their places in all of a shape."""
    row, column = pairs // shape[-1], pairs % shape[-1]
    return {
        name: found.reshape(-1)
        if found.size == 1
        else found.reshape(-1)[pairs if found.shape == shape else column if found.shape[-1] > 1 else row]
        for name, found in columns.items()
    }


def _tiles(p: MatmulProblems, machine: Machine, values: Values) -> Sequence[Columns]:
    """Return each tile whole."""
    period_ms = 1e3 / machine.clock_hz
    found, is_unaligned = [], aligned_bytes(p) < ALIGNED_BYTES
    fills = np.ceil(p.m / FULL_SIDE) * np.ceil(p.n / FULL_SIDE) * p.batch >= FILLED_WAVES * machine.sm_count
    fills = fills & (np.minimum(p.m, p.n) > WASTED_SIDE) & (p.kind == MatmulKernel.PLAIN)
    fills = fills & ~machine.is_async & ~machine.is_amd
    for (height, width), resident in zip(TILES.tolist(), RESIDENT.tolist(), strict=True):
        is_wasted = ((height > WASTED_SIDE) & (p.m <= height / 2.0)) | ((width > WASTED_SIDE) & (p.n <= width / 2.0))
        is_wasted |= _is_skinny(p.m, height) | _is_skinny(p.n, width)
        if min(height, width) < LEAST_UNALIGNED_SIDE and is_unaligned.any():
            is_wasted = is_wasted | (is_unaligned & machine.is_async)
        is_wasted = is_wasted | (fills & (min(height, width) < FULL_SIDE))
        cycles, step, epilogue = tile_cycles(p, height, width, machine, values)
        columns = {
            "blocks": np.where(is_wasted, NEVER, 1.0) * np.ceil(p.m / height) * np.ceil(p.n / width) * p.batch,
            "depth": p.k,
            "lines": height * p.left_bytes + width * p.right_bytes,
            "cycles_ms": cycles * period_ms,
            "step_ms": step * period_ms,
            "epilogue_ms": epilogue * period_ms,
            "per_resident": 1.0 / resident,
            "own_ms": 0.0,
        }
        found.append({name: single(column) for name, column in columns.items()})
    return found


def _is_skinny(size: Floats, side: float) -> Mask:
    """Say where so short a side would be repeated more than twice: such tiles are for problems as short as they are."""
    return (side < WASTED_SIDE) & (size > 2.0 * side)


def _split(tile: Columns, fixed: Columns) -> Columns:
    """Return a tile split along k, for pairs of problem and GPU."""
    parts = fixed["sm_count"] / tile["blocks"]
    parts = np.where(parts < np.float32(2.0), np.float32(WAVE_PARTS), parts)
    np.minimum(parts, tile["depth"] * np.float32(1.0 / LEAST_DEPTH), out=parts)
    parts = np.floor(np.clip(parts, ONE, np.float32(MOST_SPLITS), out=parts), out=parts)
    own_ms = fixed["split_ms"] + fixed["reduction_ms"] * (parts + ONE)
    return {**tile, "blocks": tile["blocks"] * parts, "depth": tile["depth"] / parts, "own_ms": own_ms}


def _fixed(p: MatmulProblems, machine: Machine, values: Values) -> Columns:
    """Return what the score needs beside the candidate."""
    traffic = traffic_of(p, machine, values)
    columns = {
        "sm_count": machine.sm_count,
        "per_sm": 1.0 / machine.sm_count,
        "rounding": machine.rounding,
        "segment_ms": segment_s(p, machine.in_registers, values) * 1e3,
        "moved": traffic.operand_bytes + traffic.out_bytes,
        "operands": traffic.operand_bytes,
        "reread": values["reread"] / cache_traffic(machine, values),
        "spilled": traffic.spilled,
        "read": traffic.read_bytes,
        "ramp_ms": (1.0 - traffic.operand_hit) * values["ramp_us"] * 1e-3,
        "sharpness": values["sharpness"],
        "root": 1.0 / values["sharpness"],
        "written": traffic.written_bytes,
        "turn": values["turn_ratio"],
        "later": values["later_epilogue_ratio"],
        "stage_overlap": values["stage_overlap"],
        "wave_overlap": values["wave_overlap"],
        "later_writes": values["later_writes"],
        "fetched_ahead": values["fetched_ahead"],
        "traffic": cache_traffic(machine, values),
        "cache_rate": machine.l2_bytes_per_s * 1e-3,
        "sm_cache_rate": L1_BYTES_PER_CLOCK * machine.clock_hz * 1e-3,
        "dram_rate": machine.bandwidth_bytes_per_s * 1e-3,
        "sm_dram_rate": values["sm_bytes_per_clock"] * machine.clock_hz * 1e-3,
        "split_ms": split_us(p, machine.is_async, values) * 1e-3,
        "reduction_ms": values["reduction"]
        * (4e3 * p.batch * p.m * p.n)
        / (REDUCTION_BYTES_PER_CLOCK * machine.sm_count * machine.clock_hz),
    }
    return {name: single(value) for name, value in columns.items()}


def _bound(it: Columns, fixed: Columns, least_rounds: Singles) -> Singles:
    """Return milliseconds that a candidate takes at least: its arithmetic or what it asks of the cache."""
    compute = single(np.maximum(it["blocks"] * fixed["per_sm"], least_rounds))
    compute *= it["depth"] * it["cycles_ms"]
    cache = it["lines"] * it["depth"] * it["blocks"] * (fixed["traffic"] / fixed["cache_rate"])
    np.maximum(compute, cache, out=compute)
    compute += it["own_ms"]
    compute *= BELOW
    return compute


def _score(it: Columns, fixed: Columns) -> Singles:
    """Return milliseconds before the power limit: `unthrottled_s`."""
    # The inner loop of the choice among tiles and splits, for every product, GPU and candidate: it is written in place
    # and in float32 because it is most of an analysis' arithmetic. In order: rounds of blocks (between whole and
    # continuous), arithmetic against the latency of the pipeline's stages, bytes through L2 and from DRAM as the active
    # blocks re-read operands, their power mean, and the epilogue that overlaps in part, and later waves' writes.
    rounds = it["blocks"] * fixed["per_sm"]
    started = np.maximum(rounds, ONE)
    np.ceil(rounds, out=rounds)
    rounds -= started
    rounds *= fixed["rounding"]
    rounds += started
    if np.isfinite(fixed["segment_ms"]).any():
        round_ms = it["depth"] * np.maximum(it["cycles_ms"], it["step_ms"] * it["per_resident"])
        rounds = np.minimum(rounds, started + fixed["segment_ms"] / round_ms)
    later = ONE - ONE / np.maximum(rounds, ONE)
    held = later * fixed["later_writes"]
    compute = it["depth"] * it["cycles_ms"] * rounds
    epilogue = (rounds - ONE) * fixed["later"] + ONE
    epilogue *= it["epilogue_ms"]
    rounds *= it["per_resident"]
    np.maximum(rounds, ONE, out=rounds)
    rounds *= it["depth"] * it["step_ms"]
    np.maximum(compute, rounds, out=compute)
    active = np.minimum(it["blocks"], fixed["sm_count"])
    cache = it["lines"] * it["depth"] * it["blocks"] * fixed["traffic"]
    read = fixed["reread"] / np.sqrt(active)
    read *= cache
    read -= fixed["operands"]
    np.maximum(read, np.float32(0.0), out=read)
    read = read * fixed["spilled"]
    read += fixed["read"]
    cache = cache + fixed["moved"]
    cache /= np.minimum(active * fixed["sm_cache_rate"], fixed["cache_rate"])
    active = np.minimum(active * fixed["sm_dram_rate"], fixed["dram_rate"])
    read /= active
    read += fixed["ramp_ms"]
    write = single(fixed["written"] / active)
    turned = fixed["turn"] * np.minimum(read, write) + write
    ahead = later * fixed["fetched_ahead"] * epilogue
    compute += ahead
    epilogue = epilogue - ahead
    longest = np.maximum(np.maximum(compute, cache), read)
    main = np.zeros_like(longest)
    for part in (compute, cache, read):
        main += np.power(part / longest, fixed["sharpness"])
    main **= fixed["root"]
    main *= longest
    last = np.sqrt(np.sqrt(fourth(single(epilogue)) + fourth(single((ONE - held) * write))))
    overlap = np.minimum((later - held) * fixed["wave_overlap"] + fixed["stage_overlap"], ONE)
    overlap *= np.minimum(main, last)
    main += last - overlap
    beside = np.subtract(fourth(single(read + held * turned)), fourth(single(read)))
    main = single(np.sqrt(np.sqrt(np.add(fourth(main), beside))))
    np.maximum(main, read + turned, out=main)
    main += it["own_ms"]
    return single(main)
