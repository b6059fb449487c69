"""Real LMCache engines in lockstep on CPUs, with real Valkey and faults on demand."""
