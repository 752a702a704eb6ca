"""`python -m train.throughput …` is the command `python -m benchmarks.throughput …` under its other name."""

import runpy

if __name__ == "__main__":
    runpy.run_module("benchmarks.throughput", run_name="__main__", alter_sys=True)
