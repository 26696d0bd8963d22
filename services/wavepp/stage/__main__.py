"""`python -m wavepp.stage`: one stage worker."""

from __future__ import annotations

import os
import signal

if __name__ == "__main__":
    # Before the imports, which take seconds: without a handler the first process of a container ignores the signal.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

    from wavepp.infra.process import process_main
    from wavepp.stage.app import run_stage
    from wavepp.stage.config import StageConfig

    process_main(StageConfig, run_stage, name="wavepp.stage")
