"""One stage's cache: blocks, leases, escrow, snapshots."""
