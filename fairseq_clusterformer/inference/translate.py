"""Translates text as people write it, by one model of fairseq or an ensemble."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig
from torch import Tensor

from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.text import TextPipeline

from .load import Loaded
from .pretrained import Pretrained


@dataclass(frozen=True)
class Translation:
    """One translation of a text.

    Attributes:
        text: readable; of lower-cased data in lower case.
        score: its log-probability (base 2) divided by its length.
    """

    text: str
    score: float


class Translator(Pretrained):
    """Translates texts. What is done to them is what was done to the training data.

    Args:
        loaded: a translation model.
        others: more models of the same languages and dictionaries, for an ensemble.
        options: see `Pretrained`.

    Attributes:
        source: the language that it reads.
        target: the language that it writes.

    Raises:
        UserError: models that do not go together, or data that was prepared by something else.
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
        """Translate sentences.

        Args:
            texts: one sentence or several. An empty one stays empty.
            source: to be sure: an error if the model reads another language.
            target: to be sure: an error if the model writes another language.
            beam: hypotheses that are followed at once.
            lenpen: scores are divided by the length to this power.
            batch_size: sentences at once.

        Returns:
            The best translation of each, one string for one string.

        Raises:
            UserError: another language, or a sentence that is longer than the model allows.
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
        self,
        lines: Sequence[str],
        *,
        beam: int = 5,
        lenpen: float = 1.0,
        nbest: int = 1,
        batch_size: int = 32,
    ) -> list[list[Translation]]:
        """Return the `nbest` best translations of each line; of an empty line none.

        Raises:
            UserError: a line is longer than the model allows.
        """
        subwords = [self.text.encode(line, self.source) for line in lines]
        wanted = [i for i, line in enumerate(subwords) if line]  # what says nothing stays empty
        tokens, lengths = self.task.get_interactive_tokens_and_lengths(
            [subwords[i] for i in wanted], lambda line: line
        )
        limits = utils.resolve_max_positions(
            self.task.max_positions(), *[model.max_positions() for model in self.models]
        )
        for i, length in zip(wanted, lengths, strict=True):
            if length > limits[0]:
                raise UserError(
                    f"line {i + 1} has {length} subwords with its end; allowed: {limits[0]} or "
                    "fewer, the positions that the model has"
                )
        found: list[list[Translation]] = [[] for _ in lines]
        if not wanted:
            return found
        generation = GenerationConfig(beam=beam, lenpen=lenpen)
        generator = self.task.build_generator(self.models, generation)
        batches = self.task.get_batch_iterator(
            dataset=self.task.build_dataset_for_inference(tokens, lengths),
            max_sentences=batch_size,
            max_positions=limits,
        )
        for batch in batches.next_epoch_itr(shuffle=False):
            ids = batch["id"].tolist()
            batch = utils.apply_to_sample(lambda tensor: tensor.to(self.device), batch)
            results = self.task.inference_step(generator, self.models, batch)
            for i, hypotheses in zip(ids, results, strict=True):
                found[wanted[i]] = [
                    self._readable(each, generator.symbols_to_strip_from_output)
                    for each in hypotheses[:nbest]
                ]
        return found

    def _readable(self, hypothesis: dict, stripped: set[int]) -> Translation:
        subwords = self.task.target_dictionary.string(
            hypothesis["tokens"].int().cpu(), extra_symbols_to_ignore=stripped
        )
        score = float(hypothesis["score"]) / math.log(2)
        return Translation(self.text.decode(subwords, self.target), score)

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
