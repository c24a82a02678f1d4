"""Scores of answers and rankings, as the data sets' and the field's own tools compute them; no
fairseq."""

from .glue import f1_score, matthews_correlation, pearson_correlation, spearman_correlation
from .ranking import RankingScores, ranking_scores

__all__ = [
    "RankingScores",
    "f1_score",
    "matthews_correlation",
    "pearson_correlation",
    "ranking_scores",
    "spearman_correlation",
]
