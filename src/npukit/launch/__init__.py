"""Start scripts and jobs on devices."""
