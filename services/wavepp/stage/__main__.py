"""`python -m wavepp.stage`: one stage worker."""

from __future__ import annotations

from wavepp.infra.process import process_main
from wavepp.stage.app import run_stage
from wavepp.stage.config import StageConfig

if __name__ == "__main__":
    process_main(StageConfig, run_stage, name="wavepp.stage")
