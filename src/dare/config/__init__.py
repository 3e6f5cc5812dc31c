"""Settings of the curriculum: one documented field per knob, presets as YAML (METHOD, top).

These modules import no model library: the curriculum reads them, and the trainer's own
configuration builds on them.
"""

from dare.config.curriculum import CurriculumConfig, acting_changes, load_preset, preset_names
from dare.config.estimation import BufferConfig, ColdStartConfig, EstimatorConfig, ReplayConfig
from dare.config.nested import nest
from dare.config.reads import ESTIMATORS
from dare.config.treatment import (
    AdvantageConfig,
    EasyConfig,
    HardConfig,
    SelectionConfig,
    TierConfig,
)

__all__ = [
    "ESTIMATORS",
    "AdvantageConfig",
    "BufferConfig",
    "ColdStartConfig",
    "CurriculumConfig",
    "EasyConfig",
    "EstimatorConfig",
    "HardConfig",
    "ReplayConfig",
    "SelectionConfig",
    "TierConfig",
    "acting_changes",
    "load_preset",
    "nest",
    "preset_names",
]
