"""A checkpoint directory in the Hugging Face layout: found, checked and described without torch.

Weights are only indexed here (names, shapes, files); `weights.py` reads them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wavepp.core.keys import digest
from wavepp.stage.model.adapters.base import ModelAdapter, ModelShape
from wavepp.stage.model.adapters.table import adapter_for
from wavepp.stage.model.errors import CheckpointError, ModelNotFoundError

_HEADER_BYTES_MAX: Final = 100_000_000
"""The safetensors format's own limit."""

_FINGERPRINT_SAMPLES: Final = 16
_FINGERPRINT_SAMPLE_BYTES: Final = 4096

_WEIGHTS: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """One tensor of a checkpoint: where it is, and its size on disk."""

    file: Path
    shape: tuple[int, ...]
    bytes_on_disk: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that an adapter supports. `entries`: by the names on disk."""

    path: Path
    name: str
    config: Mapping[str, Any]
    adapter: ModelAdapter
    shape: ModelShape
    entries: Mapping[str, WeightEntry]
    eos_token_ids: tuple[int, ...]
    fingerprint: str


def resolve(model: str | Path, models_dir: Path | None = None) -> Path:
    """The directory of `model`: a path, or the name of one below `models_dir` ("owner/name" is "owner--name").

    Raises ModelNotFoundError.
    """
    tried = [Path(model).expanduser()]
    if models_dir is not None:
        tried.append(models_dir / str(model).replace("/", "--"))
    for path in tried:
        if (path / "config.json").is_file():
            return path
    raise ModelNotFoundError(
        f"no model {str(model)!r}: found no config.json in {' or '.join(str(p) for p in tried)}; give the directory "
        f"of a Hugging Face checkpoint, or fetch one with `wavepp model fetch`"
    )


def open_checkpoint(model: str | Path, models_dir: Path | None = None) -> Checkpoint:
    """Find and check a checkpoint; reads its configuration and the headers of its weight files.

    Raises ModelNotFoundError, UnsupportedModelError or CheckpointError.
    """
    path = resolve(model, models_dir)
    config = _read_json(path / "config.json")
    adapter = adapter_for(str(config.get("model_type", "")))
    adapter.check(config)
    files = _weight_files(path)
    entries: dict[str, WeightEntry] = {}
    identities = [json.dumps(config, sort_keys=True).encode()]
    for file in files:
        header = _read_header(file)
        identities.append(_identity(file, header))
        entries.update(_entries(file, header))
    return Checkpoint(
        path=path,
        name=path.resolve().name,
        config=config,
        adapter=adapter,
        shape=adapter.shape(config),
        entries=entries,
        eos_token_ids=_eos(path, config),
        fingerprint=digest("model", identities).hex()[:32],
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return value


def _weight_files(path: Path) -> list[Path]:
    if (path / _INDEX).is_file():
        names = sorted(set(_read_json(path / _INDEX).get("weight_map", {}).values()))
        files = [path / name for name in names]
    else:
        files = [path / _WEIGHTS]
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise CheckpointError(
            f"{path} has no {', '.join(missing[:4]) or 'weight files'}; only safetensors weights can be served"
        )
    return files


def _read_header(file: Path) -> bytes:
    """The JSON header, after checking that the file is as long as the header says."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(_HEADER_BYTES_MAX, size - 8):
            raise CheckpointError(f"{file} is not a safetensors file: header of {length} bytes in {size}")
        return stream.read(length)


def _entries(file: Path, header: bytes) -> dict[str, WeightEntry]:
    try:
        tensors = json.loads(header)
        found = {
            name: WeightEntry(file, tuple(info["shape"]), int(info["data_offsets"][1]) - int(info["data_offsets"][0]))
            for name, info in tensors.items()
            if name != "__metadata__"
        }
        end = max((int(i["data_offsets"][1]) for n, i in tensors.items() if n != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CheckpointError(f"{file}: damaged safetensors header: {error!r}") from error
    expected, size = 8 + len(header) + end, file.stat().st_size
    if size != expected:
        raise CheckpointError(f"{file} has {size} bytes, its header says {expected}: fetch the model again")
    return found


def _identity(file: Path, header: bytes) -> bytes:
    """What tells this weight file from another: name, size, header, and small samples of the data.

    The samples matter: two fine-tunes of one model have equal headers. Hashing all of it would take minutes for a
    large model; a stage must start in seconds.
    """
    size = file.stat().st_size
    parts = [file.name.encode(), str(size).encode(), header]
    data = 8 + len(header)
    span = max(size - data - _FINGERPRINT_SAMPLE_BYTES, 0)
    with file.open("rb") as stream:
        for i in range(_FINGERPRINT_SAMPLES):
            stream.seek(data + span * i // (_FINGERPRINT_SAMPLES - 1))
            parts.append(stream.read(_FINGERPRINT_SAMPLE_BYTES))
    return digest("weight file", parts)


def _eos(path: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    generation = path / "generation_config.json"
    value = _read_json(generation).get("eos_token_id") if generation.is_file() else None
    if value is None:
        value = config.get("eos_token_id")
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)
