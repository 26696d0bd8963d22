"""Generate shared/wavepp/v1 from proto/wavepp/v1; with --check, say whether what is committed is current."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "proto"
TARGET = ROOT / "shared"
BIN = Path(sys.executable).parent
"""The plugins are those of this interpreter's environment, whether it is activated or not."""


def generate(out: Path) -> dict[str, bytes]:
    """Generate into `out`; returns what was written, by path below `out`."""
    protos = sorted(str(p) for p in SOURCES.glob("wavepp/v1/*.proto"))
    code = protoc.main(
        [
            "protoc",
            f"--proto_path={SOURCES}",
            *(f"--plugin={name}={BIN / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")),
            *(f"--{plugin}_out={out}" for plugin in ("python", "grpc_python")),
            *(f"--{plugin}_out=quiet:{out}" for plugin in ("mypy", "mypy_grpc")),
            *protos,
        ]
    )
    if code != 0:
        sys.exit(f"protoc failed with exit code {code}")
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*.py*")) if p.is_file()}


def committed() -> dict[str, bytes]:
    """The generated files in the tree."""
    folder = TARGET / "wavepp" / "v1"
    return {
        str(p.relative_to(TARGET)): p.read_bytes()
        for p in sorted(folder.iterdir())
        if "_pb2" in p.name and p.suffix in {".py", ".pyi"}
    }


def main() -> None:
    """Write the files, or compare them."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
    present = committed()
    if "--check" in sys.argv[1:]:
        stale = sorted(k for k in fresh.keys() | present.keys() if fresh.get(k) != present.get(k))
        if stale:
            sys.exit(f"generated code is not current: {', '.join(stale)}; run `make proto` and commit")
        return
    for name in present.keys() - fresh.keys():
        (TARGET / name).unlink()
    for name, content in fresh.items():
        (TARGET / name).parent.mkdir(parents=True, exist_ok=True)
        (TARGET / name).write_bytes(content)


if __name__ == "__main__":
    main()
