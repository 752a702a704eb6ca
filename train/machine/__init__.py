"""The machine: devices, processes, compilation, memory and time."""
