"""Record what runs in a profiled script: the profiler, its lines of code, and the dependencies of its operators."""
