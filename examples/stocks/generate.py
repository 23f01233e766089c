"""Stock prices, ratings and acquisitions, made from a seed.

    python examples/stocks/generate.py FILE [--seed 1] [--companies 20] [--days 60]

One price a day for each company, now and then a rating or an acquisition: a stream of triples for the queries
of this folder, larger than those made by hand. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

BASE = "urn:kaicep:"
INTEGER = "http://www.w3.org/2001/XMLSchema#integer"
START = 1_325_376_000  # 2012-01-01
DAY = 86_400
AGENCIES = ("Moody", "Fitch")


def triple(subject: str, predicate: str, value: str | int) -> str:
    thing = f'"{value}"^^<{INTEGER}>' if isinstance(value, int) else f"<{BASE}{value}>"
    return f"<{BASE}{subject}> <{BASE}{predicate}> {thing} ."


def records(seed: int, companies: int, days: int) -> Iterator[dict[str, object]]:
    """Day after day: the prices, then what else happened."""
    chance = random.Random(seed)
    prices = {f"COMPANY{number}": chance.randrange(50, 200) for number in range(companies)}
    ratings = 0
    for day in range(days):
        for place, company in enumerate(prices):
            prices[company] = max(5, round(prices[company] * chance.uniform(0.82, 1.2)))
            moment = START + day * DAY + place
            yield {"triple": triple(company, "hasStockPrice", prices[company]), "start": moment}
            if chance.random() < 0.05:
                name, ratings = f"rating{ratings}", ratings + 1
                said = [
                    triple(name, "rater", chance.choice(AGENCIES)),
                    triple(name, "rated", company),
                    triple(name, "score", chance.randrange(1, 10)),
                ]
                yield {"triples": said, "start": moment}
            if chance.random() < 0.02:
                other = chance.choice([each for each in prices if each != company])
                yield {"triple": triple(company, "hasAcquired", other), "start": moment}


def write(file: Path, seed: int = 1, companies: int = 20, days: int = 60) -> None:
    """Writes the stream into a file."""
    lines = [json.dumps(each) + "\n" for each in records(seed, companies, days)]
    file.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Stock prices, ratings and acquisitions.")
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--companies", type=int, default=20)
    arguments.add_argument("--days", type=int, default=60)
    chosen = arguments.parse_args()
    write(chosen.file, chosen.seed, chosen.companies, chosen.days)
