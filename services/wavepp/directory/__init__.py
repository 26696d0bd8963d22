"""The cache directory: hints, admission rounds, the grant ledger."""
