"""What is installed is what was meant: one namespace, two source roots, nothing else at the top level."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = ("core", "codec", "infra", "sim", "profiles", "v1")
PACKAGES = (*SHARED, "router", "directory", "stage", "cli")
ENTRY_MODULES = tuple(f"wavepp.{name}.__main__" for name in ("router", "directory", "stage", "cli"))


def imported_from(path: Path | None) -> dict[str, str]:
    """Where a fresh interpreter finds each package, with `path` first if it is given."""
    code = f"""
import importlib, sys
{f"sys.path.insert(0, {str(path)!r})" if path else ""}
for name in {PACKAGES!r}:
    module = importlib.import_module("wavepp." + name)
    print(name, module.__file__)
for name in {ENTRY_MODULES!r}:
    importlib.import_module(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(out),
        str(ROOT),
    ]
    subprocess.run(command, check=True, timeout=100, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_imports_every_service(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    found = imported_from(tmp_path)
    assert set(found) == set(PACKAGES)
    assert all(Path(place).is_relative_to(tmp_path) for place in found.values()), found


def test_the_wheel_has_one_top_level_package_and_its_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name.split("/")[0]}
    assert tops == {"wavepp"}
    assert not [n for n in names if n.startswith("wavepp/") and n.count("/") == 1], "no loose modules in the namespace"
    assert any(n.startswith("wavepp/profiles/") and n.endswith(".json") for n in names)
    assert {n for n in names if n.endswith("py.typed")} == {f"wavepp/{name}/py.typed" for name in PACKAGES}


def test_the_editable_install_imports_every_service() -> None:
    found = imported_from(None)
    for name, place in found.items():
        root = "shared" if name in SHARED else "services"
        assert Path(place).is_relative_to(ROOT / root / "wavepp" / name)


def test_an_emulated_stage_needs_neither_torch_nor_ucx() -> None:
    code = """
import sys
import wavepp.stage.app, wavepp.stage.links.socket, wavepp.stage.model.emulated
print([m for m in ("torch", "transformers", "ucxx") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
