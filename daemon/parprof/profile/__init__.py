"""Facts to profiles: addresses become frames, counts become metrics by call path."""
