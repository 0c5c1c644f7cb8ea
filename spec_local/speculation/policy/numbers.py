from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True, slots=True)
class Numbers:
    # guard
    stake: float = 1.0
    stake_rate: float = 0.012
    stake_most: float = 16.0
    cover: float = 1.0     # share of worst-case cost that must be covered
    earn: float = 1.0
    # speed
    speed_memory: float = 0.95
    speed_start: float = 1.3
    speed_rounds: float = 4.0
    # estimate
    level_step: float = 0.2
    level_first: float = 1.0
    level_memory: float = 0.99
    dlevel_step: float = 0.2
    dlevel_first: float = 1.0
    dlevel_memory: float = 0.99
    level_most: float = 4.0
    pull: float = 0.0
    least: float = 0.02
    most: float = 0.999
    margin: float = 0.0
    # drawn
    sure_share: float = 0.43
    histogram_memory: float = 0.985
    histogram_start: float = 20.0
    idle_memory: float = 0.98
    read_share: float = 0.5
    open_share: float = 0.4
    horizon: float = 32.0
    promise_weight: float = 0.2
    table_speed: float = 0.08
    table_rounds: int = 24
    stall: float = 1.5
    trial_first: int = 16
    trust_start: float = 0.999
    trust_least: float = 0.02
    trust_hazard: float = 0.0005
    loose: float = 0.1
    use_trust: bool = True
    use_bins: bool = True
    use_dlevel: bool = False
    bin_weight: float = 50.0
    bin_memory: float = 0.998
    trust_back: float = 0.0  # per idle token, towards start
    charge_mode: str = "promise"
    guard: bool = True

NUMBERS = Numbers()
