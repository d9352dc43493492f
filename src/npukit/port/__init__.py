"""Port a project to NPUs and prove it by running: imports, its own tests, verify, and a report of what is left."""
