"""Which tokens see which: a file for each kind of attention, registered by name.

Shape letters in this folder: B batch, N tokens, D model width, H heads (of a kind), J heads of
keys and values, each for H / J queries, E head width, K clusters, W window, G groups of heads that
are assigned apart (1, J or H); a file names those that it alone has.
"""

from .batch import Batch, any_padding
from .heads import HeadForm
from .kind import Kind, Other, Traits
from .kinds import gated, kmeans, lsh, neural, routing, strided, window, xl  # noqa: F401
from .kinds.taught import kind as taught  # noqa: F401 (all register)
from .multihead import MultiheadAttention
from .options import (
    ClusterOptions,
    OptionError,
    Options,
    WindowOptions,
    attention_kinds,
    option,
    register_attention,
)
from .past import Kept, Past
from .spec import AttentionPlan, Heads, parse_attention, parse_layer
from .tokens import Assignment, Round, Shape, Tokens

__all__ = [
    "Assignment",
    "AttentionPlan",
    "Batch",
    "ClusterOptions",
    "HeadForm",
    "Heads",
    "Kept",
    "Kind",
    "MultiheadAttention",
    "OptionError",
    "Options",
    "Other",
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
