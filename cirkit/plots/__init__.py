"""Every figure of the study. Functions take arrays or a DataFrame and return a matplotlib Figure."""

from cirkit.plots.ablations import difference_rows, value_curves
from cirkit.plots.anchors import band_histograms, collapse_histories, lines_by_step, loss_ratios
from cirkit.plots.boundaries import (
    boundaries_by_batch,
    boundary_intervals,
    fidelity_curves,
    roc_panels,
    variance_shares,
    where_noise_lies,
)
from cirkit.plots.counts import combination_map, count_matrix, stacked_counts, text_statistics
from cirkit.plots.interactive import boundary_panel, flag_panels, plan_panel
from cirkit.plots.pictures import image_strip, triplet_grid, triplet_pairs
from cirkit.plots.published import cost_panels, detection_curves, difference_map, rank_panels, recall_beside
from cirkit.plots.rankings import drop_curves, drop_histograms, interval_bars, line_panels
from cirkit.plots.results import (
    attribute_bars,
    probe_bars,
    recall_by_epochs,
    recall_by_rate,
    recall_panels,
    training_history,
)
from cirkit.plots.satisfaction import interval_panels, order_slopes, shares_in_top
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
from cirkit.plots.transports import forgetting_curves, label_strips, mass_on_anchors, transport_maps
from cirkit.plots.zones import (
    LEVELS,
    accuracy_maps,
    history_panels,
    intent_bars,
    pass_maps,
    share_bars,
    shares_by_delta,
    zone_curves,
    zone_panels,
)

__all__ = [
    "CLEAN",
    "COLOURS",
    "LEVELS",
    "NOISY",
    "accuracy_maps",
    "attention_maps",
    "attribute_bars",
    "band_histograms",
    "boundaries_by_batch",
    "boundary_intervals",
    "boundary_panel",
    "collapse_histories",
    "combination_map",
    "cone_histograms",
    "cost_panels",
    "count_matrix",
    "detection_curves",
    "difference_map",
    "difference_rows",
    "drop_curves",
    "drop_histograms",
    "fidelity_curves",
    "flag_panels",
    "forgetting_curves",
    "history_panels",
    "image_strip",
    "intent_bars",
    "interval_bars",
    "interval_panels",
    "label_strips",
    "line_panels",
    "lines_by_epoch",
    "lines_by_step",
    "loss_ratios",
    "mass_on_anchors",
    "order_slopes",
    "pass_maps",
    "plan_panel",
    "probe_bars",
    "rank_panels",
    "recall_beside",
    "recall_by_epochs",
    "recall_by_rate",
    "recall_panels",
    "roc_panels",
    "save",
    "score_histograms",
    "set_style",
    "share_bars",
    "shares_by_delta",
    "shares_in_top",
    "similarity_matrix",
    "similarity_pair",
    "stacked_counts",
    "suppression_bars",
    "text_statistics",
    "token_scores",
    "training_history",
    "transport_maps",
    "triplet_grid",
    "triplet_pairs",
    "value_curves",
    "variance_shares",
    "where_noise_lies",
    "zone_curves",
    "zone_panels",
]
