"""C sources that run inside a target, for the modes that instrument it; `parprof.instruments` builds and runs them."""
