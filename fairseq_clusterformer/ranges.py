"""Which numbers an option may have. Each is declared once: with the option, or in `OF_FAIRSEQ`."""

import dataclasses
import math
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

LARGEST = 2**31 - 1  # of whole numbers: what torch, numpy and fairseq's C code all take


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers between limits, or some words. What is not finite is never one of them, nor is a
    whole number above `LARGEST`."""

    at_least: float = -math.inf
    at_most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: tuple[str, ...] = ()  # allowed words, instead
    whole: bool = False  # without a fraction

    def forbids(self, value: Any) -> bool:
        """Whether a number or a word is outside; what is neither, such as None, never is."""
        if self.choices:
            return value is not None and value not in self.choices
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        within = self.at_least <= value <= self.at_most and self.above < value < self.below
        too_large = isinstance(value, int) and abs(value) > LARGEST
        return not within or too_large or (self.whole and value % 1 != 0)

    def allowed(self, value: Any = None) -> str:
        """What is in it, for people; of whole numbers the largest only if `value` is larger."""
        if self.choices:
            return ", ".join(self.choices)
        is_larger = isinstance(value, int) and value > LARGEST
        most = min(self.at_most, LARGEST) if is_larger else self.at_most
        limits = ("{} or more", self.at_least), ("above {}", self.above)
        limits += ("up to {}", most), ("below {}", self.below)
        text = ", ".join(form.format(limit) for form, limit in limits if math.isfinite(limit))
        return text or ("a whole number" if self.whole else "a finite number")


_COUNT, _SIZE = Range(at_least=0, whole=True), Range(at_least=1, whole=True)
_SHARE, _POSITIVE, _WEIGHT = Range(0, 1), Range(above=0), Range(0)
LENGTH_PENALTY = Range(-10, 10)  # a length to the power of it is to be a float32
#: of the numbers that methods of models and commands take
OF_USE = dict.fromkeys(("beam", "batch_size", "max_tokens", "top_k"), _SIZE)
OF_USE |= {"lenpen": LENGTH_PENALTY, "temperature": _WEIGHT, "top_p": Range(above=0, at_most=1)}
#: of fairseq's own options, by a pattern of their names; the first that fits. A
#: default, such as -1 for none, is allowed as well.
OF_FAIRSEQ: Mapping[str, Range] = {
    r".*dropout(_[a-z]+)?|.*layerdrop|.*drop_?path(_rate)?|quant_noise_pq": _SHARE,
    r"label_smoothing": Range(at_least=0, below=1),
    r"end_learning_rate|weight_decay|clip_norm": _WEIGHT,
    r"max_update|max_epoch|warmup_updates|num_workers|curriculum|seed": _COUNT,
    r"(encoder|decoder)_(embed_dim|ffn_embed_dim|attention_heads|input_dim|output_dim)": _SIZE,
    r"(encoder|decoder)_layers|tokens_per_sample|max_(source|target)_positions": _SIZE,
    r"batch_size(_valid)?|max_tokens(_valid)?|log_interval|save_interval|update_freq": _SIZE,
    r"required_batch_size_multiple|validate_interval|num_shards|beam|nbest": _SIZE,
    r"lr|power|ema_decay|adam_eps|lr_shrink|max_len_a|min_lr|total_num_update": _WEIGHT,
    r"temperature": _POSITIVE,
    r"lenpen": LENGTH_PENALTY,
}


def check_ranges(values: Mapping[str, Any] | Namespace, options: type | None = None) -> None:
    """Raise ValueError for one of these values (lists hold one for each epoch) that is not
    allowed. The dataclass `options` declares them."""
    declared = {item.name: item for item in dataclasses.fields(options or Range)}
    for name, given in (vars(values) if isinstance(values, Namespace) else values).items():
        item = declared.get(name) if options else None
        fits = (r for pattern, r in OF_FAIRSEQ.items() if re.fullmatch(pattern, str(name)))
        known = (item and item.metadata.get("range")) or next(fits, None)
        several = isinstance(given, Sequence) and not isinstance(given, str)
        for value in given if several else [given]:
            if item and value == item.default:  # which may mean what no number says
                continue
            if known.forbids(value) if known else _is_no_number(value):
                text = (known or Range()).allowed(value)
                raise ValueError(f"--{str(name).replace('_', '-')} is {value}; allowed: {text}")


def _is_no_number(value: Any) -> bool:
    """NaN, infinity, and whole numbers of more than 64 bits, which nothing takes."""
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and not -(2**63) <= value < 2**63
