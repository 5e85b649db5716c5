"""The user's objects: `Store`, `Queue` and `Claim`.

They check arguments and record telemetry; a backend does the work.
"""
