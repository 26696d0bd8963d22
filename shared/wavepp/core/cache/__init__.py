"""One stage's cache: blocks, leases, escrow, snapshots. The rest of the code imports `stage_cache` and `types` only."""
