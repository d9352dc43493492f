"""Language models: configuration, data, models, training."""
