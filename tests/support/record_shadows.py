"""Records shadows of things from moto, an independent implementation of AWS IoT's, for `test_shadow_recording.py`.

Run it with Python in an environment that has `moto[iot,iotdata]==5.2.5`; the project's has no moto. It writes
`tests/unit/recordings/shadows.json`: for each shadow, the requests and what moto answers after each.
"""

from __future__ import annotations

import json
import os
import random
from importlib.metadata import version
from pathlib import Path
from typing import Any

import boto3
from moto import mock_aws

FILE = Path(__file__).parents[1] / "unit/recordings/shadows.json"
SHADOWS, STEPS = 7, 10
VALUES = [1.5, -3, 2**53, 0, "ä", "", True, [1, "x", {"a": 1}], 1e-7]


def choose_value(rnd: random.Random, depth: int = 0) -> Any:
    """Returns an attribute's value. None removes the attribute, at any depth."""
    if rnd.random() < 0.2:
        return None
    if depth < 2 and rnd.random() < 0.3:
        return {rnd.choice("abc"): choose_value(rnd, depth + 1) for _ in range(rnd.randint(1, 2))}
    return rnd.choice(VALUES)


def choose_state(rnd: random.Random) -> Any:
    """Returns the state of a request: attributes of some sections. Now and then a whole section is removed."""
    if rnd.random() < 0.1:
        return {rnd.choice(["desired", "reported"]): None}
    return {
        section: {rnd.choice("abcd"): choose_value(rnd) for _ in range(rnd.randint(0, 3))}
        for section in ("desired", "reported")
        if rnd.random() < 0.7
    }


def record(data: Any, seed: int) -> dict[str, Any]:
    """Updates, reads and deletes a shadow. Every second one has a name."""
    rnd = random.Random(seed)
    names = {"thingName": f"lamp{seed}"} | ({"shadowName": "light"} if seed % 2 else {})
    steps: list[dict[str, Any]] = []
    for _ in range(STEPS):
        if steps and "answer" in steps[-1] and rnd.random() < 0.08:
            data.delete_thing_shadow(**names)
            steps.append({"request": "delete"})
            continue
        state = choose_state(rnd)
        data.update_thing_shadow(**names, payload=json.dumps({"state": state}))
        answer = json.loads(data.get_thing_shadow(**names)["payload"].read())
        answer["state"].pop("delta", None)  # the messages have none
        steps.append({"request": state, "answer": answer})
    return {**names, "steps": steps}


def main() -> None:
    os.environ |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "none")
    with mock_aws():
        things, data = (boto3.client(name, region_name="us-east-1") for name in ("iot", "iot-data"))
        for seed in range(SHADOWS):
            things.create_thing(thingName=f"lamp{seed}")
        shadows = [record(data, seed) for seed in range(SHADOWS)]
    calls = "iot-data: update_thing_shadow, get_thing_shadow, delete_thing_shadow"
    found = {"made_with": f"moto {version('moto')}, {calls}", "shadows": shadows}
    FILE.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
