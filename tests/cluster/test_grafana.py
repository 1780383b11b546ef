"""The dashboard asks for what our gauges are called, and leaves none out."""

import json
import re
from pathlib import Path

from ray.util.metrics import Gauge

from dnformer.ray_runtime.gauges import Gauges

DASHBOARD = Path(__file__).parents[2] / "cluster" / "grafana" / "dnformer.json"


def gauges() -> dict[str, set[str]]:
    """The names of all gauges as Prometheus gets them, with their labels."""
    parts = vars(Gauges("run")).values()
    inside = [g for part in parts for g in (part.values() if isinstance(part, dict) else [part])]
    infos = [gauge.info for gauge in inside if isinstance(gauge, Gauge)]
    return {f"ray_{info['name']}": set(info["tag_keys"]) for info in infos}


def test_dashboard_shows_every_gauge_and_nothing_else():
    asked = set(re.findall(r"ray_\w+", DASHBOARD.read_text()))
    assert asked == gauges().keys()


def test_queries_select_by_labels_that_their_gauge_has():
    known = gauges()
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert queries
    for query in queries:
        parts = re.fullmatch(r"max by \(([\w, ]+)\) \((ray_\w+)\{(.*)\}\)", query)
        assert parts is not None, query
        by, name, selectors = parts.groups()
        labels = {*by.split(", "), *re.findall(r"(\w+)(?:=~|!=|=)", selectors)}
        assert labels <= known[name], query


def test_panels_have_their_own_ids_and_places():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for place in (panel["gridPos"] for panel in panels):
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
