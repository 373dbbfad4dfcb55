"""Records the shapes of one iteration of an unmodified script, on a machine without a GPU."""

import gc
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import CaptureError, WavecastError
from ...formats.trace.meta import HostTimes
from ...formats.trace.tables import Trace, Workload
from ..description.device import check_workload, describe_trace, mode_of
from ..description.signatures import tensors_in
from ..fake_ranks.exchange import FakeExchange, is_collective
from ..fake_ranks.group import fake_ranks, is_deepspeeds, refusal
from ..fake_ranks.mail import RankPlace
from ..hooks.batches import LoadedBatches, with_samples
from ..hooks.boundaries import IterationWatch, check_ends
from ..hooks.modules import OptimizerSteps
from ..hooks.patches import describe_end, only_recording
from ..meta.autocast import MetaAutocast
from ..meta.host_values import HostReads, HostValues
from ..meta.recorder import MetaOps, ShapeRecorder, cuda_behaviour, read_recorder
from ..meta.script_clock import ClockedFunctions, ClockedModulePaths, ScriptClock, is_of_gpu
from ..meta.script_times import ScriptWalk, merge_walks
from .assumed_sizes import dynamic_sizes
from .cuda import cuda_stand_in
from .devices import AssumedReads, CudaToMeta, FakeCuda, Promotion, asked_in_backward, modules_on_meta

_WARMUP_COUNT: Final = 2
"""Iterations before the recorded one: the first creates the optimizer's state."""
_MOST_WALKS: Final = 6
_FEWEST_WALKS: Final = 3
_BUSY_SHARE: Final = 0.75
_WALKING_S: Final = 5.0
"""So long, and three times at least, iterations are walked through where the script does much between ops."""
_AS_FUNCTION: Final = "record one iteration as a function (docs/reference/recording.md)"
_OF_VALUES: Final = (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError, AssertionError)
"""What code raises that meets values it did not expect; not what misses a module, a file or a variable."""


class ScriptShapes:
    """Own what makes a script run on shapes alone while it is entered; the trace is there when one iteration is.

    Modules and what is sent to CUDA live on the meta device. `when_complete` is called from inside the script.
    """

    def __init__(
        self,
        workload: Workload,
        when_complete: Callable[[], None],
        ends: str | None = None,
        place: RankPlace | None = None,
    ) -> None:
        check_workload(workload)
        check_ends(ends, workload.mode)
        self.trace: Trace | None = None
        self.error: Exception | None = None
        self.iteration_count = 0
        self.fake = FakeCuda()
        self._workload = workload
        self._when_complete = when_complete
        self._watch = IterationWatch(self._end_iteration, self._fail, workload.mode, ends)
        self._optimizers = OptimizerSteps()
        self._clock = ScriptClock(self._optimizers)
        self._modules = ClockedModulePaths(self._clock)
        self._values = HostValues()
        self._gate = _Gate(self._values, self._clock)
        self._place = place or RankPlace()
        self._autocast: MetaAutocast | None = None
        self._walks: list[ScriptWalk] = []
        self._walk_count = 0
        self._began: tuple[float, float] | None = None
        self._is_complete = False
        self._loaded = LoadedBatches()
        self._assumptions: list[str] = []
        self._processor_share = 1.0
        self._lifetime = ExitStack()

    def __enter__(self) -> Self:
        values = self._values
        self._clock.calibrate_usual()
        with ExitStack() as entered:
            entered.enter_context(only_recording())
            entered.enter_context(cuda_stand_in(self.fake, self._place.node_size))
            entered.enter_context(fake_ranks(self._place, self.fake.move))
            entered.enter_context(modules_on_meta(self.fake, self._optimizers))
            sizes = entered.enter_context(dynamic_sizes())
            self._autocast, _ = entered.enter_context(cuda_behaviour())
            moves = CudaToMeta(self.fake, values, self._optimizers)
            entered.enter_context(asked_in_backward(moves))  # before the watch, which leaves backward early
            for hooks in (self._optimizers, self._watch, self._modules):
                entered.enter_context(hooks)
            entered.enter_context(self._loaded.watched())
            entered.enter_context(self._clock.running())
            for functions in (HostReads(values), moves, ClockedFunctions(self._clock)):
                entered.enter_context(functions)
            # Of these the last one sees an op first.
            for mode in (AssumedReads(self.fake, values, sizes), values, self._gate, Promotion(self.fake, self._clock)):
                entered.enter_context(mode)
            self._clock.calibrate()
            self._lifetime = entered.pop_all()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._lifetime.close()

    def summarise(self) -> str:
        """Return what was recorded, on one line."""
        if self.trace is None:
            return "nothing"
        said = [f"one {self.trace.meta.workload.mode} iteration, from shapes alone", f"{len(self.trace.ops.name)} ops"]
        said += [*self._assumptions, *filter(None, (self._explain_load(), self._watch.explain_backwards()))]
        return "; ".join(said)

    def _list_assumptions(self) -> list[str]:
        """Say what was decided until now by values that shapes do not have."""
        fake, said = self.fake, []
        if fake.claimed.type == "cpu":
            said.append("the script keeps its model on the CPU, and is recorded as if it lay on a GPU")
        if fake.read_count:
            read = f"the script read {fake.read_count} values from the GPU until then"
            said.append(f"{read}, which were taken as 1, or as False")
        if fake.kept_counts:
            ops = ", ".join(f"{name.rpartition('::')[2]} {count}" for name, count in fake.kept_counts.most_common())
            kept = fake.kept_counts.total()
            said.append(f"{kept} selections by unknown values were taken to keep everything ({ops})")
        return said

    def _explain_load(self) -> str | None:
        """Say where the script's own time is not known, or something else took the processor while it was measured."""
        if not self._walks:
            return "its own time between ops is not known: no other iteration ran the same ops, or they are compiled"
        if self._processor_share >= _BUSY_SHARE:
            return None
        share, count = f"{self._processor_share:.0%}".replace("%", " %"), len(self._walks)
        return f"this process had {share} of a processor meanwhile: of its time between ops the least of {count} counts"

    def explain_nothing(self, raised: BaseException | None) -> WavecastError:
        """Return why there is no trace, given what the script raised."""
        refused = find_refusal(raised)
        if refused is not None:
            return refused
        if self.error is not None:
            return self.error if isinstance(self.error, WavecastError) else CaptureError(str(self.error))
        return CaptureError(f"nothing was recorded: {self._explain_end(raised)}")

    def _explain_end(self, raised: BaseException | None) -> str:
        count = self.iteration_count
        if isinstance(raised, KeyboardInterrupt):
            reads = self.fake.assumed_count
            text = f"interrupted after {count} iterations and {reads} reads of values that shapes do not have"
            training = self._watch.explain_backwards()
            if training is not None:
                return f"{text}; {training}"
            hint = f"; where a loop ends only when such a value says so, {_AS_FUNCTION}"
            return f"{text}{hint if reads else ''}"
        early = describe_end(raised, count)
        if early is not None:
            hint = f"; where it asks for what shapes cannot answer, {_AS_FUNCTION}"
            names_meta = re.search(r"\bmeta\b", str(raised)) is not None
            may_lack_values = isinstance(raised, _OF_VALUES) and (self.fake.assumed_count > 0 or names_meta)
            return f"{early}{hint if may_lack_values else ''}"
        if count:
            return (
                f"the script ended after {count} iteration{'s' * (count != 1)}, before the one to be recorded, number "
                f"{_WARMUP_COUNT} counted from 0, had ended; let it run longer"
            )
        nothing = "no torch optimizer stepped and no torch.nn.Module ran on the main thread; of code without them"
        return self._watch.explain_training() or f"{nothing} {_AS_FUNCTION}"

    def _end_iteration(self, count: int) -> None:
        with self._clock.stopped():
            self._advance(count)
        if self._is_complete:
            self._when_complete()

    def _advance(self, count: int) -> None:
        """Do what is due after iteration `count - 1`: those around the recorded one tell what the script takes."""
        if self._is_complete or (self._watch.mode is None and _has_optimizer()):
            return  # forward passes before training starts
        recorder, self._gate.recorder = self._gate.recorder, None
        loaded = self._loaded.take()
        if recorder is not None and self.trace is None and count > _WARMUP_COUNT:
            self._workload, said = with_samples(self._workload, loaded)
            self._assumptions = [said] if said else []
        if count != self.iteration_count + 1 and self.trace is None:
            recorder, self._walks = None, []
        self.iteration_count = count
        if recorder is not None:
            self._note_walk(recorder, is_recorded=count > _WARMUP_COUNT and self.trace is None)
        if self.trace is not None and self._has_walked_enough():
            self._is_complete = True
            self._watch.stop()
        elif count >= _WARMUP_COUNT - 1:
            self._clock.is_probing = count < _WARMUP_COUNT
            if count >= _WARMUP_COUNT:
                self._watch.settle()
            self._began = self._began or (time.perf_counter(), time.thread_time())
            self._gate.recorder = ShapeRecorder(self._modules, self._optimizers, self._clock)

    def _note_walk(self, recorder: ShapeRecorder, *, is_recorded: bool) -> None:
        """Keep what the script took before each op, of walks through the ops of the recorded iteration."""
        walk = self._clock.settle()
        self._walk_count += 1
        if self._began is not None:
            wall_s, own_s = time.perf_counter() - self._began[0], time.thread_time() - self._began[1]
            self._processor_share = own_s / wall_s if wall_s > 0 else 1.0
        if is_recorded:
            self.trace = self._describe(read_recorder(recorder, self._autocast.dtype if self._autocast else None))
            self._walks = [item for item in self._walks if len(item.leads) == len(self.trace.ops.name)]
            self._assumptions += self._list_assumptions()
        else:
            recorder.log.tensor_numbers.release()
        if self.trace is None or len(walk.leads) == len(self.trace.ops.name):
            self._walks.append(walk)
        if self.trace is not None and self._walks:
            self.trace = _with_leads(self.trace, self._walks)

    def _has_walked_enough(self) -> bool:
        """Say whether more walks would tell nothing: no gap is long, or they were seen often enough."""
        walked_s = time.thread_time() - self._began[1] if self._began else 0.0
        is_late = max(len(self._walks), self._walk_count - 1) >= _FEWEST_WALKS and walked_s > _WALKING_S
        return not self._walks or not merge_walks(self._walks).has_long or self._walk_count >= _MOST_WALKS or is_late

    def _describe(self, trace: Trace) -> Trace:
        if not len(trace.ops.name):
            raise CaptureError("nothing was recorded: the iteration ran no op of a model or of tensors sent to a GPU")
        quality = replace(trace.quality, values_assumed=self.fake.assumed_count)
        is_joined = torch.distributed.is_available() and torch.distributed.is_initialized()
        meta = replace(trace.meta, rank=self._place.rank, world_size=self._place.size) if is_joined else trace.meta
        trace = replace(trace, quality=quality, meta=meta)
        return describe_trace(trace, "meta", replace(self._workload, mode=self._watch.mode or mode_of(trace)))

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._watch.stop()
        self._gate.recorder = None
        self._when_complete()  # there will be no trace: nothing that the script could do would help


def _with_leads(trace: Trace, walks: Sequence[ScriptWalk]) -> Trace:
    """Return a trace with what several walks tell of the script's own time; by its side, of the machine's."""
    told = merge_walks(walks)
    ops = replace(trace.ops, lead_ns=told.lead_ns, loading_ns=told.loading_ns)
    host = HostTimes(python_ns=told.round_ns if told.has_long else None)
    meta = replace(trace.meta, script_walks=len(walks), script_spread=round(told.spread, 4), host=host)
    return replace(trace, ops=ops, meta=meta)


def find_refusal(raised: BaseException | None) -> WavecastError | None:
    """Return our own error that a script's is, or came of, and what stands for DeepSpeed's."""
    error, is_cause = raised, True
    while error is not None and not isinstance(error, WavecastError):
        if is_cause and is_deepspeeds(error):
            return refusal("DeepSpeed")
        is_cause = is_cause and error.__cause__ is not None
        error = error.__cause__ or error.__context__
    return error


class _Gate(TorchDispatchMode):
    """Pass ops on to a recorder while there is one, and run them whole otherwise."""

    def __init__(self, values: HostValues, clock: ScriptClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder: ShapeRecorder | None = None
        self._clock = clock
        self._exchange = FakeExchange(values, self._note_wait)
        self._unrecorded = MetaOps()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mode = self.recorder or self._unrecorded
        if is_collective(func):
            return self._communicate(func, args, kwargs or {})
        with torch._C.DisableTorchFunction():  # where tensors really are, not where the script believes them
            start_ns = self._clock.now_ns()
            result = mode.__torch_dispatch__(func, types, args, kwargs)
            taken_ns = self._clock.now_ns() - start_ns
            self._clock.note_op(taken_ns, is_of_gpu=is_of_gpu(tensors_in((*args, result))))
        return result

    def _communicate(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with torch._C.DisableTorchFunction():
            answer = self._exchange.run(func, args, kwargs)
            if self.recorder is not None:
                self.recorder.note_collective(func, args, kwargs, answer)
        return answer.result

    def _note_wait(self, tensors: Sequence[torch.Tensor]) -> None:
        if self.recorder is not None:
            with torch._C.DisableTorchFunction():
                self.recorder.note_wait(tensors)


def _has_optimizer() -> bool:
    """Say whether the script has made an optimizer, which will step."""
    return any(issubclass(type(item), torch.optim.Optimizer) for item in gc.get_objects())
