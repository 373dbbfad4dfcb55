"""What our own recordings teach of the errors of ops in real networks."""

from __future__ import annotations

import numpy as np
import pytest
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.prediction.predict import (
    CONSTANTS,
    LEAST_PART,
    LONG_NS,
    OTHER,
    family_half_widths,
    joint_half_width,
)
from wavecast.analyzer.work import Family
from wavecast.formats.files.constants import read_constants
from wavecast.mlp_weights.train.family_widths import FamilyErrors, half_width_of, widths_of
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu


def test_the_width_holds_nine_of_ten() -> None:
    random, width = np.random.default_rng(1), 0.1
    errors = random.normal(0.0, 0.4, 5000)
    found = half_width_of(errors**2 - width**2)
    assert found == pytest.approx(np.sqrt((1.645 * 0.4) ** 2 - width**2), rel=0.05)
    assert np.mean(np.abs(errors) <= np.hypot(found, width)) == pytest.approx(0.9, abs=0.01)
    assert half_width_of(np.zeros(0)) == 0.0
    # Of the least family that has one of its own no op is left out.
    assert [half_width_of(np.array([0.25, *np.zeros(count - 1)])) for count in (10, 11, 20)] == [0.5, 0.0, 0.0]


def test_a_family_that_its_models_hold_too_well_is_narrowed() -> None:
    random, width = np.random.default_rng(1), 0.5
    errors = random.normal(0.0, 0.2, 5000)
    found = half_width_of(errors**2 - width**2)
    joint = joint_half_width(np.full((1, 1), width), np.full((1, 1), found))
    assert found < 0.0
    assert np.mean(np.abs(errors) <= joint) == pytest.approx(0.9, abs=0.01)
    assert joint_half_width(np.full(1, width), np.array([-0.49])) == pytest.approx(LEAST_PART * width)
    assert joint_half_width(np.full(1, 0.3), np.array([0.4])) == pytest.approx(0.5)


def test_a_family_of_few_ops_takes_what_all_show() -> None:
    many, few = np.linspace(-0.1, 0.4, 100), np.full(3, 4.0)
    parts = {"matmul": [FamilyErrors(network="a", excess=many)], "sort": [FamilyErrors(network="a", excess=few)]}
    assert widths_of(parts) == {"matmul": half_width_of(many), OTHER: half_width_of(np.concatenate([many, few]))}


def test_only_weights_that_saw_the_chip_speak_for_it() -> None:
    known, families = read_constants(CONSTANTS), [Family.SOFTMAX, Family.EXPERTS, None]
    families.append(Family.EMBEDDING)  # which fits better where the chip was left out
    names = ("softmax", "experts", OTHER, "embedding")
    gpus = [find_gpu(load_catalog(), name) for name in ("h100 sxm", "a100 sxm4 80gb")]
    library, blind = load_library(), load_library(frozenset({"GH100"}))
    assert set(known["chips"]) == {"GH100"}
    for size, time_ns in (("short", 0.9 * LONG_NS), ("long", LONG_NS)):
        seen, unseen = (
            [known[kind][size].get(name, known[kind][size][OTHER]) for name in names] for kind in ("seen", "unseen")
        )
        unseen = np.maximum(np.maximum(seen, unseen), 0.0).tolist()
        times = np.full((4, 2), time_ns)
        for trained, of_h100 in ((library, seen), (blind, unseen)):
            chips = trained.trained_chips("vector")
            assert family_half_widths(families, times, gpus, chips).T.tolist() == [of_h100, unseen]
    assert family_half_widths([], np.zeros((0, 2)), gpus, set()).shape == (0, 2)
