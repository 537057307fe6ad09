"""cirkit: a study of noise-robust composed image retrieval that can be read, run and extended."""

__version__ = "0.1.0"
