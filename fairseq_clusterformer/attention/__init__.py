"""Which tokens see which: a file for each kind of attention, registered by name."""

from . import gated, kmeans, lsh, neural, routing, strided, taught, window, xl  # noqa: F401 (they register)
from .batch import Batch, any_padding
from .kind import Assignment, Kind, Shape, Tokens, attention_kinds, register_attention
from .multihead import MultiheadAttention
from .options import ClusterOptions, OptionError, Options, WindowOptions, option
from .spec import AttentionPlan, Heads, parse_attention, parse_layer

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
    "Shape",
    "Tokens",
    "WindowOptions",
    "any_padding",
    "attention_kinds",
    "option",
    "parse_attention",
    "parse_layer",
    "register_attention",
]
