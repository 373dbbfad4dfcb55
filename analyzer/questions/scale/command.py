"""The `scale` command: a recording of one GPU in, plans on many GPUs out, ranked."""

from pathlib import Path
from typing import Any

from ...asking.command import report_command
from ...asking.inputs import trace_argument
from .api import PlansReport, ScaleOptions


@report_command("scale", ScaleOptions, formats=PlansReport.formats)
@trace_argument
def scale(trace: Path, **asked: Any) -> PlansReport:
    """Predict the iteration recorded in TRACE on many GPUs, under the best parallel plans or given ones.

    TRACE is a recording of one GPU, measured or of shapes. What each rank runs under a plan is derived
    from it. Plans are ranked by samples per second; time, cost, memory and what limits each are told.
    A file that ends in .svg gets the scaling curve.

    \b
    Examples:
      scale trace.json.gz --to h100 --gpus 64
      scale trace.json.gz --to h100,b200 --gpus 8,64,512 -o curve.svg
      scale trace.json.gz --to h100 --gpus 64 --plan fsdp=64 --plan fsdp=*,tp=2
      scale trace.json.gz --to h100 --plan plan.toml --timeline timeline.json.gz
      scale trace.json.gz --to h100 --gpus 64 --sort energy --electricity 0.12

    \b
    A plan has words with numbers (ranks = dp x fsdp x tp x cp x pp):
      dp=N       replicas              zero=1|2  shard optimizer, gradients
      fsdp=N     sharded parameters    tp=N      tensor parallel
      sp=off     whole sequences between the tensor parallel parts
      cp=N       context parallel      ep=N      experts, among dp x fsdp x cp
                                                 (x tp with sp)
      pp=N       pipeline stages       vp=N      pieces per stage (interleaved)
      mb=N       samples of a micro batch        ga=N  micro batches
      schedule=1f1b|interleaved|gpipe            recompute=none|selective
                                                 |ops|full
      overlap=off  gradients after the backward  overlap_tensor=on
      buckets=torch|megatron    how gradients are put together
      overlap_context=on      prefetch=N layers (fsdp)
      dispatch=alltoall|deepep|hybridep          tokens to experts
      overlap_experts=on        beside another micro batch
      framework=megatron|torch  as --framework, of this plan alone
    """
    from .api import scale as predict

    return predict(trace, **asked)
