"""Simulated learners: the curriculum at any scale, without a model."""

from dare.simulation.learner import SimulatedLearner
from dare.simulation.population import Population, World
from dare.simulation.run import intrinsic_error, simulate

__all__ = ["Population", "SimulatedLearner", "World", "intrinsic_error", "simulate"]
