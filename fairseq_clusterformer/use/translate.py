"""Translates text as people write it, by one model of fairseq or an ensemble; and its BLEU."""

import re
from collections.abc import Iterator, Sequence

import torch
from fairseq import utils
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.configs import GenerationConfig
from torch import Tensor
from tqdm import tqdm

from fairseq_clusterformer.data.text import TextPipeline
from fairseq_clusterformer.errors import UserError, bad_option

from ..checkpoints.load import Loaded, dataset_of
from .base import Pretrained, check_numbers
from .perplexity import leaks_future


class Translator(Pretrained):
    """Translates texts from the language `source` to `target`, by one model or an ensemble. Raises
    UserError: models that do not go together, or data that were prepared by something else."""

    kind = "translation model"
    abilities = ("translate", "encode")

    def __init__(self, loaded: Loaded, *others: Loaded, **options) -> None:
        super().__init__(loaded, **options)
        self.task = loaded.task
        self.source, self.target = self.task.cfg.source_lang, self.task.cfg.target_lang
        self.text = TextPipeline.from_folder(loaded.folder)
        self.models = [self.model]
        for other in others:
            if _vocabularies(other) != _vocabularies(loaded):
                allowed = f"models of the languages and dictionaries of {loaded.path}"
                raise bad_option("--checkpoint", other.path, allowed)
            self.models.append(Pretrained(other, **options).model)
        for model in self.models:
            model.prepare_for_inference_(loaded.cfg)

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        source: str | None = None,
        target: str | None = None,
        beam: int = 5,
        lenpen: float = 1.0,
        batch_size: int = 32,
    ) -> str | list[str]:
        """Translate sentences; an empty one stays empty. Returns the best translation of each, one
        string for one string. Raises UserError: another language, a sentence that is longer than
        the model allows, a value that is not allowed, or a model that sees the future.

        Args:
            source, target: to be sure: an error if the model reads or writes another language.
            beam: hypotheses that are followed, of the batch_size sentences that are read at once.
            lenpen: scores are divided by the length to this power.
        """
        for option, given, own in (("-s", source, self.source), ("-t", target, self.target)):
            if given not in (None, own):
                raise bad_option(option, given, f"{own}, which the model has")
        lines = [texts] if isinstance(texts, str) else list(texts)
        # an empty line may have subwords: a text of BART begins by <s>
        subwords = [self.text.encode(line, self.source) if line.strip() else "" for line in lines]
        found = [""] * len(lines)
        if any(subwords):
            inputs = self.task.get_interactive_tokens_and_lengths(subwords, str)
            dataset = self.task.build_dataset_for_inference(*inputs)
            for i, best in self._search(dataset, None, beam, lenpen, batch_size):
                found[i] = self.text.decode(best, self.target) if subwords[i] else ""
        return found[0] if isinstance(texts, str) else found

    def of_split(self, split: str, max_tokens: int, **how) -> tuple[list[str], list[str]]:
        """Translate a split of the data folder, max_tokens at once; more options as of
        `translate`. Returns the subwords of the best translations and of the references, joined by
        blanks. Raises UserError also: there is no such split."""
        dataset = dataset_of(self.loaded, split, "--split")
        search = self._search(dataset, max_tokens, **how)
        found = dict(tqdm(search, total=len(dataset), unit=" sentences", disable=None))
        right = [self.task.target_dictionary.string(line, escape_unk=True) for line in dataset.tgt]
        return [found[i] for i in range(len(dataset))], right

    def _search(
        self, dataset: LanguagePairDataset, max_tokens: int | None, beam, lenpen, batch_size
    ) -> Iterator[tuple[int, str]]:
        check_numbers(beam=beam, lenpen=lenpen, batch_size=batch_size)
        if any(map(leaks_future, self.models)):
            problem = f"{self.loaded.path} or a model with it has --decoder-cluster-rule "
            problem += "leaking-chunk, by which later tokens change earlier outputs"
            raise UserError(f"{problem}: it cannot translate; allowed: models that are causal")
        most = self.task.max_positions(), *[model.max_positions() for model in self.models]
        most = utils.resolve_max_positions(*most)[0]
        for i, length in enumerate(dataset.src_sizes):
            if length > most:
                problem = f"line {i + 1} has {length} subwords with its end"
                raise UserError(f"{problem}; allowed: {most} or fewer, the model's positions")
        longest = max(map(dataset.num_tokens, range(len(dataset))), default=0)
        if max_tokens is not None and longest > max_tokens:
            problem = "the longest sentence has more"
            raise bad_option("--max-tokens", max_tokens, f"{longest} or more", problem)
        generation = GenerationConfig(beam=beam, lenpen=float(lenpen))
        generator = self.task.build_generator(self.models, generation)
        unseen = generator.symbols_to_strip_from_output
        batches = self.task.get_batch_iterator(
            dataset,
            max_tokens=max_tokens,
            max_sentences=batch_size,
            required_batch_size_multiple=8,  # as fairseq-generate has it
        )
        for batch in batches.next_epoch_itr(shuffle=False):
            ids = batch["id"].tolist()
            batch = utils.apply_to_sample(lambda tensor: tensor.to(self.device), batch)
            results = self.task.inference_step(generator, self.models, batch)
            for i, (best, *_) in zip(ids, results, strict=True):
                tokens = best["tokens"].int().cpu()
                yield i, self.task.target_dictionary.string(tokens, extra_symbols_to_ignore=unseen)

    @torch.no_grad()
    def _states(self, text: str) -> Tensor:
        subwords = self.text.encode(text, self.source)
        tokens = self.task.source_dictionary.encode_line(subwords, add_if_not_exist=False)
        tokens = tokens.long()[None].to(self.device)
        lengths = torch.tensor([tokens.size(1)], device=self.device)
        return self.model.encoder(tokens, lengths)["encoder_out"][0][:, 0]


def _vocabularies(loaded: Loaded) -> list:
    task = loaded.task
    symbols = [task.source_dictionary.symbols, task.target_dictionary.symbols]
    return [task.cfg.source_lang, task.cfg.target_lang, *symbols]


def bleu(hypotheses: list[str], references: list[str], **options: object) -> dict[str, object]:
    """What sacrebleu finds: score, precisions, brevity and signature."""
    from sacrebleu.metrics import BLEU  # here, since translating needs none of it

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
    """BLEU's rows of ``clusterformer evaluate translation``, of subwords joined by blanks, by the
    `pipeline` that made the data. `target` is the language, to detokenise (None: no sacreBLEU);
    `raw` has references as they were written (None: detokenised `references`);
    `compound_split`: also with words split at hyphens, by tensor2tensor's get_ende_bleu.sh."""
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
    lines = [f"{'':16}{'BLEU':>7}{'1/2/3/4-grams':>22}{'brevity':>9}{'length':>8}"]
    for name, row in rows.items():
        grams = "/".join(f"{value:.1f}" for value in row["precisions"])
        lines.append(
            f"{name:16}{row['bleu']:7.2f}{grams:>22}"
            f"{row['brevity_penalty']:9.3f}{row['length_ratio']:8.3f}"
        )
    return "\n".join(lines + [f"{name:16}{row['signature']}" for name, row in rows.items()])
