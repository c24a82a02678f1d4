"""A bundle: one folder with all that a model needs, without pickle.

``bundle.json``        its format, the options of the training, and what made it
``model.safetensors``  parameters and buffers; a tensor of several names is in it once
dictionaries, the subword model and ``prepared.json``, as in the data folder that it stands for
"""

import json
from argparse import Namespace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError
from safetensors.torch import load_file

from fairseq_clusterformer.errors import bad_option

FORMAT = 1
MARK = "bundle.json"
WEIGHTS = "model.safetensors"
_ALLOWED = "a bundle that clusterformer bundle wrote"


def is_bundle(path: Path | str) -> bool:
    """Whether a folder bears the mark of a bundle."""
    return (Path(path) / MARK).is_file()


def read_bundle(folder: Path, option: str) -> dict:
    """A bundle in the form of a checkpoint of fairseq, on the CPU.

    Raises:
        UserError: files that are missing, damaged or newer than this version.
    """
    try:
        record = json.loads((folder / MARK).read_text(encoding="utf-8"))
        if record["format"] > FORMAT:
            raise bad_option(
                option,
                folder,
                "one of this version, or a newer fairseq_clusterformer",
                f"a bundle of format {record['format']}, and this version reads {FORMAT}",
            )
        weights = load_file(folder / WEIGHTS)
        weights |= {name: weights[kept] for name, kept in record["shared"].items()}
        cfg = _options(record["cfg"], record["namespaces"], folder)
        updates = record["updates"]
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        reason = f"damaged ({type(error).__name__}: {error})"
        raise bad_option(option, folder, _ALLOWED, reason) from None
    history = [{"num_updates": updates}]
    return {"cfg": cfg, "args": None, "model": weights, "optimizer_history": history}


def _options(sections: dict, namespaces: list[str], folder: Path) -> DictConfig:
    sections = {
        name: Namespace(**section) if name in namespaces else section
        for name, section in sections.items()
    }
    cfg = OmegaConf.create(sections, flags={"allow_objects": True})
    cfg.task.data = str(folder)
    return cfg
