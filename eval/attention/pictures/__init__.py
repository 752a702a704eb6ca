"""What do the heads look like? Heatmaps, score curves and the time-lapse, drawn with matplotlib."""
