"""What the tests of Dockerfile, compose files and manifests share: reading them as a container or process would."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from wavepp.directory.config import DirectoryConfig
from wavepp.infra.config import ENV_PREFIX, ProcessConfig, resolve
from wavepp.infra.process import CANCEL_GRACE_S
from wavepp.router.config import RouterConfig
from wavepp.stage.config import StageConfig

ROOT: Final = Path(__file__).resolve().parents[1]
CONFIGS: Final[dict[str, type[ProcessConfig]]] = {
    "wavepp.router": RouterConfig,
    "wavepp.directory": DirectoryConfig,
    "wavepp.stage": StageConfig,
}
PROCESS_END_S: Final = CANCEL_GRACE_S + max(
    RouterConfig().stop_grace_s,
    DirectoryConfig().stop_grace_s,
    StageConfig(stage=0, stages=1, model="any").stop_grace_s,
)
"""A process that was told to stop has ended by then."""
MUST_AGREE: Final = (
    "cluster",
    "pipeline",
    "stages",
    "model",
    "block_tokens",
    "wave_tokens_max",
    "wave_requests_max",
    "dtype",
    "link",
    "ucx_profile",
)
"""Settings of stages that must be the same on all of them."""

RESET: Final = object()


class _Loader(yaml.SafeLoader):
    """Knows compose's `!reset`, and refuses keys that are there twice, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        assert len(keys) == len(set(keys)), f"a key is there twice: {keys} {node.start_mark}"
        return super().construct_mapping(node, deep)


_Loader.add_constructor("!reset", lambda _loader, _node: RESET)


def load_all(path: Path) -> list[dict[str, Any]]:
    """The YAML documents of a file."""
    return [document for document in yaml.load_all(path.read_text(), _Loader) if document is not None]


def load_one(path: Path) -> dict[str, Any]:
    """The only YAML document of a file."""
    (document,) = load_all(path)
    return document


def image_env() -> dict[str, str]:
    """What the image sets by ENV."""
    text = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    return dict(re.findall(rf"\b({ENV_PREFIX}\w+)=(\S+)", text))


def module_of(command: Sequence[str]) -> str:
    """The module that a container runs; it must exist, and be one of ours."""
    assert list(command[:2]) == ["python", "-m"], command
    module = command[2]
    assert importlib.util.find_spec(f"{module}.__main__") is not None, module
    assert module in CONFIGS, module
    return module


def config_of(command: Sequence[str], env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The configuration that a container's process would run with. Fails for a variable that it does not know, and
    for a value that it refuses."""
    config_class = CONFIGS[module_of(command)]
    known = {f"{ENV_PREFIX}{name.upper()}" for name in config_class.model_fields}
    unknown = {name for name in env if name.startswith(ENV_PREFIX)} - known
    assert not unknown, f"{command}: no such settings: {unknown}"
    with monkeypatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
            patch.delenv(name)
        for name, value in {**image_env(), **env}.items():
            patch.setenv(name, value)
        return resolve(config_class, list(command[3:]))


def assert_one_pipeline(stages: Sequence[Any]) -> None:
    """These configurations are the stages of one pipeline, all of them."""
    assert sorted(config.stage for config in stages) == list(range(len(stages)))
    assert {config.stages for config in stages} == {len(stages)}
    for name in MUST_AGREE:
        assert len({getattr(config, name) for config in stages}) == 1, name


def seconds(text: str) -> float:
    """A duration as compose writes it: 45s, 30m, 1m30s."""
    parts = re.findall(r"(\d+)(h|m|s)", text)
    assert "".join(number + unit for number, unit in parts) == text, text
    return float(sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts))
