"""Java: what HotSpot compiled or interprets has its names, lines and call paths, without options for the JVM."""
