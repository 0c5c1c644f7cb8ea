"""Measuring: cost curves, workloads, arms that take turns, traces and their replay, a verdict in words."""
