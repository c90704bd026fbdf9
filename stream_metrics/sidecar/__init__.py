"""The shell around the fold: one loop that consumes, folds, and performs the effects in Kafka transactions."""
