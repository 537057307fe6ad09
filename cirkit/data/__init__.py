"""Data: readers of the layouts found in the wild, images, and the data report."""

from cirkit.data.annotations import DataError
from cirkit.data.captions import CAPTION_FORMS, CAPTION_MODES, join_captions
from cirkit.data.circo import load_circo
from cirkit.data.cirr import load_cirr
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.hp_fashioniq import load_hp_fashioniq
from cirkit.data.triplets import Triplet, TripletSet

__all__ = [
    "CAPTION_FORMS",
    "CAPTION_MODES",
    "DataError",
    "Triplet",
    "TripletSet",
    "join_captions",
    "load_circo",
    "load_cirr",
    "load_fashioniq",
    "load_hp_fashioniq",
]
