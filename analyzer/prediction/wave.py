"""Wave scaling: a kernel measured on one GPU, moved to another that runs the same kernel.

Source of the equations: Yu, Gao, Golikov, Pekhimenko, "Habitat: A Runtime-Based Computational Performance
Predictor for Deep Neural Network Training", USENIX ATC 2021, section 3.3 (equations 1 and 2); gamma is not theirs.
Notation there: B blocks, W wave size (blocks resident on the whole GPU), D memory bandwidth, C clock,
subscript o the origin (here: source), d the destination (here: target).
"""

import numpy as np

from ...arrays import Floats


def reached_boundedness(moved_bytes: Floats, time_ns: Floats, bytes_per_s: Floats) -> Floats:
    """Return gamma of a measured kernel: the share of its time that moving its bytes takes at the rate of the memory.

    Habitat takes gamma from the arithmetic intensity alone, so that a kernel too small to fill the memory's pipes
    counts as bound by it. On measured kernels this form's error is a sixth to a third smaller
    (wave_pairs.py at f56f3bcf prints both).

    >>> reached_boundedness(np.array([3e6, 3e3]), np.array([1e3, 1e3]), np.array([3e12])).round(3)
    array([1.   , 0.001])
    """
    return np.minimum(moved_bytes / np.maximum(time_ns * 1e-9 * bytes_per_s, 1.0), 1.0)


def large_wave_factor(gamma: Floats, bandwidth_ratio: Floats, clock_ratio: Floats, wave_ratio: Floats) -> Floats:
    """Return target time over source time for many waves (equation 2).

    (D_o / D_d)^gamma · (W_o / W_d · C_o / C_d)^(1 - gamma); the ratios are source over target.

    >>> large_wave_factor(np.array([1.0, 0.0]), np.array([0.5]), np.array([1.2]), np.array([0.8]))
    array([0.5 , 0.96])
    """
    return _mix(gamma, bandwidth_ratio, wave_ratio * clock_ratio)


def exact_wave_factor(
    gamma: Floats,
    bandwidth_ratio: Floats,
    clock_ratio: Floats,
    block_count: Floats,
    source_wave_blocks: Floats,
    target_wave_blocks: Floats,
) -> Floats:
    """Return target time over source time with whole waves counted (equation 1).

    ⌈B / W_d⌉ · (D_o / D_d · W_d / W_o)^gamma · (C_o / C_d)^(1 - gamma) / ⌈B / W_o⌉.
    The memory term carries W_d / W_o because a block gets 1 / W of the bandwidth, also when fewer blocks than a wave
    exist: one SM cannot use the bandwidth of all. (Capping W at B there is worse on measured kernels:
    wave_pairs.py at f56f3bcf prints both.)

    >>> one = np.ones(1)  # of 300 blocks in waves of 100 and of 200: three waves become two
    >>> exact_wave_factor(0 * one, one, one, 300 * one, 100 * one, 200 * one).round(2)
    array([0.67])
    """
    waves_ratio = np.ceil(block_count / target_wave_blocks) / np.ceil(block_count / source_wave_blocks)
    share_ratio = bandwidth_ratio * target_wave_blocks / source_wave_blocks
    return np.asarray(waves_ratio * _mix(gamma, share_ratio, clock_ratio))


def _mix(gamma: Floats, memory_ratio: Floats, compute_ratio: Floats) -> Floats:
    """Return memory_ratio^gamma · compute_ratio^(1 - gamma), through logarithms: one exponential per element."""
    log_compute = np.log(compute_ratio)
    return np.asarray(np.exp(log_compute + gamma * (np.log(memory_ratio) - log_compute)))
