"""Builds the package; all its metadata stands in pyproject.toml."""

from setuptools import setup

setup()
