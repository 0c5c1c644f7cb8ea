"""Measuring: cost curves, workloads, traces, plain against speculative decoding."""
