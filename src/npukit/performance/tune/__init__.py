"""Find the settings with which a training runs fastest here, by short runs."""
