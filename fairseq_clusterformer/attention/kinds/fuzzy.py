"""Options of the kinds that assign by a similarity over a temperature."""

from dataclasses import dataclass

from ...clustering.fuzzy import SIMILARITIES
from ..options import ClusterOptions, option


@dataclass(frozen=True)
class FuzzyOptions(ClusterOptions):
    """Options of kinds that assign by a similarity over a temperature (CF22 eq. 2)."""

    similarity: str = option(
        "cosine",
        "similarity of tokens and centroids",
        flag="cluster_similarity",
        choices=SIMILARITIES,
    )
    temperature: float | None = option(
        None,
        "number that divides the similarity before the softmax (default: 0.2 for gated heads, 0.1 "
        "for the others)",
        flag="cluster_temperature",
        above=0,
    )

    def temperature_or(self, suits: float) -> float:
        """The temperature, or what suits the kind."""
        return suits if self.temperature is None else self.temperature
