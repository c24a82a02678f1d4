"""Which tokens see which: a file for each kind of attention, registered by name."""

from . import kinds  # noqa: F401 (they register)
from .batch import Batch, any_padding
from .kind import Kind, Traits, attention_kinds, register_attention
from .multihead import MultiheadAttention
from .options import ClusterOptions, OptionError, Options, WindowOptions, option
from .past import Past
from .spec import AttentionPlan, Heads, parse_attention, parse_layer
from .tokens import Assignment, Round, Shape, Tokens

__all__ = [
    "Assignment",
    "AttentionPlan",
    "Batch",
    "ClusterOptions",
    "Heads",
    "Kind",
    "MultiheadAttention",
    "OptionError",
    "Options",
    "Past",
    "Round",
    "Shape",
    "Tokens",
    "Traits",
    "WindowOptions",
    "any_padding",
    "attention_kinds",
    "option",
    "parse_attention",
    "parse_layer",
    "register_attention",
]
