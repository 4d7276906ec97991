"""What the server measures of itself: Prometheus' text format, the access log, drift of every domain."""

import io
import json
import logging
import re
import time
from collections.abc import Iterator

import numpy as np
import pytest

import domainwise as dw
from domainwise.serving import Limits, create_app
from domainwise.serving.domains import OTHER
from domainwise.serving.metrics import Gauge, Histogram, Measured
from served import CLASSES, DOMAINS, SIZE, Client, png, served, small_data, small_model

SAMPLE = re.compile(r'^[a-z_]+(\{([a-z]+="([^"\\\n]|\\["\\n])*",?)+\})? (\+Inf|-?\d+(\.\d+)?(e[+-]?\d+)?)$')
"""Of the exposition format, version 0.0.4."""


@pytest.fixture(scope="module")
def model() -> dw.Model:
    return small_model()


@pytest.fixture
def client(model: dw.Model) -> Iterator[Client]:
    with served(create_app(model, limits=Limits(drift_images=40, drift_share=1, drift_domains=3))) as client:
        yield client


def test_samples_are_written_as_the_format_asks() -> None:
    counter = Measured("a_total", "Meaning.", "name", "other")
    counter.add('x"\\\n\ud800', "", amount=2.5)
    counter.add("b", "c")
    assert counter.text() == (
        "# HELP a_total Meaning.\n# TYPE a_total counter\n"
        'a_total{name="b",other="c"} 1\na_total{name="x\\"\\\\\\n?",other=""} 2.5\n'
    )
    assert Gauge("g", "Now.", now=lambda: 3).text() == "# HELP g Now.\n# TYPE g gauge\ng 3\n"
    histogram = Histogram("h", "Sizes.", (1, 2), "path")
    for value in (0.5, 1, 1.5, 9):
        histogram.observe(value, "/")
    assert histogram.text().splitlines()[2:] == [
        'h_bucket{path="/",le="1"} 2',
        'h_bucket{path="/",le="2"} 3',
        'h_bucket{path="/",le="+Inf"} 4',
        'h_sum{path="/"} 12',
        'h_count{path="/"} 4',
    ]


def test_requests_errors_batches_and_classes_are_counted(client: Client, model: dw.Model) -> None:
    images = small_data(seed=3).images[:8].numpy()
    assert client.form([png(one) for one in images], "/predict?domain=north").status == 200
    client.post(b"hello")
    client.get("/nowhere")
    text = client.get("/metrics").body.decode()
    assert all(SAMPLE.match(line) or line.startswith("# ") for line in text.splitlines())
    metric = client.metric
    assert metric('domainwise_requests_total{path="/predict",status="200"}') == 1
    assert metric('domainwise_requests_total{path="/predict",status="415"}') == 1
    assert metric('domainwise_requests_total{path="other",status="404"}') == 1
    assert (
        metric('domainwise_errors_total{code="no_image"}')
        == metric('domainwise_errors_total{code="no_such_path"}')
        == 1
    )
    assert metric('domainwise_request_seconds_count{path="/predict"}') == 2
    assert metric("domainwise_batch_images_sum") == 8 and metric("domainwise_queue_images") == 0
    assert metric('domainwise_domain_images_total{domain="north"}') == 8
    counted = {name: metric(f'domainwise_predictions_total{{class="{name}"}}') for name in CLASSES}
    assert counted == {name: list(model.predict(images)).count(name) for name in CLASSES}


def wait_for_tests(client: Client, domain: str) -> None:
    until = time.monotonic() + 30
    while not client.metric(f'domainwise_drift_tests_total{{domain="{domain}"}}'):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_drift_is_counted_for_each_domain(client: Client) -> None:
    data = small_data(seed=4, count=60)
    usual = data.images[data.rows(DOMAINS[0])[:40]].numpy()
    random = np.random.default_rng(5).integers(0, 256, (40, 3, SIZE, SIZE), dtype=np.uint8)
    for start in range(0, 40, 20):
        client.form([png(one) for one in usual[start : start + 20]], "/predict?domain=camera+1")
        client.form([png(one) for one in random[start : start + 20]], "/predict?domain=%22%0Anew")
    names = {"camera 1": 0, '\\"\\nnew': 1}
    for domain, drifted in names.items():
        wait_for_tests(client, domain)
        assert client.metric(f'domainwise_drift_detected_total{{domain="{domain}"}}') == drifted
    usual_score, new_score = (client.metric(f'domainwise_drift_score{{domain="{name}"}}') for name in names)
    assert 0 <= usual_score < new_score <= 2


def test_clients_cannot_name_domains_without_end(client: Client) -> None:
    for number in range(6):
        assert client.post(png(np.zeros((3, 9, 9), np.uint8)), f"/predict?domain=d{number}{'x' * 500}").status == 200
    assert client.metric(f'domainwise_domain_images_total{{domain="{OTHER}"}}') == 3
    text = client.get("/metrics").body.decode()
    assert len(set(re.findall(r'domain_images_total\{domain="([^"]*)"', text))) == 4
    assert max(map(len, text.splitlines())) < 200


def test_a_line_of_the_access_log_has_no_content_and_cannot_be_forged(client: Client) -> None:
    access, written = logging.getLogger("domainwise.serving.access"), io.StringIO()
    handler = logging.StreamHandler(written)
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    try:
        image = png(np.zeros((3, 9, 9), np.uint8))
        reply = client.post(image, "/predict?domain=secret")
        client.post(b"hello", "/a%0Ab%1b[31m")
        client.get("/health")
    finally:
        access.removeHandler(handler)
    lines = written.getvalue().splitlines()
    assert len(lines) == 2 and all(line.isprintable() and "secret" not in line for line in lines)
    good, bad = map(json.loads, lines)
    assert good.keys() == {"time", "request", "client", "method", "path", "status", "ms", "bytes", "images"}
    assert (good["path"], good["status"], good["images"], good["bytes"]) == ("/predict", 200, 1, len(image))
    assert good["request"] == reply.headers["x-request-id"] and good["client"] == "127.0.0.1"
    assert (bad["path"], bad["status"], bad["error"]) == ("/a\nb\x1b[31m", 404, "no_such_path")
