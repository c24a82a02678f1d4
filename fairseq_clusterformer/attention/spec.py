"""The grammar that says which layer uses which attention.

``window*3,neural`` is a list of layers, cycled to the model's depth; a layer is a kind or several
joined by ``+``, which divide its heads; ``*n`` repeats a layer.
"""

import re

from .base import attention_kinds

_LAYER = re.compile(r"(?P<kinds>[^*,]+)(\*(?P<times>\d+))?")


def parse_attention(
    spec: str, *, num_layers: int, num_heads: int, option: str = "--attention"
) -> list[tuple[str, ...]]:
    """The kinds of each layer, one for each equal share of its heads.

    Args:
        spec: for example "neural", "window*3,neural", "window+neural".
        num_layers: depth of the model; the list is cycled or cut to it.
        num_heads: H of every layer.
        option: name of the option in error messages.

    Raises:
        ValueError: a spec outside the grammar, an unknown kind, ``*0``, or heads that do not
            divide.

    Example:
        >>> parse_attention("window*2,window+full", num_layers=4, num_heads=8)
        [('window',), ('window',), ('window', 'full'), ('window',)]
    """
    layers: list[tuple[str, ...]] = []
    for part in spec.replace(" ", "").split(","):
        match = _LAYER.fullmatch(part)
        if match is None:
            raise ValueError(
                f"{option} is {spec}: {part!r} is not a layer; allowed: KIND, KIND+KIND or "
                "KIND*TIMES, separated by commas, such as window*3,neural"
            )
        kinds = tuple(match["kinds"].split("+"))
        for kind in kinds:
            if kind not in attention_kinds():
                raise ValueError(
                    f"{option} is {spec}: unknown kind {kind!r}; "
                    f"allowed: {', '.join(attention_kinds())}"
                )
        if num_heads % len(kinds):
            raise ValueError(
                f"{option} is {spec}: {num_heads} heads do not divide among the {len(kinds)} "
                f"kinds of {part!r}; allowed: a number of kinds that divides {num_heads}"
            )
        times = 1 if match["times"] is None else int(match["times"])
        if times < 1:
            raise ValueError(f"{option} is {spec}: {part!r} repeats {times} times; allowed: 1 up")
        layers += [kinds] * min(times, num_layers)
    return [layers[i % len(layers)] for i in range(num_layers)]
