"""What a user holds: `Store`, `Queue` and `Claim`. They check arguments and measure; a backend does the work."""
