"""BLEU of fairseq-generate's output: the rows of ``score_translation.sh``'s table."""

import json
import re

from sacrebleu.metrics import BLEU

from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.text import TextPipeline

BOOTSTRAPS = 1000


def read_generated(text: str, name: str) -> tuple[list[str], list[str]]:
    """Best hypotheses and references of fairseq-generate's output, in order of sentence id.

    Args:
        text: with lines ``H-3<tab>score<tab>tokens`` and ``T-3<tab>tokens``; others are ignored.
        name: of the file, for messages.

    Raises:
        UserError: if nothing or not everything is there.
    """
    found: dict[str, dict[int, str]] = {"H": {}, "T": {}}
    for line in text.split("\n"):
        if match := re.match(r"(?:H-(\d+)\t[^\t]*|T-(\d+))\t(.*)", line):
            kind, number = ("H", match[1]) if match[1] else ("T", match[2])
            found[kind].setdefault(int(number), match[3])  # the first of an n-best list
    count = max(found["H"].keys() | found["T"].keys(), default=-1) + 1
    if told := re.search(r"Translated ([\d,]+) sentences", text):
        count = max(count, int(told[1].replace(",", "")))
    if not count:
        raise UserError(
            f"--generated is {name}: no line begins with H-; allowed: what fairseq-generate prints"
        )
    for kind, what in (("H", "hypotheses"), ("T", "references")):
        if missing := sorted(set(range(count)) - found[kind].keys()):
            some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
            raise UserError(
                f"--generated is {name}: {len(missing)} of {count} {what} are missing ({kind}-: "
                f"{some}); allowed: the whole output of fairseq-generate on data with references"
            )
    return tuple([lines[i] for i in range(count)] for lines in found.values())


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
    told = json.loads(result.format(width=4, signature=signature, is_json=True))
    return {
        "bleu": result.score,
        "precisions": result.precisions,
        "brevity_penalty": result.bp,
        "length_ratio": result.ratio,
        "hypothesis_length": result.sys_len,
        "reference_length": result.ref_len,
        "confidence": [told["confidence_mean"], told["confidence_var"]]
        if "confidence" in told
        else None,
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
