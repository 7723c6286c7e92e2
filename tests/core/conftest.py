"""Property tests try the same examples in every run; `--hypothesis-profile=explore` looks for new ones."""

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("steady")
