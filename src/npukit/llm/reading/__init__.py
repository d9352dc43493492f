"""Read what somebody wrote: a file and words become a configuration, held against the model and the data it names."""
