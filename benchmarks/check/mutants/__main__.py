"""What the tests notice: small errors put into rooms of the analyzer and the importer, one at a time.

Run: python -m benchmarks.check.mutants                              # 200 errors, 33 a room; lists those that survive
     … --count 80 --seed 1 --room replay --module engine             # others; of one room; of some modules
     … --out FILE.jsonl                                              # keep results; a run that was stopped goes on
     … --again FILE.jsonl                                            # the survivors of an earlier run once more

Each error is put into a private copy of the checkout, whose tests then run in a process of their own: those of the room
that reach the changed statement, the quickest up to a budget, until one fails. Tests that read the public data are left
out, hypothesis draws the same examples each time. What reads better than it compiles to is not touched: annotations,
decorators, messages of errors, f-strings. An error that changes nothing that can be seen counts as surviving.
"""

from __future__ import annotations

import argparse
import importlib
import random
import tempfile
from contextlib import suppress
from pathlib import Path

from .reach import reach_of
from .results import print_results, read_results
from .runner import Trial, try_errors
from .sample import ROOMS, draw_mutants
from .sandbox import private_copy, register_profile

IMPORTED_ONCE = ("scipy.optimize", "scipy.special", "orjson", "msgspec", "click", "rich", "networkx", "torch")
BUDGET_S = 5.0


def main() -> None:
    """Draw the errors, try each, print the survivors and the shares."""
    options = _options()
    found = draw_mutants(options)
    known = read_results(options.out)
    results = [known[mutant.key] for mutant in found if mutant.key in known]
    waiting = [mutant for mutant in found if mutant.key not in known]
    random.Random(options.seed).shuffle(waiting)  # noqa: S311 (so that a part of a run tells of all rooms)
    for name in IMPORTED_ONCE:
        with suppress(ImportError):
            importlib.import_module(name)
    register_profile()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree, out = private_copy(Path(folder)), (options.out or Path(folder) / "results.jsonl").resolve()
        for room in sorted({mutant.room for mutant in waiting}):
            trial = Trial(
                tree=tree, room=room, reach=reach_of(tree, room, out.parent), out=out, budget_s=options.budget
            )
            try_errors(trial, [mutant for mutant in waiting if mutant.room == room])
        tried = read_results(out)
        results += [tried[mutant.key] for mutant in waiting]
    print_results(results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", choices=ROOMS, action="append", help="of these rooms only")
    parser.add_argument("--module", default="", help="of the modules whose path holds this only")
    parser.add_argument("--line", type=int, help="every error of this line instead of some by chance")
    parser.add_argument("--out", type=Path, help="file of results, one JSON object a line")
    parser.add_argument("--again", type=Path, help="results whose survivors are tried, by what they change")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="CPU time of tests per error, s; the quickest")
    return parser.parse_args()


if __name__ == "__main__":
    main()
