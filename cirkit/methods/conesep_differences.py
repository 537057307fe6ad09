"""Where the paper of ConeSep, its released code and this package differ: one row a difference, with switch and test."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from cirkit.methods.conesep_config import VARIANTS, ConeSepConfig


class Difference(NamedTuple):
    """``switches`` are options of the method, or what is done here in every variant; ``tests`` are file::test."""

    number: int
    paper: str
    released: str
    switches: tuple[str, ...] | str
    tests: tuple[str, ...]


DIFFERENCES = (
    Difference(
        1,
        "fidelity grows with cleanness",
        "x²(1−x²) of the scaled margin x: 0 at and below the boundary and 0 again for the batch's best triplet, which"
        " is therefore flagged unless the zeros below the boundary fill the noisy set",
        ("fidelity",),
        ("boundary::test_the_released_fidelity_flags_the_best_row",),
    ),
    Difference(
        2,
        "(ReLU(s−B))²(ReLU(s−B)−1), larger = cleaner",
        "as in 1; the printed formula is never above 0 and largest at and below the boundary, so it cannot mean that"
        " either",
        ("fidelity",),
        ("boundary::test_the_printed_formula_is_never_above_0_and_largest_for_the_worst_rows",),
    ),
    Difference(
        3,
        "negative cost 1 − s(composed, anchor)",
        "anchors against targets, row = target: the composed query never meets an anchor",
        ("negative_block",),
        ("unlearning::test_after_the_warm_up_all_is_as_released",),
    ),
    Difference(
        4,
        "one similarity scale in the cost",
        "a softmax over the batch in the left block, raw cosines in the right; costs divided by the largest",
        ("positive_block", "scale_cost"),
        ("unlearning::test_after_the_warm_up_all_is_as_released",),
    ),
    Difference(
        5,
        "clean rows may not go to their own anchor",
        "they may; the last column alone is closed for clean rows and open for all noisy ones",
        ("mask",),
        ("unlearning::test_masks_and_hard_labels_by_hand",),
    ),
    Difference(
        6,
        "the label of a noisy row is its own anchor",
        "it is the last column for every noisy row",
        ("mask",),
        ("unlearning::test_masks_and_hard_labels_by_hand",),
    ),
    Difference(
        7,
        "the soft label is the target of the KL",
        "the label goes through a softmax once more, and predictions are not divided by a temperature: both are nearly"
        " uniform",
        ("resoftmax", "label_temperature"),
        ("unlearning::test_after_the_warm_up_all_is_as_released",),
    ),
    Difference(
        8,
        "unlearning is the main correction",
        "its gradient is some thousandths of that of the ranking loss",
        "gradient norm of each term in the history",
        ("conesep::test_gradient_norms_per_term_are_those_of_a_direct_computation",),
    ),
    Difference(
        9,
        "s(composed, anchor) within [α1, α2], batch means of wrong and right pairs",
        "constants −0.007 and −0.002 as a band for every product of single coordinates of every pair",
        ("query_oriented",),
        ("anchors::test_query_oriented_loss_of_the_released_code",),
    ),
    Difference(
        10,
        "boundary of K = 4 Gaussian draws per side",
        "one draw as large as the batch, all pairs, at every step, dropout on",
        ("draws", "pairs", "boundary_every", "pool"),
        ("boundary::test_boundary_of_the_released_code",),
    ),
    Difference(
        11,
        "anchors come from learned negative prompts",
        "and from a text with one of 25 negations in front; prompts start as the pretrained query tokens",
        ("negate_text", "prompt_init"),
        ("conesep::test_both_phases_are_the_released_forward",),
    ),
    Difference(
        12,
        "ω is a threshold of fidelity",
        "it is a share of the batch: without any noise half of it still counts as noisy",
        ("split",),
        ("boundary::test_three_ways_to_split",),
    ),
    Difference(
        13,
        "–",
        "no noisy row: the transposed plan has a row without mass, and the loss is NaN",
        ("guards",),
        ("unlearning::test_no_noisy_row_is_nan_in_the_released_code",),
    ),
    Difference(
        14,
        "–",
        "nothing above the boundary: fidelity 0/0 = NaN",
        ("guards",),
        ("boundary::test_nothing_above_the_boundary_is_nan_in_the_released_code_and_0_with_guard",),
    ),
    Difference(
        15,
        "anchors are driven off their own target, towards the others",
        "the sigmoid is taken of softmax probabilities, so the term hardly moves, and it grows with the batch",
        ("target_oriented",),
        ("anchors::test_target_oriented_loss_of_the_released_code",),
    ),
    Difference(
        16,
        "–",
        "the clean mask of the robust loss is never used, and raises a shape error unless all rows are clean",
        ("rank_rows",),
        ("losses::test_robust_loss_of_tme_on_some_rows_with_its_gradients",),
    ),
    Difference(
        17,
        "–",
        "both halves of its symmetric robust loss are the same number",
        "one direction, query to target",
        ("losses::test_robust_loss_of_conesep",),
    ),
    Difference(
        18,
        "–",
        "four settings have no type: given on the command line they are strings and fail at first use",
        "typed options, refused before any work",
        ("methods::test_options_of_the_wrong_type_or_range_are_one_sentence",),
    ),
    Difference(
        19,
        "seed 42",
        "the seed is never used, neither for the noise nor for training",
        "seed and noise seed, both part of a run's name",
        ("runs::test_rows_carry_what_they_were_made_with",),
    ),
    Difference(
        20,
        "–",
        "dropout stays on while CIRR's validation chooses the model",
        "evaluation always in eval mode; the last epoch is reported",
        ("retrieval::test_the_model_is_in_eval_mode_while_it_encodes",),
    ),
    Difference(
        21,
        "–",
        "CIRR's test submission feeds uncleaned captions, training cleaned ones",
        "one path for all texts",
        ("protocols::test_cirr_from_files_to_a_table_and_a_submission",),
    ),
    Difference(
        22,
        "the best model is saved",
        "the best model is a second name for the last one",
        "the last epoch is reported and saved, and says so",
        ("runs::test_a_run_leaves_a_complete_record",),
    ),
    Difference(
        23,
        "–",
        "whole model objects are pickled every epoch",
        "state dicts without the frozen tower, loaded as weights only",
        ("training::test_checkpoint_loads_weights_only_and_without_the_tower",),
    ),
    Difference(
        24,
        "–",
        "position 32 of the text output is written into the code",
        "derived from the number of queries",
        ("backbone::test_prompts_of_another_length_move_the_text_position",),
    ),
    Difference(
        25,
        "–",
        "squeeze() without axes: a batch of one or a single target token gives wrong shapes",
        "named axes",
        ("methods::test_loss_is_a_finite_scalar_with_finite_gradients",),
    ),
    Difference(
        26,
        "–",
        "preprocessed validation images are cached once, whatever the transform is later",
        "features are keyed by tower, preprocessing, code and image content",
        ("features::test_another_transform_gives_a_new_key",),
    ),
    Difference(
        27,
        "–",
        "triplets at or below the boundary tie at fidelity 0, and the order of top-k decides among them",
        "ties go by the margin",
        ("boundary::test_ties_of_fidelity_go_by_the_margin",),
    ),
)


def differences(*numbers: int) -> pd.DataFrame:
    """The differences with these numbers (all by default): what each side does, and the switches of each variant."""
    rows = []
    for d in DIFFERENCES:
        if numbers and d.number not in numbers:
            continue
        row = {"no": d.number, "the paper says": d.paper, "the released code does": d.released}
        if isinstance(d.switches, str):
            row |= {"switch": "–", "here": d.switches}
        else:
            own = {v: ConeSepConfig(start=v) for v in VARIANTS}
            values = {v: ", ".join(str(getattr(own[v], switch)) for switch in d.switches) for v in VARIANTS}
            row |= {"switch": ", ".join(d.switches), "here": "; ".join(f"{v}: {value}" for v, value in values.items())}
        rows.append(row)
    return pd.DataFrame(rows).set_index("no")
