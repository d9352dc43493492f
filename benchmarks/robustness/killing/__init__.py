"""Jobs for `benchmarks resume kills`."""
