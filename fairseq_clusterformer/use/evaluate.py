"""Answers of a reader to all questions of a prepared split, and their scores."""

import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from torch import Tensor
from tqdm import tqdm

from fairseq_clusterformer.corpora.question_answering.records import Drops, json_lines
from fairseq_clusterformer.criterions.clusterformer_qa import answer_parts
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.metrics import answers, natural_questions
from fairseq_clusterformer.metrics.natural_questions import Label, Span

from ..answers import AnswerLogits, Answers, ranked_answers, ranking_options
from ..checkpoints.load import Loaded, dataset_of
from .base import device_of

logger = logging.getLogger(__name__)

# Corpora with supporting facts; and what the scripts of some read too: triples of entities.
HOPS = {"hotpotqa": (), "2wiki": ("evidence",), "babi": ()}
_LEAST = -1e9  # JSON has no infinity
QUESTION_WORDS = re.compile(r"\b(who|whom|whose|what|which|when|where|why|how)\b", re.IGNORECASE)
#: the break-down's rows of lengths in words, by the first length of each
QUESTIONS = {0: "none", 1: "1 to 5", 6: "6 to 8", 9: "9 to 11", 12: "12 to 15", 16: "16 or more"}
ANSWERS = {0: "none", 1: "1", 2: "2", 3: "3 to 4", 5: "5 to 9", 10: "10 or more"}


@dataclass
class Predictions:
    """A reader's answers to a split, and the right ones, by each question's id in its order."""

    corpus: str  # the name that it was prepared by
    texts: dict[str, str] = field(default_factory=dict)  # short answers
    no_answer: dict[str, float] = field(default_factory=dict)  # the probability of none
    threshold: float = 0.5  # what it is above where a question counts as one without answer
    natural: list[dict[str, Any]] = field(default_factory=list)  # Natural Questions' entries
    gold: dict[str, list[str]] = field(default_factory=dict)  # accepted answers, where known
    #: titles and numbers of the sentences that support each answer; and the right ones, where they
    #: are known. Both are empty of a reader that does not say.
    facts: dict[str, list[tuple]] = field(default_factory=dict)
    gold_facts: dict[str, list[tuple]] = field(default_factory=dict)
    questions: dict[str, str] = field(default_factory=dict)  # their texts
    #: - log of the probability of the right answers in nats: of all accepted ones together, and of
    #: the one listed last alone; of questions whose answers are known and in reach, and whose
    #: documents are not read in windows
    nll: dict[str, tuple[float, float]] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)  # what was not read: `QuestionDataset.cuts`

    @property
    def some_unanswerable(self) -> bool:
        """Whether questions without an answer are scored, as in SQuAD 2.0."""
        return self.corpus == "squad2" or (self.corpus == "text" and not all(self.gold.values()))

    def files(self) -> dict[str, Any]:
        """Return the content of each file for the corpus's own script, by its name."""
        if self.corpus == "natural-questions":
            return {"predictions.json": {"predictions": self.natural}}
        if self.corpus in HOPS:
            empty = dict.fromkeys(HOPS[self.corpus], {})  # no reader predicts these
            return {"predictions.json": {"answer": self.texts, "sp": self.facts, **empty}}
        more = {"no_answer.json": self.no_answer} if self.some_unanswerable else {}
        return {"predictions.json": self.texts, **more}


def predict(
    loaded: Loaded,
    split: str,
    corpus: str,
    *,
    others: Sequence[Loaded] = (),
    batch_size: int = 8,
    cpu: bool = False,
) -> Predictions:
    """Answer all questions of a split, prepared by the name `corpus`; with `others`, by the mean
    of all probabilities. Raises UserError: no such split, or readers that do not go together."""
    for other in others:
        if _form(other) != _form(loaded):
            allowed = f"readers of one kind, dictionary and structure, such as {loaded.path}"
            raise bad_option("--checkpoint", other.path, allowed)
    task, is_natural = loaded.task, corpus == "natural-questions"
    device = device_of("cpu" if cpu else None)
    models = [one.model.to(device) for one in (loaded, *others)]
    dataset = dataset_of(loaded, split, "--split")
    data, whole = dataset.data, dataset.data.whole
    options = ranking_options(task.cfg) | {"within_long": is_natural}
    batches = task.get_batch_iterator(dataset, max_sentences=batch_size)
    answered, losses = {}, {}  # by the question's number
    with tqdm(total=len(whole), unit=" questions", disable=None) as progress, torch.no_grad():
        for batch in batches.next_epoch_itr(shuffle=False):
            batch = utils.apply_to_sample(lambda tensor: tensor.to(device), batch)
            logits = mean_logits([model(**batch["net_input"])[0] for model in models])
            numbers = batch["id"].tolist()
            found = ranked_answers(logits, [*map(data.document, numbers)], **options)
            answered |= data.questions(numbers, found)
            if data is whole:
                losses |= zip(numbers, _nll(logits, batch["target"]), strict=True)
            progress.update(len(answered) - progress.n)
    predictions = Predictions(corpus, cuts=dataset.cuts)
    for number, found in sorted(answered.items()):
        line = whole.texts(number)
        id_ = line["id"]
        predictions.questions[id_] = line["question"]
        predictions.no_answer[id_] = found.types["long"] + found.types["none"]
        predictions.texts[id_] = found.short[0].text  # the best span, even if none is likelier
        if is_natural:
            predictions.natural.append(natural_question(id_, found, line["paragraphs"]))
        example = whole[number]
        if example.answerable is not None:
            predictions.gold[id_] = line["texts"]
            if losses.get(number) is not None:
                predictions.nll[id_] = losses[number]
        if found.supporting is not None:
            places = [place for place, _ in found.supporting]
            predictions.facts[id_] = _facts(whole, number, places)
            if (right := example.outline.supporting) is not None:
                predictions.gold_facts[id_] = _facts(whole, number, right.tolist())
    return predictions


def _form(loaded: Loaded) -> tuple:
    """What two readers share whose questions and answers fit each other."""
    shared = getattr(loaded.cfg.model, "shared_softmax", None)
    symbols = loaded.task.source_dictionary.symbols
    return type(loaded.model), shared, loaded.task.structure, symbols


def _nll(logits: AnswerLogits, target: dict[str, Tensor]) -> list[tuple[float, float] | None]:
    """`Predictions.nll` of a batch; None where no target is left, or it is among candidates."""
    if logits.candidates is not None:
        return [None] * len(target["types"])
    of_all, of_last = (
        answer_parts(logits, target[name], target["types"]) for name in ("spans", "last_span")
    )
    both = ((parts["span"][0] + parts["type"][0]).tolist() for parts in (of_all, of_last))
    known = (of_all["span"][1] | of_all["type"][1]).tolist()
    return [loss if some else None for some, *loss in zip(known, *both, strict=True)]


def _facts(data: QAData, index: int, sentences: Sequence[int]) -> list[tuple[str, int]]:
    """Sentences as HotpotQA names them: the title of a paragraph, and a number behind it."""
    document, paragraphs = data.document(index), data.texts(index)["paragraphs"]
    owners, before = document.paragraphs_of_sentences, int(document.titled)
    first = {owner: number for number, owner in reversed([*enumerate(owners)])}
    places = ((owners[number], number - first[owners[number]] - before) for number in sentences)
    return [(paragraphs[paragraph][0], number) for paragraph, number in places]


def score(found: Predictions, gold: Sequence[Path] = ()) -> dict[str, float]:
    """Return the scores of the corpus, by their own names, and those that ``clusterformer evaluate
    qa`` adds; none where the answers are secret, or `gold` is not given, Natural Questions' files
    of the split. Raises UserError: if one is something else, or lacks a question."""
    if found.corpus == "natural-questions":
        return _score_natural(found.natural, gold) if gold else {}
    if not found.gold:
        return {}
    if found.corpus in HOPS:
        scores = answers.evaluate_hotpotqa(found.gold, found.texts, found.gold_facts, found.facts)
    else:
        scores = _score_texts(found, found.gold)
    if found.some_unanswerable:
        right = [
            (found.no_answer[id_] > found.threshold) is not bool(texts)
            for id_, texts in found.gold.items()
        ]
        scores["AvNA"] = 100 * sum(right) / len(right)
    for place, name in enumerate(("nll", "nll_one") if found.nll else ()):
        scores[name] = sum(both[place] for both in found.nll.values()) / len(found.nll)
    return scores


def _score_texts(found: Predictions, ids: Iterable[str]) -> dict[str, float]:
    gold = {id_: found.gold[id_] for id_ in ids}
    if found.some_unanswerable:
        how = {"threshold": found.threshold}
        return answers.evaluate_v2(gold, found.texts, found.no_answer, **how)
    return answers.evaluate(gold, found.texts)


def breakdown(found: Predictions) -> dict[str, dict[str, dict[str, float]]]:
    """The number of questions, exact match and F1 in per cent, by the first question word, and by
    the words of the question and of the first accepted answer."""

    def row(text: str, names: Mapping[int, str]) -> tuple[int, str]:
        first = max(length for length in names if length <= len(text.split()))
        return first, names[first]

    tables: dict[str, dict[tuple[int, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for id_, texts in found.gold.items():
        word = QUESTION_WORDS.search(question := found.questions[id_])
        tables["by question word"][0, word[0].lower() if word else "other"].append(id_)
        tables["by words of the question"][row(question, QUESTIONS)].append(id_)
        tables["by words of the answer"][row(texts[0] if texts else "", ANSWERS)].append(id_)
    result: dict[str, dict] = defaultdict(dict)
    for title, rows in tables.items():
        for (_, name), ids in sorted(rows.items()):
            scores = _score_texts(found, ids)
            exact = scores["exact" if found.some_unanswerable else "exact_match"]
            result[title][name] = {"questions": len(ids), "exact match": exact, "f1": scores["f1"]}
    return result


def _score_natural(entries: Sequence[dict], paths: Sequence[Path]) -> dict[str, float]:
    predictions = {str(entry["example_id"]): Label.from_json(entry) for entry in entries}
    gold, drops = {}, Drops()
    for path in paths:
        for place, item in json_lines(path, drops):
            try:
                labels = [Label.from_json(annotation) for annotation in item["annotations"]]
                gold[str(item["example_id"])] = labels
            except (KeyError, TypeError, ValueError) as error:
                allowed = "Natural Questions' .jsonl"
                raise bad_option("--gold", path, allowed, f"{place}: {error!r}") from None
    broken = [example for of_reason in drops.examples.values() for example in of_reason]
    missing = [f"question {id_} is not there" for id_ in predictions if id_ not in gold]
    if what := broken + missing:
        allowed = "the files that the split was prepared from"
        raise bad_option("--gold", " ".join(map(str, paths)), allowed, what[0])
    if more := len(gold) - len(predictions):
        logger.warning(
            f"{more:,} of the {len(gold):,} questions of --gold are not in the split (of another "
            "one, or dropped by prepare); they are not scored"
        )
    return natural_questions.evaluate({id_: gold[id_] for id_ in predictions}, predictions)


def mean_logits(found: Sequence[AnswerLogits]) -> AnswerLogits:
    """Logits of the mean of several readers' probabilities of the same questions and documents; of
    one reader, its own logits."""
    first = found[0]
    if len(found) == 1:
        return first
    said = [name for name, value in first._asdict().items() if value is not None]
    fields = {name: [getattr(logits, name) for logits in found] for name in said}
    if first.slots is not None:
        whole = [torch.cat([x.slots, torch.stack([x.start, x.end], 1)], dim=2) for x in found]
        slots, tokens = _mean(whole).tensor_split([first.slots.size(2)], dim=2)
        start, end = tokens.unbind(1)
        return AnswerLogits.shared(start, end, _mean(fields["paragraph"]), slots, first.bounds)
    means = {name: _mean(each) for name, each in fields.items()}
    if first.sentences is not None:
        means["sentences"] = torch.stack(fields["sentences"]).sigmoid().mean(0).logit()
    return AnswerLogits(**means)


def _mean(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of softmaxes [..., N]; -inf where all are."""
    logs = torch.stack([x.log_softmax(-1) for x in logits])
    return logs.logsumexp(0).sub(math.log(len(logs))).nan_to_num(-torch.inf, neginf=-torch.inf)


def natural_question(id_: str, answers: Answers, paragraphs: Sequence[Sequence]) -> dict[str, Any]:
    """An entry of ``predictions``, in tokens of the whole document; of each paragraph [title,
    text, [start, end), words] is given, see ``data/qa.py``. Both answers have the logarithms of
    their probabilities, by which a threshold decides. Yes or no, if more likely than a span,
    stands in its place."""
    long, long_score, spans = Span(), _LEAST, []
    if answers.long:
        number, log_prob = answers.long[0]
        long = Span(-1, -1, *paragraphs[number][2])
        long_score = log_prob + math.log1p(-min(answers.types["none"], 1 - 1e-12))
    best = answers.short[0]
    if best.tokens is not None:
        _, text, _, tokens = paragraphs[best.paragraph]  # blanks part its words
        first, last = (tokens[text.count(" ", 0, place)] for place in best.characters)
        spans = [Span(-1, -1, first, last + 1)._asdict()]
    return {
        "example_id": int(id_) if re.fullmatch(r"-?\d+", id_) else id_,
        "long_answer": long._asdict(),
        "long_answer_score": long_score,
        "short_answers": spans,
        "short_answers_score": max(best.score, _LEAST),
        "yes_no_answer": "NONE" if spans else best.text.upper(),
    }
