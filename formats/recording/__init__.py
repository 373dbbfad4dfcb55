"""From rows of spans, calls and kernels, whoever recorded them, to a trace: what importers of profilers share."""
