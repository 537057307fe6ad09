"""Robust contrastive learning: push wrong targets away; pull the given one only as far as the model believes it.

How it decides what is noise: it does not; its gradient on a row is bounded, so a pair that the model does not believe
has little pull.
"""

from __future__ import annotations

from cirkit.losses import robust_contrastive
from cirkit.methods.base import BatchMethod


class RCL(BatchMethod):
    """The robust contrastive loss alone, as in TME and ConeSep, on max-over-token similarity.

    Of the learning rates 5e-4, 1e-3, 1.5e-3, 2e-3 and 3e-3, validation R@1 of seed 100, summed over the clean set and
    shuffle 0.5, was best at 1e-3. At 3e-3, which suits InfoNCE, the loss falls apart under noise (R@1 8 against 36).
    At shuffle 0.8 no rate helps (5 at 1e-3, 8 at 5e-4, 4 at 2.5e-4): the loss is nearly flat where all similarities of
    a row are equal, about 1, and with few right pairs training stays there.
    """

    lr = 1e-3

    objective = staticmethod(robust_contrastive)
