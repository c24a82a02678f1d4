"""Which tokens see which: a file for each kind of attention, registered by name. Shape letters in
this folder: B batch, N tokens, D model width, H heads (of a kind), J heads of keys and values, for
H / J queries each, E head width, K clusters, W window, G groups of heads that are assigned apart
(1, J or H); a file names those that it alone has."""

from .heads import AttentionPlan, HeadForm  # noqa: F401
from .kind import Kind, Other, Traits  # noqa: F401
from .kinds import gated, kmeans, lsh, neural, routing, window, xl  # noqa: F401
from .kinds.taught import kind as taught  # noqa: F401 (all register)
from .multihead import MultiheadAttention  # noqa: F401
from .options import (  # noqa: F401
    ClusterOptions,
    Heads,
    OptionError,
    Options,
    WindowOptions,
    attention_kinds,
    option,
    parse_attention,
    parse_layer,
    register_attention,
)
from .past import Kept, Past  # noqa: F401
from .tokens import Assignment, Batch, Round, Shape, Tokens, any_padding  # noqa: F401
