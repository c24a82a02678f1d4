"""Scores of a model's answers, as the field's own tools compute them; no fairseq."""

from .ranking import RankingScores, ranking_scores

__all__ = ["RankingScores", "ranking_scores"]
