"""The daemon's own parts: what it knows (model), how others see it (metrics, http, control, push), its limits."""
