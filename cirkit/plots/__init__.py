"""Every figure of the study. Functions take arrays or a DataFrame and return a matplotlib Figure."""

from cirkit.plots.counts import combination_map, count_matrix, stacked_counts, text_statistics
from cirkit.plots.pictures import image_strip, triplet_grid, triplet_pairs
from cirkit.plots.results import attribute_bars, probe_bars, recall_by_rate, training_history
from cirkit.plots.similarities import (
    attention_maps,
    cone_histograms,
    lines_by_epoch,
    score_histograms,
    similarity_matrix,
    similarity_pair,
    suppression_bars,
    token_scores,
)
from cirkit.plots.style import CLEAN, COLOURS, NOISY, save, set_style

__all__ = [
    "CLEAN",
    "COLOURS",
    "NOISY",
    "attention_maps",
    "attribute_bars",
    "combination_map",
    "cone_histograms",
    "count_matrix",
    "image_strip",
    "lines_by_epoch",
    "probe_bars",
    "recall_by_rate",
    "save",
    "score_histograms",
    "set_style",
    "similarity_matrix",
    "similarity_pair",
    "stacked_counts",
    "suppression_bars",
    "text_statistics",
    "token_scores",
    "training_history",
    "triplet_grid",
    "triplet_pairs",
]
