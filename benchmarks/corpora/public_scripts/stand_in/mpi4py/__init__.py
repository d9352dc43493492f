"""A stand-in for mpi4py where there is no MPI: one process, alone in its world."""
