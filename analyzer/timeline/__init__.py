"""The timeline: measured and predicted slices on one time scale, for viewers and for the figure."""
