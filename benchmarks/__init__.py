"""Measure speed and memory on this machine, beside other projects."""
