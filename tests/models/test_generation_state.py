"""Step by step a clustered decoder computes what it computes in parallel, from a bounded state."""

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.attention import MultiheadAttention
from fairseq_clusterformer.clustering import summary
from fairseq_clusterformer.models.clusterformer_lm import ClusterformerLanguageModel
from tests.models.small import LLAMA, letters, make_lm

BOUNDED = ("window+neural",)
RIVALS = ("lsh,strided", "window+routing")


@torch.inference_mode()
def test_state_does_not_grow():
    """W keys and values of E numbers for each ring, and a count where there are several; here of
    one head each."""
    spec = "window(4)+neural(4,clusters=3)"
    module = MultiheadAttention(4, 2, kinds=spec, causal=True).eval()
    inputs, state = torch.randn(100, 1, 1, 4), {}
    for step in range(1, 2_001):
        _, state = module.step(inputs[step % 100], state)
        if step in (500, 2_000):
            sizes = [0, 0]
            for name, tensor in state.items():
                if name != "position":  # one number a row, of all kinds
                    sizes[int(name.partition(".")[0])] += tensor.numel()
            assert sizes == [2 * 4 * 2, 3 * (2 * 4 * 2 + 1)]


SYMBOLS, LENGTH = 20, 40


def rows(number: int) -> Tensor:
    """Texts in which each symbol depends on the two before it, after ``</s>``."""
    tokens = letters(number, LENGTH)
    for i in range(2, LENGTH):
        known = (tokens[:, i - 1] + 3 * tokens[:, i - 2]) % SYMBOLS + 4
        tokens[:, i] = torch.where(torch.rand(number) < 0.8, known, tokens[:, i])
    tokens[:, 0] = 2
    return tokens


@pytest.fixture(
    scope="module", params=[*BOUNDED, *RIVALS, "full", "neural,window", "running", "llama"]
)
def model(request: pytest.FixtureRequest) -> ClusterformerLanguageModel:
    """A model that has learned something."""
    torch.manual_seed(0)
    given = {
        "running": {"attention": "neural", "cluster_normalizer": "running"},
        "llama": {"attention": "window+neural", **LLAMA},
    }
    model = make_lm(**given.get(request.param, {"attention": request.param})).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for update in range(30):
        model.set_num_updates(update)
        tokens = rows(8)
        logits, extra = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        losses.append(loss.item())
        clustering = summary(extra["reports"])
        if clustering is not None:
            loss = loss + 0.1 * (clustering["clustering_loss"] + clustering["sorting_loss"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.3
    return model.eval()


def step_by_step(
    model: ClusterformerLanguageModel, tokens: Tensor, orders: dict[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of each next token, and the tokens after all reordering.

    Args:
        orders: before this step, which rows go on, and in which order.
    """
    state: dict = {}
    outputs: list[Tensor] = []
    for step in range(tokens.size(1)):
        if step in orders:
            order = orders[step]
            tokens = tokens[order]
            outputs = [output[order] for output in outputs]
            model.decoder.reorder_incremental_state_scripting(state, order)
        logits, _ = model.decoder(tokens[:, : step + 1], incremental_state=state)
        assert logits.size(1) == 1
        outputs.append(model.get_normalized_probs((logits, None), log_probs=True)[:, 0])
    return torch.stack(outputs, 1), tokens


def parallel(model: ClusterformerLanguageModel, tokens: Tensor) -> Tensor:
    return model.get_normalized_probs(model(tokens), log_probs=True)


@torch.no_grad()
def test_beams_are_reordered(model):
    """Rows are swapped, doubled and, as finished sentences leave, fewer."""
    torch.manual_seed(3)
    orders = {
        1: torch.tensor([0, 0, 1, 1, 2, 2]),
        7: torch.tensor([1, 0, 3, 2, 4, 4]),
        20: torch.tensor([4, 5, 1]),
        31: torch.tensor([2, 0]),
    }
    tokens = rows(3)
    stepwise, tokens = step_by_step(model, tokens, orders)
    assert len(tokens) == 2
    torch.testing.assert_close(stepwise, parallel(model, tokens), rtol=0, atol=1e-4)


@torch.no_grad()
def test_beams_that_went_apart(model):
    """Two rows of one beginning, then each its own: nothing of one reaches the other."""
    first, second = rows(2)
    beams = torch.stack([first, torch.cat([first[:15], second[15:]])])
    state: dict = {}
    outputs = []
    for step in range(LENGTH):
        if step == 15:
            model.decoder.reorder_incremental_state_scripting(state, torch.tensor([0, 0]))
        current = beams if step >= 15 else beams[:1]
        logits, _ = model.decoder(current[:, : step + 1], incremental_state=state)
        outputs.append(logits[:, 0].log_softmax(-1).expand(2, -1))
    torch.testing.assert_close(torch.stack(outputs, 1), parallel(model, beams), rtol=0, atol=1e-4)
