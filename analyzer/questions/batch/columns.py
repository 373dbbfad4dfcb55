"""The columns of a batch's table, in order, with their types; docs/reference/batch.md says what each means."""

from collections.abc import Mapping
from typing import Final

from ...prediction.prediction import Method
from ...replay.causes import CAUSES
from ...whatif.scenario import SWITCHES


def _all(kind: type, names: str) -> dict[str, type]:
    return dict.fromkeys(names.split(), kind)


PREDICTION_FIELDS: Final[Mapping[str, type]] = {
    **_all(str, "gpu vendor"),
    "is_source": bool,
    **_all(float, "iteration_ns iteration_low_ns iteration_high_ns gpu_busy_ns communication_ns"),
    "untested": str,
    **_all(bool, "fits is_tight"),
    **_all(int, "memory_needed_bytes memory_usable_bytes"),
    **_all(float, "speedup samples_per_s energy_j energy_low_j energy_high_j mean_power_w"),
}
"""Attributes of a `GpuPrediction`, by the names that `analyze --format csv` has, too."""
COLUMNS: Final[Mapping[str, type]] = {
    **_all(str, "trace_id trace workload mode source_format source_gpu what_if precision"),
    **_all(int, "batch sequence_length"),
    **{item.name: bool for item in SWITCHES},
    "cpu_speed": float,
    **_all(int, "samples_per_iteration tokens_per_sample warning_count rank"),
    **PREDICTION_FIELDS,
    **_all(float, "tokens_per_s price_usd_per_hour"),
    **_all(str, "price_date price_kind price_source"),
    **_all(float, "usd_per_1000_iterations usd_per_million_samples"),
    **{f"idle_{cause.value}_ns": float for cause in CAUSES},
    **{f"share_{method.value}": float for method in Method},
}
"""One value per trace to `source_gpu`, per what-if of it to `warning_count`, then per GPU."""
