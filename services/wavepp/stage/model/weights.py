"""Reading a checkpoint's tensors: only those of the layers that a stage owns."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor

from wavepp.stage.model.checkpoint import Checkpoint
from wavepp.stage.model.errors import CheckpointError

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def owned_names(checkpoint: Checkpoint, first_layer: int, last_layer: int) -> tuple[str, ...]:
    """Names on disk that a stage with layers [first_layer, last_layer) needs: its layers, the embedding on the
    first stage (and on the last one when the head is tied to it), norm and head on the last."""
    shape = checkpoint.shape
    is_first, is_last = first_layer == 0, last_layer == shape.layers

    def owned(name: str) -> bool:
        layer = _LAYER.search(name)
        if layer:
            return first_layer <= int(layer[1]) < last_layer
        if "embed_tokens" in name:
            return is_first or (is_last and shape.tied_head)
        if name == HEAD and shape.tied_head:
            return False
        return is_last

    return tuple(sorted(name for name in checkpoint.entries if owned(name)))


class WeightReader:
    """Reads tensors by their names on disk and counts the bytes. A context manager: closes the files."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._files: dict[Path, Any] = {}
        self._stack = ExitStack()
        self.bytes_read = 0

    def __enter__(self) -> WeightReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._files.clear()

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds this tensor."""
        return name in self._checkpoint.entries

    def tensor(self, name: str, dtype: torch.dtype, shape: tuple[int, ...] | None = None) -> Tensor:
        """Raises CheckpointError when the tensor is missing or has another shape."""
        entry = self._entry(name)
        if shape is not None and entry.shape != shape:
            raise CheckpointError(
                f"{self._checkpoint.path}: tensor {name} is {list(entry.shape)}, config.json says {list(shape)}"
            )
        loaded: Tensor = self._file(entry.file).get_tensor(name)
        self.bytes_read += entry.bytes_on_disk
        return loaded.to(dtype)

    def lazy(self, name: str) -> Any:
        """A slice handle that is read when transformers' loader materialises it; counted as read."""
        entry = self._entry(name)
        self.bytes_read += entry.bytes_on_disk
        return self._file(entry.file).get_slice(name)

    def _entry(self, name: str) -> Any:
        entry = self._checkpoint.entries.get(name)
        if entry is None:
            raise CheckpointError(f"{self._checkpoint.path}: tensor {name} is missing from the checkpoint")
        return entry

    def _file(self, file: Path) -> Any:
        if file not in self._files:
            self._files[file] = self._stack.enter_context(safe_open(str(file), "pt"))
        return self._files[file]
