"""A comparison for programs: JSON; the layout is public and in docs/compare.md."""

from __future__ import annotations

from dataclasses import asdict

from ...page.encoding import encode_json
from ...page.energy import energy_record
from .report import COMPARISON_FORMAT, COMPARISON_VERSION, Comparison
from .tables import GPU_FIELDS


def draw_comparison_json(comparison: Comparison, *, max_slowdown: float | None, exit_status: int) -> str:
    """Write a comparison as JSON: times in ns, changes as ratios, null where nothing is known."""
    limit = max_slowdown if max_slowdown is not None else 0.0
    gpus = [
        {
            **{name: getattr(gpu, name) for name in GPU_FIELDS},
            "change": gpu.change,
            "verdict": None if max_slowdown is None else gpu.verdict(limit).value,
            "old_energy": energy_record(gpu.old_energy),
            "new_energy": energy_record(gpu.new_energy),
            "energy_change": gpu.energy_change,
        }
        for gpu in comparison.gpus
    ]
    head = {"format": COMPARISON_FORMAT, "version": COMPARISON_VERSION, "exit_status": exit_status}
    return encode_json({**head, **asdict(comparison), "gpus": gpus, "memory_growth": comparison.memory_growth})
