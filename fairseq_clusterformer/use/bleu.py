"""BLEU of translations: the rows of the table of ``clusterformer evaluate translation``."""

import re

from sacrebleu.metrics import BLEU

from fairseq_clusterformer.data.text import TextPipeline


def bleu(hypotheses: list[str], references: list[str], **options: object) -> dict[str, object]:
    """What sacrebleu finds: score, precisions, brevity and signature."""
    metric = BLEU(force=True, **options)  # force: without a warning that text looks tokenised
    result = metric.corpus_score(hypotheses, [references])
    return {
        "bleu": result.score,
        "precisions": result.precisions,
        "brevity_penalty": result.bp,
        "length_ratio": result.ratio,
        "hypothesis_length": result.sys_len,
        "reference_length": result.ref_len,
        "signature": str(metric.get_signature()),
    }


def score(
    hypotheses: list[str],
    references: list[str],
    pipeline: TextPipeline,
    target: str | None = None,
    raw: list[str] | None = None,
    compound_split: bool = False,
) -> dict[str, dict]:
    """The table's rows, of subwords that are joined by blanks.

    Args:
        pipeline: what the data was made by.
        target: the language, to detokenise; None: no sacreBLEU.
        raw: references as they were written; None: detokenised `references`.
        compound_split: also with words split at hyphens, by tensor2tensor's get_ende_bleu.sh.
    """
    words = [[pipeline.words(line) for line in lines] for lines in (hypotheses, references)]
    tokens = {"tokenize": "none", "smooth_method": "none", "lowercase": pipeline.lowercase}
    rows = {"tokenised": bleu(*words, **tokens)}
    if compound_split:
        parts = r"\1 ##AT##-##AT## \2"
        split = [[re.sub(r"(\S)-(\S)", parts, line) for line in lines] for lines in words]
        rows["compound-split"] = bleu(*split, **tokens)
    if target is not None:
        text = [pipeline.decode(line, target) for line in hypotheses]
        if raw is None:
            raw = [pipeline.decode(line, target) for line in references]
        case = {"lowercase": pipeline.lowercase, "trg_lang": target}
        rows["sacreBLEU"] = bleu(text, raw, **case)
    return rows


def table(rows: dict[str, dict]) -> str:
    """The rows for people."""
    lines = [f"{'':16}{'BLEU':>7}{'1/2/3/4-grams':>22}{'brevity':>9}{'length':>8}"]
    for name, row in rows.items():
        grams = "/".join(f"{value:.1f}" for value in row["precisions"])
        lines.append(
            f"{name:16}{row['bleu']:7.2f}{grams:>22}"
            f"{row['brevity_penalty']:9.3f}{row['length_ratio']:8.3f}"
        )
    return "\n".join(lines + [f"{name:16}{row['signature']}" for name, row in rows.items()])
