"""Property tests run under the profiles of the core's tests."""

from tests.core import conftest as profiles

__all__ = ["profiles"]
