"""The GPU catalogue: datasheet values with their sources, occupancy, prices, nodes."""
