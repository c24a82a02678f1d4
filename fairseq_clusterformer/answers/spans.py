"""The best spans of tokens, by the logits of where they start and end."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def best_spans(
    start: Tensor, end: Tensor, paragraph: Tensor, *, max_length: int, top: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """The spans whose first token's start and last token's end are most in sum.

    Spans lie in one paragraph; a token with a logit of -inf (or nan) begins or ends none.

    Args:
        start: of each token being an answer's first, [..., N].
        end: of each being its last, [..., N].
        paragraph: the number of each token's paragraph, 0 or more, int64 [..., N].
        max_length: tokens of a span, 1 or more.
        top: n, 1 or more; fewer where there are fewer pairs of tokens.

    Returns:
        Of spans [first, last), best first: their scores [..., n], -inf where there are no more;
        first and last, int64 [..., n].
    """
    length = start.size(-1)
    width = max(1, min(max_length, length))

    def following(x: Tensor, fill: float) -> Tensor:
        """Each token and those behind it, [..., N, width]."""
        return pad(x, (0, width), value=fill).unfold(-1, width, 1)[..., :length, :]

    score = start.unsqueeze(-1) + following(end, -torch.inf)
    together = following(paragraph, -1) == paragraph.unsqueeze(-1)
    score = score.masked_fill(~(together & (score > -torch.inf)), -torch.inf).flatten(-2)
    best, places = score.topk(min(top, score.size(-1)))
    first = places // width
    return best, first, first + places % width + 1
