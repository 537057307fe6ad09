"""Data: readers of the layouts found in the wild, images, and the data report."""

from cirkit.data.annotations import DataError
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.triplets import CAPTION_FORMS, CAPTION_MODES, Triplet, TripletSet, join_captions

__all__ = [
    "CAPTION_FORMS",
    "CAPTION_MODES",
    "DataError",
    "Triplet",
    "TripletSet",
    "join_captions",
    "load_fashioniq",
]
