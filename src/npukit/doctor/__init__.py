"""Look at a machine and say what is wrong with it; read an error and say what it means."""
