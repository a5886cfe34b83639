"""Finished runs in the trackers of others: MLflow, Weights & Biases, trackio, ClearML."""
