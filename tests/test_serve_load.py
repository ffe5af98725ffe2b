"""10,000 mixed requests: every one answered, every answer the runtime's, and the memory flat."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest
from serve_process import ask, serving

import edge_albert
from edge_albert import export
from edge_albert.run import plain_answer

pytest.importorskip("uvicorn")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow
CLIENTS, ROUNDS, EACH = 8, 10, 125
GROWTH = 4 << 20  # bytes of RssAnon from the rounds 2 to 4 to the rounds 8 to 10, the median of each three
TEXTS = ["see you at seven?", "Call now and win a free phone!", "ok " * 12, "a long story, " * 30, "word " * 2000]
ERRORS = [
    (b"{", 400),
    (b'{"text": ""}', 422),
    (b'{"text": "' + b"long " * 600 + b'"}', 422),
    (b'{"texts": ' + json.dumps(["ok"] * 65).encode() + b"}", 422),
    (b" " * 1_100_000, 413),
]


@pytest.mark.parametrize("engine", ["onnx", "tflite"])
def test_ten_thousand_requests_without_growth_or_loss(tmp_path, engine):
    if engine == "tflite":
        pytest.importorskip("ai_edge_litert")
    bundle = tmp_path / "bundle"
    assert export.main(["--int8", "--format", engine, "--no-measure", "--output", str(bundle)]) == 0
    model = edge_albert.load(bundle, engine=engine, threads=1)
    with model.session:
        answers = [plain_answer(model.top(text, k=2, truncate=True)) for text in TEXTS]

    def request(rng: random.Random) -> tuple[bytes, int, object]:
        """Body, status and answer: half of them single texts, a third lists, the others errors."""
        kind, which = rng.randrange(6), rng.choices(range(len(TEXTS)), weights=(8, 8, 8, 2, 1), k=3)
        options = {"top": 2, "truncate": True}
        if kind < 3:
            body = {"text": TEXTS[which[0]], **options}
            return json.dumps(body).encode(), 200, {"answer": answers[which[0]]}
        if kind < 5:
            body = {"texts": [TEXTS[i] for i in which], **options}
            return json.dumps(body).encode(), 200, {"answers": [answers[i] for i in which]}
        body, status = rng.choice(ERRORS)
        return body, status, None

    def client(seed: int) -> int:
        rng, connection = random.Random(seed), service.connect()
        for _ in range(EACH):
            body, status, answer = request(rng)
            found = ask(connection, "POST", "/answer", body)
            assert found[0] == status
            assert answer is None or found[1] == answer
        connection.close()
        return EACH

    answered, anonymous = 0, []
    with serving(bundle, "--engine", engine) as service, ThreadPoolExecutor(CLIENTS) as pool:
        for number in range(ROUNDS):
            answered += sum(pool.map(client, range(number * CLIENTS, (number + 1) * CLIENTS)))
            anonymous.append(service.metrics()["edge_albert_anonymous_bytes"])
        counted = service.metrics()['edge_albert_answer_seconds_bucket{le="+Inf"}']
    assert answered == counted == 10_000
    first, last = median(anonymous[1:4]), median(anonymous[7:10])
    print(f"{engine}: anonymous memory {first / 1e6:.1f} MB in rounds 2 to 4, {last / 1e6:.1f} MB in rounds 8 to 10")
    assert last - first < GROWTH
