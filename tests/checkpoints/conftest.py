"""Models and data that are shared with the tests of using models."""

from tests.use.conftest import *  # noqa: F403  fixtures
