"""What whole networks teach of the error that a GPU's times share."""

from __future__ import annotations

import numpy as np
import pytest
from wavecast.analyzer.prediction.shared_error import ANY_KIND, COMPILED_HALF_WIDTH, IterationKind
from wavecast.mlp_weights.train.network_widths import (
    LEAST,
    NetworkError,
    by_kind_and_chip,
    half_width_of,
    seen_widths,
    widths_of,
    without_shared,
)

HALF = IterationKind(is_half=True, is_training=False, is_compiled=False)
COMPILED_HALF = IterationKind(is_half=True, is_training=False, is_compiled=True)


def errors(chip: str, spread: float, kind: IterationKind = ANY_KIND, *, families: float = 0.0) -> list[NetworkError]:
    random = np.random.default_rng(len(chip))
    return [
        NetworkError(chip=chip, kind=kind, log_ratio=float(value), fall=families, rise=families)
        for value in random.normal(0.0, spread, 400)
    ]


def test_the_shared_half_width_is_what_the_families_leave() -> None:
    alone = half_width_of({"GA100": errors("GA100", 0.1), "GH100": errors("GH100", 0.1)})
    assert alone == pytest.approx(1.645 * 0.1 * np.sqrt(1.5), rel=0.1)
    assert half_width_of({"GA100": errors("GA100", 0.1, families=0.3)}) == round(LEAST * np.sqrt(2.0), 2)


def test_a_chip_is_judged_by_the_others() -> None:
    rows = [*errors("GA100", 0.1), *errors("AD102", 0.1), *errors("GV1000", 0.5)]
    shared = widths_of(by_kind_and_chip(rows))["shared"][ANY_KIND.name]
    assert shared["without"]["GV1000"] < 0.5 * shared["without"]["GA100"]
    assert shared["every"] > shared["without"]["GV1000"]


def test_a_chip_that_weights_saw_is_judged_by_its_own_networks() -> None:
    groups = by_kind_and_chip([*errors("GH100", 0.2), *errors("GV1000", 0.5)])
    seen = seen_widths(groups)
    assert seen["GH100"][ANY_KIND.name] == pytest.approx(1.645 * 0.2, rel=0.1)
    assert seen["GV1000"][ANY_KIND.name] == pytest.approx(1.645 * 0.5, rel=0.1)


def test_a_kind_of_one_chip_takes_what_eager_runs_of_others_show() -> None:
    rows = [*errors("AD102", 0.2, COMPILED_HALF), *errors("AD102", 0.2, HALF), *errors("GA102", 0.1, HALF)]
    shared = widths_of(by_kind_and_chip(rows))["shared"]
    eager = shared[HALF.name]["without"]["AD102"]
    assert shared[COMPILED_HALF.name]["without"] == {
        "AD102": pytest.approx(np.hypot(eager, COMPILED_HALF_WIDTH), abs=0.01)
    }


def test_a_shared_part_comes_out_of_an_end_as_it_went_in() -> None:
    assert without_shared(float(np.hypot(0.3, 0.4)), 0.4) == pytest.approx(0.3)
    assert without_shared(0.1, 0.4) == 0.0
