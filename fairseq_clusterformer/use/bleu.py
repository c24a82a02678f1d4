"""BLEU of translations: the rows of the table of ``clusterformer evaluate translation``."""

import json
import re

from sacrebleu.metrics import BLEU

from fairseq_clusterformer.data.text import TextPipeline

BOOTSTRAPS = 1000


def split_compounds(tokens: str) -> str:
    """Words split at hyphens, by the rule of tensor2tensor's get_ende_bleu.sh."""
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokens)


def bleu(
    hypotheses: list[str], references: list[str], bootstrap: bool, **options: object
) -> dict[str, object]:
    """What sacrebleu finds: score, precisions, brevity, signature and, if asked, confidence."""
    metric = BLEU(force=True, **options)  # force: without a warning that text looks tokenised
    result = metric.corpus_score(hypotheses, [references], n_bootstrap=BOOTSTRAPS * bootstrap or 1)
    signature = str(metric.get_signature())
    found = json.loads(result.format(width=4, signature=signature, is_json=True))
    spread = [found["confidence_mean"], found["confidence_var"]] if "confidence" in found else None
    return {
        "bleu": result.score,
        "precisions": result.precisions,
        "brevity_penalty": result.bp,
        "length_ratio": result.ratio,
        "hypothesis_length": result.sys_len,
        "reference_length": result.ref_len,
        "confidence": spread,
        "signature": signature,
    }


def score(
    hypotheses: list[str],
    references: list[str],
    pipeline: TextPipeline,
    target: str | None = None,
    raw: list[str] | None = None,
    compound_split: bool = False,
    bootstrap: bool = False,
) -> dict[str, dict]:
    """The table's rows.

    Args:
        hypotheses: subwords, joined by blanks.
        references: subwords too.
        pipeline: what the data was made by.
        target: the language, to detokenise; None: no sacreBLEU.
        raw: references as they were written; None: detokenised `references`.
    """
    words = [[pipeline.words(line) for line in lines] for lines in (hypotheses, references)]
    tokens = {"tokenize": "none", "smooth_method": "none", "lowercase": pipeline.lowercase}
    rows = {"tokenised": bleu(*words, bootstrap, **tokens)}
    if compound_split:
        parts = [[split_compounds(line) for line in lines] for lines in words]
        rows["compound-split"] = bleu(*parts, bootstrap, **tokens)
    if target is not None:
        text = [pipeline.decode(line, target) for line in hypotheses]
        if raw is None:
            raw = [pipeline.decode(line, target) for line in references]
        case = {"lowercase": pipeline.lowercase, "trg_lang": target}
        rows["sacreBLEU"] = bleu(text, raw, bootstrap, **case)
    return rows


def table(rows: dict[str, dict]) -> str:
    """The rows for people."""
    lines = [f"{'':16}{'BLEU':>7}{'':14}{'1/2/3/4-grams':>22}{'brevity':>9}{'length':>8}"]
    for name, row in rows.items():
        confidence = row["confidence"]
        spread = f" ({confidence[0]:.2f} ± {confidence[1]:.2f})" if confidence else ""
        grams = "/".join(f"{value:.1f}" for value in row["precisions"])
        lines.append(
            f"{name:16}{row['bleu']:7.2f}{spread:14}{grams:>22}"
            f"{row['brevity_penalty']:9.3f}{row['length_ratio']:8.3f}"
        )
    return "\n".join(lines + [f"{name:16}{row['signature']}" for name, row in rows.items()])
