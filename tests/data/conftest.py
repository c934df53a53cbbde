"""The files here are data: they run through the loader only, so pytest must not import them."""

collect_ignore_glob = ["*.py"]
