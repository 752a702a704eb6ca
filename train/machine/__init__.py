"""What this machine can do: devices, processes, compilation, memory and time."""
