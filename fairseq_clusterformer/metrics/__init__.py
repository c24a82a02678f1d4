"""Scores of answers and rankings, as the data sets' and the field's own tools compute them; no
fairseq."""

from .ranking import RankingScores, ranking_scores

__all__ = ["RankingScores", "ranking_scores"]
