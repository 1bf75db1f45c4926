"""Planners of pipelines: layers of a chain to devices under a memory limit, and periodic schedules of them.

A library of pure functions; `core/pipelines/simulate_pipeline.py` judges what they return. After Shilova 2021, part
III.
"""
