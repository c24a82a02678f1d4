"""Translates text as people write it, by one model of fairseq or an ensemble."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from fairseq import utils
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.configs import GenerationConfig
from torch import Tensor
from tqdm import tqdm

from fairseq_clusterformer.data.text import TextPipeline
from fairseq_clusterformer.errors import UserError, bad_option

from ..checkpoints.load import Loaded
from .base import Pretrained, check_numbers
from .perplexity import leaks_future


@dataclass(frozen=True)
class Translation:
    """One translation of a text."""

    text: str  # readable; of lower-cased data in lower case
    score: float  # its log-probability (base 2) divided by its length


class Translator(Pretrained):
    """Translates texts. What is done to them is what was done to the training data. Raises
    UserError: models that do not go together, or data that was prepared by something else.

    Args:
        loaded: a translation model.
        others: more models of the same languages and dictionaries, for an ensemble.
        options: see `Pretrained`.

    Attributes:
        source, target: the languages that it reads and writes.
    """

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
            self.models.append(other.model.to(self.device, options.get("dtype")))
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
            beam: hypotheses that are followed at once.
            lenpen: scores are divided by the length to this power.
            batch_size: sentences at once.
        """
        self.check_languages(source, target)
        options = {"beam": beam, "lenpen": lenpen, "batch_size": batch_size}
        found = self.hypotheses([texts] if isinstance(texts, str) else texts, **options)
        best = [each[0].text if each else "" for each in found]
        return best[0] if isinstance(texts, str) else best

    def check_languages(self, source: str | None, target: str | None) -> None:
        """Refuse languages that the model does not have."""
        for option, given, own in (("-s", source, self.source), ("-t", target, self.target)):
            if given not in (None, own):
                raise bad_option(option, given, f"{own}, which the model has")

    def hypotheses(
        self, lines: Sequence[str], *, nbest: int = 1, **options
    ) -> list[list[Translation]]:
        """Return the `nbest` best translations of each line; of an empty line none. Options are
        those of `translate`. Raises UserError: a line is longer than the model allows."""
        # an empty line may have subwords: a text of BART begins by <s>
        subwords = [self.text.encode(line, self.source) if line.strip() else "" for line in lines]
        found: list[list[Translation]] = [[] for _ in subwords]
        if not any(subwords):
            return found
        inputs = self.task.get_interactive_tokens_and_lengths(subwords, str)
        dataset = self.task.build_dataset_for_inference(*inputs)
        for i, hypotheses in self._search(dataset, **options):
            if subwords[i]:
                found[i] = [
                    Translation(self.text.decode(each, self.target), score)
                    for each, score in hypotheses[:nbest]
                ]
        return found

    def of_split(self, split: str, **options) -> tuple[list[str], list[str]]:
        """Translate a split of the data folder, with options of `translate`, and max_tokens at
        once. Returns the subwords of the best translations and of the references, joined by
        blanks. Raises UserError: there is no such split, or a sentence is longer than the model
        allows."""
        try:
            self.task.load_dataset(split)
        except FileNotFoundError as error:
            raise bad_option("--split", split, "one of --data's", str(error)) from None
        dataset = self.task.dataset(split)
        found = [""] * len(dataset)
        search = self._search(dataset, **options)
        for i, hypotheses in tqdm(search, total=len(found), unit=" sentences", disable=None):
            found[i] = hypotheses[0][0]
        symbols = self.task.target_dictionary
        return found, [symbols.string(line, escape_unk=True) for line in dataset.tgt]

    def _search(
        self,
        dataset: LanguagePairDataset,
        *,
        beam: int = 5,
        lenpen: float = 1.0,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
    ) -> Iterator[tuple[int, list[tuple[str, float]]]]:
        """Yield each sentence's index, and its hypotheses' subwords and scores."""
        check_numbers(beam=beam, lenpen=lenpen, batch_size=batch_size)
        if any(map(leaks_future, self.models)):
            problem = f"{self.loaded.path} or a model with it has --decoder-cluster-rule "
            problem += "leaking-chunk, by which later tokens change earlier outputs"
            raise UserError(f"{problem}: it cannot translate; allowed: models that are causal")
        most = self.task.max_positions(), *[model.max_positions() for model in self.models]
        most = utils.resolve_max_positions(*most)[0]
        for i, length in enumerate(dataset.src_sizes):
            if length > most:
                allowed = f"{most} or fewer, the positions that the model has"
                problem = f"line {i + 1} has {length} subwords with its end"
                raise UserError(f"{problem}; allowed: {allowed}")
        longest = max(map(dataset.num_tokens, range(len(dataset))), default=0)
        if max_tokens is not None and longest > max_tokens:
            problem = "the longest sentence has more"
            raise bad_option("--max-tokens", max_tokens, f"{longest} or more", problem)
        generation = GenerationConfig(beam=beam, lenpen=lenpen)
        generator = self.task.build_generator(self.models, generation)
        subwords = partial(
            self.task.target_dictionary.string,
            extra_symbols_to_ignore=generator.symbols_to_strip_from_output,
        )
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
            for i, hypotheses in zip(ids, results, strict=True):
                lines = [subwords(each["tokens"].int().cpu()) for each in hypotheses]
                scores = [float(each["score"]) / math.log(2) for each in hypotheses]
                yield i, list(zip(lines, scores, strict=True))

    @torch.no_grad()
    def _states(self, text: str) -> Tensor:
        """Of the encoder."""
        subwords = self.text.encode(text, self.source)
        tokens = self.task.source_dictionary.encode_line(subwords, add_if_not_exist=False)
        tokens = tokens.long()[None].to(self.device)
        lengths = torch.tensor([tokens.size(1)], device=self.device)
        return self.model.encoder(tokens, lengths)["encoder_out"][0][:, 0]


def _vocabularies(loaded: Loaded) -> list:
    task = loaded.task
    symbols = [task.source_dictionary.symbols, task.target_dictionary.symbols]
    return [task.cfg.source_lang, task.cfg.target_lang, *symbols]


def capitalize(text: str) -> str:
    """Return the text with a capital first letter, whatever marks stand before it."""
    return re.sub(r"\w", lambda letter: letter[0].upper(), text, count=1)
