"""Read what a user wrote: a file and words become a configuration, which is checked against the model and the data."""
