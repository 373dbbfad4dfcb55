"""Predictions that plans share: how experts lie changes neither attention nor the products beside them."""

import numpy as np

from ....arrays import Floats
from ....specs.fleet import Fleet, take_gpus
from ...models.frame.problems import Problems, as_columns, problem_columns
from ...models.library import Library

KeptTimes = dict[tuple[str, bytes], dict[str, tuple[Floats, Floats]]]
"""By model and problems, then by GPU: time in ns and half-width, [n]. One library, one node for each GPU."""


def predict_kept(
    library: Library, model: str, problems: Problems, fleet: Fleet, kept: KeptTimes
) -> tuple[Floats, Floats]:
    """Return times in ns and half-widths of problems [n] on a fleet of m, [n, m]; what is not kept is predicted."""
    columns = problem_columns(problems).values()
    known = kept.setdefault((model, b"".join(np.ascontiguousarray(column).tobytes() for column in columns)), {})
    missing = [column for column, gpu in enumerate(fleet.gpus) if gpu.name not in known]
    if missing:
        found = library.predict(model, as_columns(problems), take_gpus(fleet, np.array(missing)))
        width = np.broadcast_to(found.half_width, found.time_ns.shape)
        known |= {
            fleet.gpus[column].name: (found.time_ns[:, place], width[:, place]) for place, column in enumerate(missing)
        }
    times, widths = zip(*(known[gpu.name] for gpu in fleet.gpus), strict=True)
    return np.stack(times, axis=1), np.stack(widths, axis=1)
