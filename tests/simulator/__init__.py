"""Hundreds of real agents in one process: their clock, network and launchers are simulated, all drawn from a seed."""
