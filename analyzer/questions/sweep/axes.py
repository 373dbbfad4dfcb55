"""From what a user asks to vary to parameters with values."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Final

from ....errors import InputError, parameter
from ....formats.trace.tables import Trace
from ....records import dataclass
from ....specs.gpu import Gpu
from ...whatif.axis.infer import infer_batch_size, infer_sequence_length
from ...whatif.scenario import Scenario, TargetPrecision
from .figures import FIGURES, DatasheetFigure, find_figure, plain
from .report import AxisKind, SweepAxis
from .values import ParameterQuantity, read_values

MOST_AXES: Final = 2
POINTS: Final = 17
"""Of a range that does not say how many, where it is the only parameter."""
POINTS_OF_TWO: Final = 9
MOST_TOGETHER: Final = 1_000
"""Points of two parameters."""
MOST_ANALYSES: Final = 100
"""Values of parameters of the iteration, each of which is an analysis of its own."""
RECORDED: Final = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationParameter:
    """Describe a parameter of the iteration: a field of `Scenario`."""

    name: str
    field: str
    words: str
    aliases: tuple[str, ...] = ()
    step: float = 1.0


CHANGES: Final = (
    IterationParameter(name="batch", field="batch_size", words="samples of a batch", aliases=("batch_size",)),
    IterationParameter(
        name="sequence-length",
        field="sequence_length",
        words="tokens of a sample",
        aliases=("sequence", "seqlen", "seq"),
    ),
    IterationParameter(
        name="cached-tokens", field="cached_tokens", words="cached tokens of a sample", aliases=("cached", "kv")
    ),
    IterationParameter(name="precision", field="precision", words="precision"),
    IterationParameter(
        name="host", field="cpu_speed", words="speed of the host", aliases=("cpu-speed", "cpu"), step=0.0
    ),
)
SIZES: Final = ("batch", "sequence-length")
"""What an iteration does more work with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAxis:
    """Hold a parameter with its values, and how a value is brought about."""

    axis: SweepAxis
    figure: DatasheetFigure | None = None
    """None where it is none of the GPU's."""
    change: IterationParameter | None = None
    rounded: bool = False
    """Whether values were no whole numbers and are now."""

    def scenario_value(self, index: int) -> float | int | TargetPrecision | None:
        """Return what `Scenario` takes for a value."""
        value = self.axis.values[index]
        if isinstance(value, str):
            return None if value == RECORDED else TargetPrecision(value)
        return int(value) if self.change is not None and self.change.step else value


def read_axes(vary: Mapping[str, str], gpu: Gpu, trace: Trace, scenario: Scenario) -> tuple[AskedAxis, ...]:
    """Return the parameters that a user names, with their values.

    Raises InputError for a name that nothing has, for values that cannot be, and for more of them than are tried.
    """
    if not 1 <= len(vary) <= MOST_AXES:
        raise InputError(
            f"{parameter('vary')}: expected one parameter or two, found {len(vary)}: vary the others in turn"
        )
    count = POINTS if len(vary) == 1 else POINTS_OF_TWO
    found = tuple(_read_axis(name, text, gpu, trace, scenario, count) for name, text in vary.items())
    names = [item.axis.name for item in found]
    if len(set(names)) < len(names):
        raise InputError(f"{parameter('vary')}: {names[0]} stands there twice: give all its values in one")
    # Raise InputError for two parameters that are one.
    first, *others = found
    for other in others:
        same = _keys(first) & _keys(other)
        if same:
            raise InputError(
                f"{parameter('vary')}: {first.axis.name} and {other.axis.name} both set {min(same)}: vary one of them"
            )
    _check_number(found)
    return found


def known_names() -> list[str]:
    """Return the parameters by the names that documentation has for them."""
    return [*(item.name for item in CHANGES), *(item.name for item in FIGURES)]


def _read_axis(name: str, text: str, gpu: Gpu, trace: Trace, scenario: Scenario, point_count: int) -> AskedAxis:
    figure = find_figure(name)
    if figure is not None:
        base = figure.read(gpu)
        quantity = ParameterQuantity(
            name=figure.name,
            scales=figure.unit.scales,
            usual_scale=figure.unit.scales[figure.unit.usual],
            base=base,
            base_name=gpu.name,
            step=figure.step,
        )
        if base is None and figure.unit.shown:
            raise InputError(f"{parameter('vary')} {figure.name}: {gpu.name} has none that could be varied")
        values = read_values(quantity, text, point_count)
        axis = SweepAxis(
            name=figure.name,
            words=figure.words,
            kind=AxisKind.FIGURE,
            unit=figure.unit.shown,
            values=values.numbers,
            base=base,
        )
        return AskedAxis(axis=axis, figure=figure, rounded=values.rounded)
    wanted = plain(name)
    change = next((item for item in CHANGES if wanted in map(plain, (item.name, *item.aliases))), None)
    if change is None:
        raise InputError(_unknown(name))
    return _read_change(change, text, trace, scenario, point_count)


def _unknown(name: str) -> str:
    spellings = {plain(alias): item.name for item in FIGURES for alias in (item.name, *item.aliases)}
    spellings |= {plain(alias): item.name for item in CHANGES for alias in (item.name, *item.aliases)}
    near = difflib.get_close_matches(plain(name), list(spellings), n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(dict.fromkeys(spellings[item] for item in near))}? " if near else ""
    named = f"{parameter('vary')} {name}"
    return f"{named}: no parameter is called so; {hint}docs/reference/sweep.md and 'wavecast sweep --help' list them"


def _read_change(
    change: IterationParameter, text: str, trace: Trace, scenario: Scenario, point_count: int
) -> AskedAxis:
    if change.field == "precision":
        return _read_precisions(change, text)
    base = _recorded_value(change, trace, scenario)
    quantity = ParameterQuantity(
        name=change.name,
        scales={},
        usual_scale=1.0,
        base=base,
        base_name="the recording",
        step=change.step,
        doubles=bool(change.step),
        is_ratio=not change.step,
    )
    values = read_values(quantity, text, point_count)
    axis = SweepAxis(
        name=change.name,
        words=change.words,
        kind=AxisKind.ITERATION,
        unit="",
        values=values.numbers,
        base=base,
        more_is_better=change.name not in ("cached-tokens", *SIZES),
    )
    return AskedAxis(axis=axis, change=change, rounded=values.rounded)


def _read_precisions(change: IterationParameter, text: str) -> AskedAxis:
    names = [word.strip().casefold() for word in text.split(",")]
    known = [RECORDED, *(item.value for item in TargetPrecision)]
    for name in names:
        if name not in known:
            raise InputError(
                f"{parameter('vary')} precision={text}: expected some of {', '.join(known)}, found {name!r}"
            )
    axis = SweepAxis(
        name=change.name,
        words=change.words,
        kind=AxisKind.ITERATION,
        unit="",
        values=tuple(dict.fromkeys(names)),
        base=RECORDED,
        more_is_better=False,
    )
    return AskedAxis(axis=axis, change=change)


def _recorded_value(change: IterationParameter, trace: Trace, scenario: Scenario) -> float | None:
    """Return what a parameter is where it is not varied; None where nothing tells, or there is no such thing."""
    asked = getattr(scenario, change.field)
    if asked is not None:
        return float(asked)
    if change.name == "host":
        return 1.0
    if change.name not in SIZES:
        return None
    given = scenario.recorded_batch_size if change.name == "batch" else scenario.recorded_sequence_length
    stated = trace.meta.workload.batch_size if change.name == "batch" else None
    try:
        return float(given or stated or (infer_batch_size if change.name == "batch" else infer_sequence_length)(trace))
    except InputError:
        return None


def _keys(item: AskedAxis) -> set[str]:
    """Return the catalogue's keys that a figure sets beside what follows from it."""
    if item.figure is None:
        return set()
    if item.figure.name in ("memory.pin_rate", "memory.bus", "memory.bandwidth"):
        return {"memory.bandwidth"}
    name = item.figure.name
    groups = {"clock": "clocks", "matrix": "matrix", "vector": "vector"}
    inner = {f"{group}.": key for key, group in groups.items() if name != key}
    is_clock = name.startswith("clocks.") and name.endswith("_mhz")
    found = next((key for start, key in inner.items() if name.startswith(start)), name)
    return {"clock"} if is_clock else {found if found in ("matrix", "vector") else name}


def _check_number(asked: Sequence[AskedAxis]) -> None:
    total = analyses = 1
    for item in asked:
        total *= len(item.axis.values)
        analyses *= len(item.axis.values) if item.axis.kind is AxisKind.ITERATION else 1
    if total > MOST_TOGETHER:
        raise InputError(f"{parameter('vary')}: {total:,} points together; expected at most {MOST_TOGETHER:,}")
    if analyses > MOST_ANALYSES:
        raise InputError(
            f"{parameter('vary')}: {analyses:,} changes of the iteration; expected at most {MOST_ANALYSES:,}"
        )
