"""Fitted op models, loaded from `mlp_weights`, and what they predict."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np

from ...arrays import Floats
from ...errors import InputError
from ...records import dataclass, field, replace
from ...specs.fleet import Fleet, take_gpus
from ..work.indices import Spread
from .frame.correction import Calibration, Network, correct, correction_factor, descriptors
from .frame.gpu_physics import at_capped_clock
from .frame.intervals import GPU_CLASSES, IntervalTable, factor_of, half_width, width_factors
from .frame.model import Estimate, Model, group_of, kind_of
from .frame.parameters import GpuFactors, Values, resolve, scale_gpus, theta_size
from .frame.problems import Problems
from .registry import OP_MODELS, load_model
from .store import StoredModel, has_model, load_stored

LINKS_ALONE: Final = "collective"
"""The model whose times a power cap leaves: links take them, and waits, in which the GPU draws too little for it."""
UNLIKE_SEPARATION: Final = 1.0
"""From here on GPUs share only what all GPUs share. B200 and GB200, 0.17 apart, share 0.5 to 1 of what models miss."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """Hold a model with the fitted values of one variant."""

    model: Model[Any]
    theta: Floats
    network: Network | None
    interval: IntervalTable
    anchor: Floats
    """Per group: what part of a source's residual the target shares, 0 to 1."""
    anchored_half_width: Floats
    """Per group: 90 % half-width of an anchored prediction, natural log, where the factor of the GPU's class is 1."""
    foreign_half_width: Floats
    """Per group: the same between GPUs of two vendors; NaN where nothing tells."""
    trained_chips: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """Hold what a fitted model needs to know of a fleet, whatever the problems."""

    values: Values
    width_factor: Floats
    """Factor on the half-widths of each group on each GPU, [groups, m]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predicted:
    """Hold predicted kernel times and their 90 % intervals; arrays broadcast as the inputs do."""

    time_ns: Floats
    half_width: Floats
    """Of the interval, natural log."""
    anchor: Floats
    """How much of a source's measured deviation from the model carries over, 0 to 1, per problem."""
    anchored_half_width: Floats
    """Half-width of the interval that is left when a source of the same vendor was measured."""
    foreign_half_width: Floats
    """The same when a source of another vendor was; NaN where nothing tells; per problem."""

    @property
    def low_ns(self) -> Floats:
        """Return the lower ends of the intervals."""
        return np.asarray(self.time_ns * np.exp(-self.half_width))

    @property
    def high_ns(self) -> Floats:
        """Return the upper ends of the intervals."""
        return np.asarray(self.time_ns * np.exp(self.half_width))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Library:
    """Hold every fitted model."""

    fitted: Mapping[str, Fitted]
    calibrations: Mapping[str, Mapping[str, Calibration]] = field(default_factory=dict)
    """By model and by name of GPU: what measurements there taught beyond `factors`."""
    factors: Mapping[str, GpuFactors] = field(default_factory=dict)
    """By name of GPU: what measurements there taught of its rates."""
    spared: frozenset[tuple[str, str]] = frozenset()
    """Models and GPUs whose left-out measurements fit no better with these factors: there they are not used."""
    indices: Spread | None = None
    """How lookups in embedding tables are spread over rows, where the user or the recording says it."""

    def predict(self, name: str, problems: Problems, fleet: Fleet, prepared: Prepared | None = None) -> Predicted:
        """Predict problems [n,1] on a fleet of m, or [n] on a paired fleet of n.

        `prepared`, from `prepare`, saves work where many blocks of problems meet one fleet.

        >>> from wavecast.analyzer.models.frame.problems import as_columns
        >>> library.predict("matmul", as_columns(problems), fleet).time_ns.shape
        (5, 2)
        """
        prepared = prepared or self.prepare(name, fleet)
        fleet = self.known_fleet(name, fleet)
        predicted = predict_fitted(self.fitted[name], problems, fleet, prepared)
        known = self.calibrations.get(name, {})
        columns = [column for column, gpu in enumerate(fleet.gpus) if gpu.name in known]
        if not columns:
            return predicted
        factor = _correction_factors(self.fitted[name], known, problems, take_gpus(fleet, np.array(columns)))
        # The prediction with the times on some GPUs corrected; intervals keep their relative width.
        whole = np.ones_like(predicted.time_ns)
        whole[..., np.array(columns)] = factor
        return replace(predicted, time_ns=predicted.time_ns * whole)

    def prepare(self, name: str, fleet: Fleet) -> Prepared:
        """Return what a model needs to know of a fleet."""
        return prepare(self.fitted[name], fleet)

    def values(self, name: str, fleet: Fleet) -> Values:
        """Return the fitted values of a model, one per GPU.

        >>> library.values("matmul", fleet)["idle_share"].round(2)
        array([0.15, 0.15])
        """
        return _values(self.fitted[name], fleet)

    def known_fleet(self, name: str, fleet: Fleet) -> Fleet:
        """Return the fleet with the rates that measurements found, as a model takes them."""
        if not self.factors:
            return fleet
        return scale_gpus(fleet, {gpu: found for gpu, found in self.factors.items() if (name, gpu) not in self.spared})

    @property
    def seen_chips(self) -> frozenset[str]:
        """Return the chips that any model was trained on."""
        return frozenset(chip for fitted in self.fitted.values() for chip in fitted.trained_chips)

    def trained_chips(self, name: str) -> frozenset[str]:
        """Return the chips that the model was trained on."""
        return self.fitted[name].trained_chips


def prepare(fitted: Fitted, fleet: Fleet) -> Prepared:
    """Resolve a model's parameters for a fleet, and the growth of its intervals there."""
    return Prepared(values=_values(fitted, fleet), width_factor=width_factors(fitted.interval, fleet))


def _values(fitted: Fitted, fleet: Fleet) -> Values:
    model = fitted.model
    return resolve(model.parameters, fitted.theta, len(model.class_names), model.gpu_class(fleet))


def predict_fitted(fitted: Fitted, problems: Problems, fleet: Fleet, prepared: Prepared | None = None) -> Predicted:
    """Predict with one model: simulator, learned correction, interval."""
    known = prepare(fitted, fleet) if prepared is None else prepared
    if fitted.model.name != LINKS_ALONE:
        fleet = at_capped_clock(fleet)
    estimate = fitted.model.simulate(problems, fleet, known.values, None)
    time_ns = corrected_ns(fitted, estimate)
    group = group_of(fitted.model, problems)
    factor = factor_of(group, known.width_factor)
    width = half_width(fitted.interval, group, time_ns, factor)
    anchored = fitted.anchored_half_width[group] * factor
    if estimate.unstated is not None:
        width, anchored = np.hypot(width, estimate.unstated), np.hypot(anchored, estimate.unstated)
    return Predicted(
        time_ns=time_ns,
        half_width=width,
        anchor=fitted.anchor[group],
        anchored_half_width=anchored,
        foreign_half_width=fitted.foreign_half_width[group],
    )


def _correction_factors(fitted: Fitted, known: Mapping[str, Calibration], problems: Problems, fleet: Fleet) -> Floats:
    """Return the factor on each problem's time on each GPU of a fleet of calibrated ones, as the problems broadcast."""
    estimate, kinds = simulate(fitted, problems, fleet), kind_of(fitted.model, problems)
    found = descriptors(problems, corrected_ns(fitted, estimate), estimate.described())
    if found.ndim == 2:  # one GPU per problem
        rows = zip(fleet.gpus, found, kinds, strict=True)
        return np.array([correction_factor(known[gpu.name], row, kind) for gpu, row, kind in rows])
    columns = [correction_factor(known[gpu.name], found[:, at], kinds[:, 0]) for at, gpu in enumerate(fleet.gpus)]
    return np.stack(columns, axis=1)


def carried_factor(
    measured_ns: Floats, model_ns: Floats, anchor: Floats, half_width: Floats, separation: Floats
) -> Floats:
    """Return by what a source's measurement multiplies the model's time on another GPU; the arrays broadcast.

    log factor = share * d + e: the source's deviation from the model, log(measured / model), is parted into d within
    the model's interval, and e beyond it, which tells of this very kernel (strides, a fused epilogue) and carries
    over whole. Between unlike GPUs the share is lambda, learned per family; it grows to 1 for like ones.

    >>> measured_ns, model_ns, anchor, half_width = np.array([[130.0], [100.0], [0.5], [0.2]])
    >>> carried_factor(measured_ns, model_ns, anchor, half_width, separation=np.array([0.0, 9.0])).round(2)
    array([1.3 , 1.18])
    """
    deviation = np.log(measured_ns / model_ns)
    usual = np.clip(deviation, -half_width, half_width)
    share = 1.0 - (1.0 - anchor) * np.minimum(separation / UNLIKE_SEPARATION, 1.0)
    return np.asarray(np.exp(share * usual + (deviation - usual)))


def simulate(fitted: Fitted, problems: Problems, fleet: Fleet) -> Estimate:
    """Run the simulator with the fitted parameters."""
    return fitted.model.simulate(problems, fleet, prepare(fitted, fleet).values, None)


def corrected_ns(fitted: Fitted, estimate: Estimate) -> Floats:
    """Return the simulated time with the learned correction."""
    if fitted.network is None or estimate.sizes is None:
        return estimate.time_ns
    log = correct(fitted.network, estimate.sizes)
    if estimate.size_column is not None:
        log = log[:, estimate.size_column]
    return np.asarray(estimate.time_ns * np.exp(log))


@lru_cache(maxsize=32)
def load_library(exclude_chips: frozenset[str] = frozenset()) -> Library:
    """Load every model in the variant that never saw `exclude_chips`.

    Raises InputError where a model saw several of them and has no variant without all.

    >>> "matmul" in load_library().fitted
    True
    """
    found = _Stored(exclude_chips)
    return Library(fitted=dict(found) if exclude_chips else found)


class _Stored(Mapping[str, Fitted]):
    """Load a model when it is asked for: most iterations need five of fifteen."""

    def __init__(self, exclude_chips: frozenset[str]) -> None:
        self._exclude_chips = exclude_chips
        self._found: dict[str, Fitted | None] = {name: None for name in OP_MODELS if has_model(name)}

    def __getitem__(self, name: str) -> Fitted:
        known = self._found[name]
        if known is None:
            self._found[name] = known = fitted_of(load_stored(name, self._exclude_chips))
        return known

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def fitted_of(stored: StoredModel) -> Fitted:
    """Build a fitted model from its arrays."""
    arrays, model = stored.arrays, load_model(OP_MODELS[stored.name])
    network = _network(arrays)
    inputs = len(model.size_names) if network is None else network.mean.shape[-1]
    size = theta_size(model.parameters, len(model.class_names))
    if len(arrays["theta"]) != size or inputs != len(model.size_names):
        raise InputError(
            f"the weights of model {stored.name} were trained for another version of it: reinstall wavecast, "
            "or retrain with python -m wavecast.mlp_weights.train DATA"
        )
    return Fitted(
        model=model,
        theta=arrays["theta"].astype(np.float64),
        network=network,
        interval=IntervalTable(
            half_width=arrays["interval.half_width"].astype(np.float64),
            class_factor=arrays.get("interval.class_factor", np.ones((len(GPU_CLASSES), len(arrays["anchor"])))),
            seen_ratio=arrays["interval.seen_ratio"].astype(np.float64),
            reference=float(arrays["interval.reference"][0]),
            positions=arrays["interval.positions"].astype(np.float64),
            is_declared=arrays["interval.is_declared"].astype(bool),
        ),
        anchor=arrays["anchor"].astype(np.float64),
        anchored_half_width=arrays["anchored_half_width"].astype(np.float64),
        foreign_half_width=arrays.get("foreign_half_width", np.full(len(arrays["anchor"]), np.nan)),
        trained_chips=stored.trained_chips,
    )


def _network(arrays: Mapping[str, Any]) -> Network | None:
    if "network.mean" not in arrays:
        return None
    depth = sum(name.startswith("network.weight") for name in arrays)
    return Network(
        mean=arrays["network.mean"],
        scale=arrays["network.scale"],
        weights=tuple(arrays[f"network.weight{layer}"] for layer in range(depth)),
        biases=tuple(arrays[f"network.bias{layer}"] for layer in range(depth)),
        shrink=float(arrays["network.shrink"][0]),
        limit=float(arrays["network.limit"][0]),
    )
