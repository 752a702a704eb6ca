"""Where does it run? Devices, processes, memory, compilation and signals."""
