"""Analysis: work, bounds, wave scaling, prediction choice, reports. Needs neither torch nor a GPU."""
