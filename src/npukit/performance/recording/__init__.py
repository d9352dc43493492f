"""What runs inside of a profiled script: the profiler, the lines of its code, and what its operators depend on."""
