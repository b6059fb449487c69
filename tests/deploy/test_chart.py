"""The chart by the real helm: names that fit the {rank} URL, valid objects, bad values refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from exporters.readers.shard_url import without_credentials
from patched_engine.resp.url import parse_endpoint
from runbooks.cli.exporter import shard_urls
from tests.deploy.helm_binary import helm, validator
from tests.deploy.real_server import started
from tests.runbooks.command_line import ROOT, stallscope

CHART = ROOT / "deploy" / "chart"
SHARDS = (1, 2, 8, 16)
KUBERNETES = "1.35"
SECURED = (
    *("auth.existingSecret=shards", "valkeySpec.tls.enabled=true"),
    "valkeySpec.tls.secretName=shards-tls",
)


def template(
    *settings: str, chart: Path = CHART, release: str = "cache"
) -> subprocess.CompletedProcess[str]:
    options = [word for setting in settings for word in ("--set", setting)]
    return subprocess.run(
        [helm(), "template", release, str(chart), "--namespace", "vllm", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def objects(*settings: str, chart: Path = CHART, release: str = "cache") -> list[dict]:
    made = template(*settings, chart=chart, release=release)
    assert made.returncode == 0, made.stderr
    return [item for item in yaml.safe_load_all(made.stdout) if item]


def of_kind(found: list[dict], kind: str) -> dict[str, dict]:
    return {item["metadata"]["name"]: item for item in found if item["kind"] == kind}


def with_engine(shards: int) -> tuple[str, ...]:
    ranks = f"engine.ranks={shards}"
    return (f"valkeySpec.shards={shards}", "engine.enabled=true", ranks)


def container(deployment: dict, name: str) -> dict:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return next(one for one in containers if one["name"] == name)


def environment_of(deployment: dict, name: str) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container(deployment, name)["env"]}


def test_lint() -> None:
    run = subprocess.run(
        [helm(), "lint", str(CHART)], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "WARNING" not in run.stdout


@pytest.mark.parametrize("shards", SHARDS)
def test_one_shard_a_rank_under_the_names_of_the_url(shards: int) -> None:
    found = objects(*with_engine(shards))
    names = [f"valkey-lmcache-{rank}" for rank in range(shards)]
    services = of_kind(found, "Service")
    deployments = of_kind(found, "Deployment")
    assert list(services) == names
    assert [name for name in deployments if name.startswith("valkey")] == names
    url = environment_of(deployments["cache-prefill"], "vllm")["LMCACHE_REMOTE_URL"]
    told = shard_urls([url], shards)
    hosts = [f"{name}.vllm.svc.cluster.local:6379" for name in names]
    assert [without_credentials(one).partition("://")[2] for one in told] == hosts
    exporter = container(deployments["cache-shards-exporter"], "stallscope")["args"]
    given = exporter[exporter.index("--valkey") + 1]
    assert shard_urls([given], int(exporter[exporter.index("--shards") + 1])) == told
    for name, deployment in ((n, deployments[n]) for n in names):
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}
        assert services[name]["spec"]["selector"].items() <= (
            deployment["spec"]["template"]["metadata"]["labels"].items()
        )
        assert of_kind(found, "PodDisruptionBudget")[name]


def test_the_environment_is_the_posts() -> None:
    prefill = of_kind(objects(*with_engine(8)), "Deployment")["cache-prefill"]
    environment = environment_of(prefill, "vllm")
    assert environment["LMCACHE_ENABLE_ASYNC_LOADING"] == "True"
    extra = json.loads(environment["LMCACHE_EXTRA_CONFIG"])
    assert extra == {"pcp_shard_store": True, "resp_num_threads": 32}
    assert environment["PYTHONHASHSEED"].isdigit()
    arguments = container(prefill, "vllm")["args"]
    connector = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    listed = [c["kv_connector"] for c in connector["kv_connector_extra_config"]["connectors"]]
    assert listed == ["NixlConnector", "LMCacheConnectorV1"]
    buckets = json.loads(arguments[arguments.index("--custom-histogram-buckets") + 1])
    assert {30, 70} <= set(buckets["time_to_first_token"])
    volume = {v["name"]: v for v in prefill["spec"]["template"]["spec"]["volumes"]}["pages"]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert volume["emptyDir"]["sizeLimit"]


def test_every_name_in_the_environment_is_read_by_somebody() -> None:
    config = pytest.importorskip("lmcache.v1.config")
    ours = "".join(
        path.read_text()
        for room in ("exporters", "patched_engine", "runbooks")
        for path in (ROOT / room).rglob("*.py")
    )
    found = of_kind(objects(*with_engine(2), *SECURED), "Deployment")
    fields = {
        f"LMCACHE_{name.upper()}" for name in config.LMCacheEngineConfig.from_defaults().to_dict()
    }
    for deployment in found.values():
        for one in deployment["spec"]["template"]["spec"]["containers"]:
            for name in (entry["name"] for entry in one.get("env", [])):
                if name not in ("PYTHONHASHSEED", "VALKEY_PASSWORD"):  # Python's; the command's
                    assert name in fields or f'"{name}"' in ours, name


def test_with_tls_the_engine_is_told_a_ca_that_is_there() -> None:
    prefill = of_kind(objects(*with_engine(2), *SECURED), "Deployment")["cache-prefill"]
    url = environment_of(prefill, "vllm")["LMCACHE_REMOTE_URL"]
    endpoint = parse_endpoint(url.replace("{rank}", "1"), environ={})
    assert endpoint.host == "valkey-lmcache-1.vllm.svc.cluster.local"
    assert endpoint.tls is not None
    mounts = {m["mountPath"]: m["name"] for m in container(prefill, "vllm")["volumeMounts"]}
    folder, _, file = endpoint.tls.ca.rpartition("/")
    volumes = {v["name"]: v for v in prefill["spec"]["template"]["spec"]["volumes"]}
    secret = volumes[mounts[folder]]["secret"]
    assert [item["path"] for item in secret["items"]] == [file]


def test_a_release_called_by_a_number_and_a_single_rank() -> None:
    found = objects(*with_engine(1), release="123")
    labels = [item["metadata"]["labels"] for item in found]
    assert {one["app.kubernetes.io/instance"] for one in labels} == {"123"}
    prefill = of_kind(found, "Deployment")["123-prefill"]
    # The sharded store refuses one rank: there is nothing to share out.
    extra = json.loads(environment_of(prefill, "vllm")["LMCACHE_EXTRA_CONFIG"])
    assert extra["pcp_shard_store"] is False


def test_a_chart_without_rules_and_boards_is_no_fault(tmp_path: Path) -> None:
    bare = tmp_path / "chart"
    shutil.copytree(CHART, bare, ignore=shutil.ignore_patterns("files"))
    found = objects(chart=bare)
    assert not of_kind(found, "PrometheusRule") and not of_kind(found, "ConfigMap")


def test_the_sidecars_options_are_real() -> None:
    found = of_kind(objects(*with_engine(8)), "Deployment")
    known = stallscope("exporter", "--help").out
    for name in ("cache-prefill", "cache-shards-exporter"):
        args = container(found[name], "stallscope")["args"]
        assert args[0] == "exporter"
        assert all(a in known for a in args if a.startswith("--")), args
    hook = container(found["cache-prefill"], "vllm")["lifecycle"]["preStop"]["exec"]["command"]
    options = re.findall(r"--[\w-]+", hook[-1])
    assert options and all(o in stallscope("bundle", "--help").out for o in options)


def test_a_shards_limit_leaves_room() -> None:
    shard = of_kind(objects("valkeySpec.maxMemory=100gb"), "Deployment")["valkey-lmcache-0"]
    limit = container(shard, "valkey")["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Mi")) >= 1.15 * 100 * 1024


def test_only_who_needs_the_shards_may_reach_them() -> None:
    policies = of_kind(objects(), "NetworkPolicy")
    sources = policies["valkey-lmcache"]["spec"]["ingress"][0]["from"]
    labels = [s["podSelector"]["matchLabels"] for s in sources]
    assert labels[0] == {"app": "vllm-prefill"}
    assert labels[1]["app.kubernetes.io/component"] == "shards-exporter"


def test_rules_and_boards_are_those_that_are_generated() -> None:
    found = objects()
    boards = of_kind(found, "ConfigMap")
    generated = sorted((ROOT / "dashboards" / "generated" / "boards").glob("*.json"))
    told = {name: text for item in boards.values() for name, text in item["data"].items()}
    assert {p.name: p.read_text() for p in generated} == told
    (rule,) = of_kind(found, "PrometheusRule").values()
    (path,) = (ROOT / "dashboards" / "generated" / "rules").glob("*.yaml")
    assert rule["spec"] == yaml.safe_load(path.read_text())


@pytest.mark.parametrize(
    "settings",
    [
        ("valkeySpec.shards=2",),
        with_engine(8),
        (*with_engine(2), *SECURED),
    ],
)
def test_the_objects_are_valid(settings: tuple[str, ...], tmp_path: Path) -> None:
    core = [i for i in objects(*settings) if "monitoring.coreos.com" not in i["apiVersion"]]
    path = tmp_path / "objects.yaml"
    path.write_text("---\n".join(yaml.safe_dump(item) for item in core))
    code = "import sys; from kubernetes_validate.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--strict", "-k", KUBERNETES, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(validator())}
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "ERROR" not in run.stdout


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("valkeySpec.shards=0",), "shards"),
        (("valkeySpec.shards=100",), "shards"),
        (("valkeySpec.shards=two",), "shards"),
        (("valkeySpec.maxMemory=150",), "maxMemory"),
        (("valkeySpec.maxMemory=150GB",), "maxMemory"),
        (("valkeySpec.ioThreads=0",), "ioThreads"),
        (("valkeySpec.memoryHeadroom=1.0",), "memoryHeadroom"),
        (("valkeySpec.maxMemroy=1gb",), "maxMemroy"),
        (("valkeySpec.namePrefix=Valkey_1",), "namePrefix"),
        (("valkeySpec.tls.enabled=true",), "secretName"),
        (("engine.enabled=true", "engine.ranks=4"), "engine.ranks is 4 and valkeySpec.shards is 8"),
        (("engine.ttftBuckets={1,2,3}",), "ttftBuckets"),
        (("engine.ttftBuckets={30,1,70}",), "engine.ttftBuckets: 1 comes after 30"),
        (("engine.hashSeed=random",), "hashSeed"),
        (("engine.hashSeed=99999999999",), "hashSeed"),  # Python does not start with it
        (("engine.memory=lots",), "memory"),
        (("engine.pagesSizeLimit=64",), "pagesSizeLimit"),
        (("valkeySpec.maxMemory=9999999999999gb",), "maxMemory"),
        (("valkeySpec.maxMemoryClients=0",), "maxMemoryClients"),
        (("valkeySpec.image=",), "image"),
        (("valkeySpec.port=70000",), "port"),
        (("monitoring.interval=15",), "interval"),
        (("networkPolicy.prefillSelector=null",), "prefillSelector"),
        (("networkPolicy.monitoringNamespace=a: b",), "monitoringNamespace"),
        (("valkeySpec=null",), "valkeySpec"),
    ],
)
def test_bad_values_are_refused_by_name(settings: tuple[str, ...], says: str) -> None:
    made = template(*settings)
    assert made.returncode != 0
    assert says in made.stderr
    assert made.stdout == ""


@pytest.mark.parametrize("password", [False, True])
def test_a_real_server_takes_the_shards_options(password: bool) -> None:
    """All that the chart gives it, at a port of ours and with a memory that is here."""
    settings = ["valkeySpec.maxMemory=64mb", "valkeySpec.ioThreads=2"]
    settings += ["auth.existingSecret=s"] if password else []
    deployment = of_kind(objects(*settings), "Deployment")["valkey-lmcache-0"]
    args = [str(a) for a in container(deployment, "valkey")["args"]]
    args = [a.replace("$(VALKEY_PASSWORD)", "word") for a in args]
    with started(args, "word" if password else None) as client:
        told = {name: client.config_get(name)[name] for name in ("maxmemory-policy", "save")}
        assert told == {"maxmemory-policy": "allkeys-lru", "save": ""}
        assert client.config_get("lazyfree-lazy-eviction") == {"lazyfree-lazy-eviction": "yes"}
