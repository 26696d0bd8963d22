"""What the cache directory decides: hints, admission rounds, the ledger."""
