"""Files whose code processes run: kept open, read without trust, without waiting for those that never answer."""
