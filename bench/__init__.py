"""Tenure's benchmarks: `make bench`. What each part measures is in docs/internals/benchmarks.md."""
