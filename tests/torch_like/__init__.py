"""Random models that look like exports of real networks: families of blocks, mixed at random, seeded."""

from tests.torch_like.model import FAMILIES, families_of, torch_like_model

__all__ = ["FAMILIES", "families_of", "torch_like_model"]
