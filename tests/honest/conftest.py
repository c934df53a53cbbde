"""The files here are honest submissions: the judge reads and runs them, so pytest must not."""

collect_ignore_glob = ["*.py"]
