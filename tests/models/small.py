"""Small models, their task and their batches, which several tests share."""

from argparse import Namespace
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.criterions.fairseq_losses import (
    ClusterformerCrossEntropy,
    ClusterformerCrossEntropyConfig,
)
from fairseq_clusterformer.models.clusterformer_lm import (
    ClusterformerLanguageModel,
    ClusterformerLanguageModelConfig,
)
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader

#: a decoder of Llama's form, and what its relatives add
LLAMA = {
    **{"norm": "rms", "norm_eps": 1e-6, "activation_fn": "swiglu", "biases": "none"},
    **{"decoder_kv_heads": 2, "decoder_head_dim": 12, "qk_norm": True, "attention_sinks": 2},
    **{"positions": "rotary", "rotary_base": 5e3, "rotary_scaling": "1.2:1,1,0.9,0.6,0.4,0.3"},
    **{"no_scale_embedding": True, "share_decoder_input_output_embed": False},
}
#: attention of encoders
ENCODERS = {
    "full": {"encoder_attention": "full"},
    "window": {"encoder_attention": "window"},
    "chunk, handed on": {"encoder_attention": "neural"},
    "chunk, own centroids": {"encoder_attention": "neural", "own_centroids": True},
    "recent": {"encoder_attention": "neural", "encoder_cluster_rule": "recent"},
    "mixed": {"encoder_attention": "window+neural,full"},
}


def make_task(form: str = "text") -> SimpleNamespace:
    dictionary = symbol_dictionary("abcdefghijklmnopqrst")
    return SimpleNamespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        classes=["x", "y", "z"],
        is_pair=form != "text",
        is_siamese=form == "siamese",
        max_positions=lambda: 64,
    )


def sentences(task, lengths: list[int], side: str) -> Tensor:
    """Random sentences that end in </s>, padded on a side, int64 [B, longest]."""
    dictionary = task.source_dictionary
    rows = torch.full((len(lengths), max(lengths)), dictionary.pad())
    for row, length in zip(rows, lengths, strict=True):
        tokens = torch.randint(dictionary.nspecial, len(dictionary), (length,))
        tokens[-1] = dictionary.eos()
        row[slice(-length, None) if side == "left" else slice(length)] = tokens
    return rows


def make_lm(task=None, width: int = 32, **options) -> ClusterformerLanguageModel:
    values = {
        **{f"decoder_{name}_dim": width for name in ("embed", "input", "output")},
        **{"decoder_layers": 2, "decoder_ffn_embed_dim": 64, "decoder_attention_heads": 4},
        **{"decoder_normalize_before": True, "share_decoder_input_output_embed": True},
        **{"attention": "window+neural", "attention_window": 5, "num_clusters": 4},
        **{"max_target_positions": 128, "dropout": 0.0},
    }
    config = ClusterformerLanguageModelConfig(**{**values, **options})
    return ClusterformerLanguageModel.build_model(config, task or make_task())


def make_criterion(mu: float = 0.1, nu: float = 0.1, task_weight: float = 1.0):
    config = ClusterformerCrossEntropyConfig(
        clustering_loss_weight=mu,
        centroid_sorting_loss_weight=nu,
        task_loss_weight=task_weight,
        sentence_avg=False,
    )
    return ClusterformerCrossEntropy.build_criterion(config, make_task())


def gradients(model: nn.Module, criterion: nn.Module, *batches: dict) -> dict[str, Tensor]:
    """As fairseq's trainer has them: summed over batches, divided by the sum of sample sizes."""
    model.zero_grad()
    total = 0
    for batch in batches:
        loss, sample_size, _ = criterion(model, batch)
        loss.backward()
        total += sample_size
    return {
        name: p.grad / total
        for name, p in model.named_parameters()
        if p.grad is not None and p.grad.abs().max() > 1e-9
    }


def lm_sample(lengths: tuple[int, ...] = (40,) * 4) -> dict:
    """A batch of random rows, padded on the right, as fairseq hands it to a criterion."""
    rows = letters(len(lengths), max(lengths) + 1)
    padding = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    return {
        "net_input": {
            "src_tokens": rows[:, :-1].masked_fill(padding, 1),
            "src_lengths": torch.tensor(lengths),
        },
        "target": rows[:, 1:].masked_fill(padding, 1),
        "ntokens": sum(lengths),
    }


LETTERS = (4, 24)  # of the task's dictionary


def make_reader(**changes) -> ClusterformerReader:
    """In float64 and evaluation, five layers of which two go across windows."""
    values = {
        **{"encoder_layers": 5, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24},
        **{"encoder_attention_heads": 4, "cluster_layers": "1,3", "num_clusters": 4},
        **{"window_size": 7, "window_stride": 5, "window_positions": 20},
        **{"kmeans_bank_size": 200, "kmeans_interval": 1},
    }
    args = Namespace(**{**values, **changes})
    return ClusterformerReader.build_model(args, make_task()).double().eval()


def letters(*shape: int) -> Tensor:
    return torch.randint(*LETTERS, shape)


def ragged(pad: int) -> tuple[Tensor, Tensor, list[int], list[int]]:
    """Questions and documents, padded behind, and their lengths; one document has no token."""
    asked, lengths = [4, 1, 3, 2, 4], [23, 40, 5, 0, 12]
    question, document = letters(5, 4), letters(5, 40)
    for row in range(5):
        question[row, asked[row] :] = pad
        document[row, lengths[row] :] = pad
    return question, document, asked, lengths


class Largest(TorchDispatchMode):
    """Notes how many bytes the largest tensor has that is made."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.untyped_storage().nbytes())
        return out
