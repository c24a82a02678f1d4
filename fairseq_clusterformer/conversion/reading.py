"""What the layers of a dense model read: as it runs, or from a disk.

Fitting looks at each layer many times. So the model runs once over each batch, and what its layers
read is kept in half precision; queries and keys are computed from it again.

Shape letters: B batch, H heads, N tokens, D model width, E head width.
"""

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from fairseq_clusterformer.attention import Batch
from fairseq_clusterformer.attention.projections import rotated
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.models.attention import SelfAttention
from fairseq_clusterformer.outputs import replaced, working
from fairseq_clusterformer.precision import full_float32

from .model import Place, attentions

#: what a model is given
Inputs = dict[str, Tensor]


class Read(NamedTuple):
    """What a layer's attention read in a batch."""

    x: Tensor  # its input [B, N, D]
    batch: Batch  # which tokens are real
    q: Tensor  # queries and keys of all heads, float32 [B, H, N, E], without positions
    k: Tensor

    def attended(self, attention: SelfAttention) -> tuple[Tensor, Tensor]:
        """Queries and keys as they meet, with their positions if these are rotary."""
        if attention.rotary is None:
            return self.q, self.k
        positions = self.batch.positions(self.x)
        return tuple(rotated(t, positions, attention.rotary) for t in (self.q, self.k))


def read(model: nn.Module, inputs: Inputs | Path) -> Callable[[Place], Read]:
    """What each layer of a clustered model (its layers may be of the kind full) reads of a batch,
    computed when it is asked for: of one that the model is run on, or of :func:`store`'s file."""
    layers = attentions(model)
    found = None if isinstance(inputs, Path) else _run(model, inputs)

    @torch.no_grad()
    @full_float32()
    def of_layer(place: Place) -> Read:
        x, batch = _stored(inputs, place) if found is None else found[place]
        attention, x, heads = layers[place], x.float().contiguous(), []
        for name in ("q", "k"):
            y = getattr(attention, f"{name}_proj")(x)
            if name in attention.convolutions:
                y = attention.convolutions[name](y, batch)
            y = attention.split(name, y)  # [B, H or J, N, E]
            heads.append(y.repeat_interleave(attention.num_heads // y.size(1), dim=1))
        return Read(x, batch, *heads)

    return of_layer


class _AllRead(Exception):
    """Ends a run of a model."""


@torch.no_grad()
def _run(model: nn.Module, inputs: Inputs) -> dict[Place, tuple[Tensor, Batch]]:
    layers, found = attentions(model), {}

    def hook(attention: SelfAttention, args: tuple) -> None:
        x, batch, *_ = args
        found[attention] = x.transpose(0, 1), batch if isinstance(batch, Batch) else Batch(batch)
        if len(found) == len(layers):  # what comes behind them is not asked for
            raise _AllRead

    with ExitStack() as hooks:
        hooks.enter_context(suppress(_AllRead))
        for attention in layers.values():
            hooks.enter_context(attention.register_forward_pre_hook(hook))
        model(**inputs)
    return {place: found[attention] for place, attention in layers.items()}


def _stored(file: Path, place: Place) -> tuple[Tensor, Batch]:
    side, number = place
    with safe_open(file, "pt") as tensors:
        padding = f"{side}.padding"
        mask = tensors.get_tensor(padding) if padding in tensors.keys() else None  # noqa: SIM118
        return tensors.get_tensor(f"{side}.{number}"), Batch(mask)


def store(model: nn.Module, batches: Sequence[Inputs], folder: Path) -> list[Path]:
    """Run a model over batches whose files are not there yet; return a file for each batch. Raises
    UserError: the disk has no room for them."""
    files = [folder / f"{number}.safetensors" for number in range(len(batches))]
    missing = [(i, f) for i, f in zip(batches, files, strict=True) if not f.is_file()]
    tokens = sum(next(iter(inputs.values())).numel() for inputs, _ in missing)
    needed = 2 * tokens * sum(a.embed_dim for a in attentions(model).values())
    if needed > (free := shutil.disk_usage(folder).free):
        problem = f"{tokens:,} tokens take {needed / 1e9:.1f} GB there"
        allowed = f"a disk with as much room (there are {free / 1e9:.1f} GB), or fewer --tokens"
        raise bad_option("OUT", folder.parents[1], allowed, problem)
    with progress(len(missing), "read") as bar:
        for inputs, file in missing:
            tensors = {}
            for (side, number), (x, batch) in _run(model, inputs).items():
                tensors[f"{side}.{number}"] = x.half().contiguous()
                if batch.padding_mask is not None:
                    tensors[f"{side}.padding"] = batch.padding_mask
            with replaced(file) as new:
                save_file(tensors, new)
            bar.update()
    return files


def progress(steps: int, name: str) -> tqdm:
    """A bar on a terminal, else a line every half minute."""
    how = {} if sys.stderr.isatty() else {"mininterval": 30.0, "delay": 30.0}
    return tqdm(total=steps, desc=name, unit="batch", **how)


@contextmanager
def kept_beside(
    out: Path, model: nn.Module, batches: Sequence[Inputs], plan: object
) -> Iterator[Path]:
    """A folder ``OUT.partial/parts/KEY`` that a run which was stopped leaves to the next one with
    the same model, batches and plan. It goes when the work is done, as do those of others."""
    key = hashlib.sha256(repr(plan).encode())
    for tensors in (model.state_dict(), *batches):
        for name, tensor in tensors.items():
            key.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            key.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    parts = out.absolute().with_name(f"{out.name}.partial") / "parts"
    with working(parts.parent, "OUT"):
        folder = parts / key.hexdigest()[:16]
        for other in {*parts.glob("*")} - {folder}:
            shutil.rmtree(other)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            yield folder
        except UserError:
            shutil.rmtree(parts)
            raise
        shutil.rmtree(parts)
