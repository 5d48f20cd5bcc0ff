"""The operator's own settings come from the environment, and a wrong one is named."""

import pytest

from pratique_operator.config import ConfigError, OperatorConfig, read_config


def test_defaults_outside_a_cluster_ask_through_the_api_server() -> None:
    config = read_config({})
    assert (config.verdict_access, config.log_format, config.allow_file_sources) == ("Proxy", "text", False)


def test_defaults_inside_a_cluster_ask_the_pods() -> None:
    config = read_config({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert (config.verdict_access, config.log_format) == ("Direct", "json")


def test_values_are_read() -> None:
    config = read_config(
        {
            "PRATIQUE_SERVER_IMAGE": "a/b:1",
            "PRATIQUE_ALLOW_FILE_SOURCES": "true",
            "PRATIQUE_REQUIRE_SIGNATURE": "true",
            "PRATIQUE_SIGNATURE_KEYS": "-----BEGIN PUBLIC KEY-----\n",
            "PRATIQUE_WATCH_NAMESPACES": "a,b c",
            "PRATIQUE_OPERATOR_NAME": "blue",
            "PRATIQUE_RESYNC_SECONDS": "60",
            "PRATIQUE_METRICS_PORT": "0",
        }
    )
    assert config == OperatorConfig(
        server_image="a/b:1",
        allow_file_sources=True,
        require_signature=True,
        signature_keys="-----BEGIN PUBLIC KEY-----",
        watch_namespaces=("a", "b", "c"),
        operator_name="blue",
        resync_seconds=60.0,
        metrics_port=0,
        verdict_access="Proxy",
        log_format="text",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PRATIQUE_ALLOW_FILE_SOURCES", "maybe"),
        ("PRATIQUE_REQUIRE_SIGNATURE", "sometimes"),
        ("PRATIQUE_RESYNC_SECONDS", "soon"),
        ("PRATIQUE_RESYNC_SECONDS", "0"),
        ("PRATIQUE_HEALTH_PORT", "70000"),
        ("PRATIQUE_VERDICT_ACCESS", "Telepathy"),
        ("PRATIQUE_IMAGE_PULL_POLICY", "Sometimes"),
    ],
)
def test_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_config({name: value})
