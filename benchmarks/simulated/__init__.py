"""Simulated learners: the curriculum at any scale, without a model."""

from simulated.learner import SimulatedLearner
from simulated.population import Population, World
from simulated.run import intrinsic_error, simulate

__all__ = ["Population", "SimulatedLearner", "World", "intrinsic_error", "simulate"]
