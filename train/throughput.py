"""`python -m train.throughput …` is `python -m benchmarks.throughput …`, under the name it had before."""

import runpy

if __name__ == "__main__":
    runpy.run_module("benchmarks.throughput", run_name="__main__", alter_sys=True)
