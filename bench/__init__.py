"""Tenure's benchmarks: `make bench`. docs/internals/benchmarks.md says what each part measures."""
