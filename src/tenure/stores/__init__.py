"""What users hold: `Store` and `Queue`, written once, over backends that keep the contract."""
