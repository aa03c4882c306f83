"""Ways out: files, terminal and web page, each a module that turns a `Profile` into one format."""
