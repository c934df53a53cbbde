"""Where the time of a submission goes: kernels, hardware counters, classes and hints."""
