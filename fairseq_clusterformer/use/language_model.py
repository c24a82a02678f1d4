"""A language model that writes: text in, text out, a token per step."""

from collections.abc import Iterator
from itertools import chain

import torch
from fairseq.modules import LearnedPositionalEmbedding
from torch import Tensor

from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.errors import UserError, bad_option

from ..checkpoints.load import Loaded
from .base import Pretrained, check_numbers
from .perplexity import begin_of, compare, ends_of, leaks_future, text_blocks


class LanguageModel(Pretrained):
    """Continues texts, and says how likely they are. A step reads a state of bounded size (dense
    attention: of all tokens so far). Sinusoidal positions go on beyond the length of the
    training's texts, which the model has not learned."""

    kind = "language model"
    abilities = ("generate", "perplexity", "encode")

    def __init__(self, loaded: Loaded, **options) -> None:
        super().__init__(loaded, **options)
        self.dictionary = loaded.task.source_dictionary
        self.coding = TextCoding.from_folder(loaded.folder, self.dictionary)

    def begin_by(self, symbol: str) -> None:
        """Let texts begin by a symbol of the dictionary, or by nothing (""), instead of as the
        training says. Raises UserError: there is no such symbol."""
        if symbol and symbol not in self.dictionary:
            raise bad_option("--begin", symbol, "a symbol of its dict.txt, or '' for nothing")
        self.model.text_begin = symbol

    def generate(
        self,
        prompt: str = "",
        max_tokens: int = 200,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
        stream: bool = False,
    ) -> str | Iterator[str]:
        """Continue a text. Returns the prompt and what follows it. Raises UserError: a value that
        is not allowed, or more tokens than the model has positions.

        Args:
            prompt: its beginning; empty: a new text.
            max_tokens: how many to write, unless the text ends: bytes, pieces or words, as the
                model was trained.
            temperature: the lower, the more often the most likely tokens; 0: always these.
            top_k: draw among this many of the most likely tokens; None: among all.
            top_p: draw among the most likely tokens that have this probability together.
            seed: the same text for the same seed, on any device; None: another one each time.
            stream: return an iterator that gives the prompt, then what each token adds.
        """
        check_numbers(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p)
        if seed is not None and not -(2**63) <= seed < 2**64:
            raise bad_option("seed", seed, "a number of 64 bits")
        given = self._given(prompt, "prompt", max_tokens)
        generator = torch.Generator()
        generator.seed() if seed is None else generator.manual_seed(seed)
        tokens = self._tokens(given, max_tokens, generator, temperature, top_k, top_p)
        parts = chain([prompt], self.coding.stream(tokens, int(given[-1])))
        return parts if stream else "".join(parts)

    def _given(self, text: str, name: str, more: int) -> Tensor:
        """The tokens of a text, behind what texts begin by. Raises UserError: a model that cannot
        write, or has no positions for `more` tokens."""
        tokens, decoder = self.coding.encode(text, name), self.model.decoder
        first = begin_of(self.loaded, self.coding, empty=not len(tokens))
        tokens = torch.cat([first, tokens])
        if leaks_future(self.model):
            rule = "--cluster-rule leaking-chunk, by which later tokens change earlier outputs"
            problem = f"{self.loaded.path} has {rule}: it cannot generate"
            raise UserError(f"{problem}; allowed: a model that is causal")
        learned = isinstance(decoder.embed_positions, LearnedPositionalEmbedding)
        room = decoder.max_positions() - len(tokens) + 1
        if learned and more > room:
            problem = f"of {decoder.max_positions()} positions, the prompt has {len(tokens)}"
            allowed = f"up to {max(0, room)} after this prompt"
            raise bad_option("max_tokens", more, allowed, problem)
        return tokens

    @torch.no_grad()
    def _tokens(self, given: Tensor, more: int, *how) -> Iterator[int]:
        """Yield the tokens that follow `given` [N], as `draw` draws them."""
        decoder, state, ends = self.model.decoder, {}, ends_of(self.loaded, self.coding)
        tokens = torch.empty(1, len(given) + more, dtype=torch.int64, device=self.device)
        tokens[0, : len(given)] = given.to(self.device)
        forbidden = torch.arange(self.dictionary.nspecial)
        if getattr(self.model, "text_ends", None):  # of another library, which hides none
            forbidden = forbidden[forbidden == self.dictionary.pad()]
        elif self.coding.unit != "byte":  # whose </s> ends no line
            forbidden = forbidden[forbidden != self.dictionary.eos()]
        first = len(given) if getattr(decoder, "reads_prompts", False) else 1
        for end in range(first, len(given) + more):
            read = tokens[:, :end]
            features, extra = decoder(read, incremental_state=state, features_only=True)
            if end < len(given):
                continue
            out = decoder.output_layer(features[:, -1:]), extra
            log_probs = self.model.get_normalized_probs(out, log_probs=True)[:, -1].float().cpu()
            log_probs[:, forbidden] = -torch.inf
            tokens[0, end] = token = int(draw(log_probs, *how))
            yield token
            if token in ends:
                return

    def perplexity(self, text: str) -> float:
        """Perplexity per token of a text, cut as the training's. Raises UserError: it is empty."""
        blocks = text_blocks(self.loaded, text)
        return compare(self.model, blocks, stepwise=False)["teacher-forced perplexity"]

    @torch.no_grad()
    def _states(self, text: str) -> Tensor:
        tokens = self._given(text, "text", 1).to(self.device)
        return self.model.decoder(tokens[None], features_only=True)[0][0]


def draw(
    log_probs: Tensor,
    generator: torch.Generator,
    temperature: float,
    top_k: int | None,
    top_p: float,
) -> Tensor:
    """Draw a token for each row of log-probabilities [B, V]: int64 [B]. See `generate`."""
    if temperature < 1e-6:  # smaller ones overflow float32, and draw the likeliest as well
        return log_probs.argmax(-1)
    scores = log_probs / temperature
    if top_k is not None and top_k < scores.size(-1):
        least = scores.topk(top_k).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if top_p < 1:
        ranked, order = scores.sort(descending=True)
        share = ranked.softmax(-1)
        hidden = share.cumsum(-1) - share >= top_p
        hidden[:, 0] = False  # also where float32 takes top_p for 0
        ranked = ranked.masked_fill(hidden, -torch.inf)
        scores = scores.scatter(-1, order, ranked)
    return torch.multinomial(scores.softmax(-1), 1, generator=generator).squeeze(-1)
