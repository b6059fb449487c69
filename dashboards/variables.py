"""The variables of the boards, and the links between them."""

from __future__ import annotations

from typing import Final

from dashboards.foreign import TTFT_COUNT
from dashboards.model import Variable
from dashboards.promql import ENGINE as IN_ENGINE
from dashboards.promql import FLEET
from exporters import catalog

_STEPS: Final = catalog.PAGE_COUNTERS["steps"].name


def _values(metric: str, label: str, matchers: str = "") -> str:
    return f"label_values({metric}{f'{{{matchers}}}' if matchers else ''}, {label})"


DATASOURCE: Final = Variable("datasource", "Data source")
CLUSTER: Final = Variable("cluster", "Cluster", _values(catalog.TICKS.name, "cluster"))
NAMESPACE: Final = Variable(
    "namespace", "Namespace", _values(catalog.TICKS.name, "namespace", 'cluster=~"$cluster"')
)
ENGINE: Final = Variable("engine", "Engine", _values(_STEPS, "engine", FLEET))
RANK: Final = Variable("rank", "Rank", _values(_STEPS, "rank", IN_ENGINE))
SHARD: Final = Variable("shard", "Shard", _values(catalog.SHARD_UP.name, "shard", FLEET))
MODEL: Final = Variable("model", "Model", _values(TTFT_COUNT, "model_name", FLEET))

FLEET_VARIABLES: Final = (DATASOURCE, CLUSTER, NAMESPACE)
ENGINE_VARIABLES: Final = (*FLEET_VARIABLES, ENGINE)
