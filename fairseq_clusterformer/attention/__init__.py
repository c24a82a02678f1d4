"""Which tokens see which: a file for each kind of attention, registered by name."""

from .base import (
    AttentionConfig,
    Ring,
    Router,
    Routing,
    Step,
    attention_kinds,
    build_router,
    register_attention,
)
from .gated import Gated
from .kmeans import KMeans
from .lsh import Lsh
from .multihead import MultiheadAttention
from .neural import Neural
from .routing import RoutingAttention
from .spec import parse_attention
from .strided import Strided
from .window import Full, Window

__all__ = [
    "AttentionConfig",
    "Full",
    "Gated",
    "KMeans",
    "Lsh",
    "MultiheadAttention",
    "Neural",
    "Ring",
    "Router",
    "Routing",
    "RoutingAttention",
    "Step",
    "Strided",
    "Window",
    "attention_kinds",
    "build_router",
    "parse_attention",
    "register_attention",
]
