"""What kopf is set to."""

from pathlib import Path

import kopf
import yaml

from pratique_operator.config import OperatorConfig
from pratique_operator.handlers import EXIT_SECONDS_MAX, configure
from pratique_operator.queue import STOP_SECONDS

CHART = Path(__file__).resolve().parents[3] / "charts" / "pratique"


def test_operator_is_gone_before_the_kubelet_kills_it() -> None:
    """With Recreate the next operator waits for this one: passes get their time, a call under way its timeout, and that is all."""
    settings = kopf.OperatorSettings()
    configure(settings, OperatorConfig())
    line = next(
        line
        for line in (CHART / "templates" / "deployment.yaml").read_text().splitlines()
        if "terminationGracePeriodSeconds" in line
    )
    grace: int = yaml.safe_load(line)["terminationGracePeriodSeconds"]
    assert settings.process.ultimate_exiting_timeout == EXIT_SECONDS_MAX
    assert STOP_SECONDS + OperatorConfig().request_timeout_seconds < EXIT_SECONDS_MAX < grace
