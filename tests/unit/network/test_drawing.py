"""The drawing of a topology: on narrow and wide terminals, with one set and with twelve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from venus.network.topology import BrokerSet, Hop, SetView, Tier, TopologyView, draw, measure_hops


def set_view(name: str, tier: Tier, level: int, above: str = "", *hops: Hop, **more: object) -> SetView:
    known = {key: more.pop(key) for key in ("labels", "where", "addresses", "site") if key in more}
    return SetView(
        set=BrokerSet(name=name, tier=tier, level=level, **known),  # type: ignore[arg-type]
        pulls_from=above,
        businesses=hops,
        **more,  # type: ignore[arg-type]
    )


HQ = set_view("hq", Tier.CORE, 0, "", Hop(business="main", offset=1_204_551), addresses=("hq:7400",))
EUROPE = set_view(
    "europe",
    Tier.TANDEM,
    1,
    "hq",
    Hop(business="main", offset=1_204_550, behind=1, behind_s=0.2, hop_s=0.012, state="following"),
    addresses=("eu1:7400", "eu2:7400"),
)
LYON = set_view(
    "lyon",
    Tier.ACCESS,
    2,
    "europe",
    Hop(business="main", offset=990, behind=551, behind_s=75.0, state="cut off", reason="no answer from eu1:7400"),
    labels=frozenset({"eu"}),
)
NICE = set_view(
    "nice", Tier.ACCESS, 2, "europe", Hop(business="main", offset=5, behind=0, state="following", hop_s=2.5)
)
OSLO = set_view("oslo", Tier.ACCESS, 2, "europe", where=frozenset({"main: orders where region = 'NO'"}))


def test_a_set_shows_the_rows_that_it_has() -> None:
    assert draw(TopologyView((OSLO, EUROPE, HQ)), 100)[-1] == (
        "   └─ oslo: access · level 2 · rows of main: orders where region = 'NO'"
    )


def test_each_set_is_drawn_below_its_upstream() -> None:
    assert draw(TopologyView((NICE, LYON, EUROPE, HQ)), 100) == [
        "hq: core · level 0 · hq:7400",
        "│  main  1,204,551",
        "└─ europe: tandem · level 1 · eu1:7400, eu2:7400",
        "   │  main  1,204,550  1 behind for 0.2 s, 12 ms from the home",
        "   ├─ lyon: access · level 2 · labels eu",
        "   │     main  990  ! cut off, 551 behind for 75 s, no answer from eu1:7400",
        "   └─ nice: access · level 2",
        "         main  5  level, 2.5 s from the home",
    ]


def test_one_set_takes_two_lines() -> None:
    assert draw(TopologyView((HQ,)), 80) == ["hq: core · level 0 · hq:7400", "   main  1,204,551"]
    assert draw(TopologyView(()), 80) == []


@pytest.mark.parametrize("width", [24, 30, 40, 60, 80])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_left_out(width: int) -> None:
    tandems = [set_view(f"tandem-{n}", Tier.TANDEM, 1, "hq", *EUROPE.businesses) for n in range(3)]
    lower = [
        set_view(f"access-{n}", Tier.ACCESS, 2, f"tandem-{n % 3}", *LYON.businesses, *NICE.businesses) for n in range(8)
    ]
    view = TopologyView((HQ, *tandems, *lower))
    lines = draw(view, width)
    assert max(map(len, lines)) <= width
    text = " ".join(line.strip(" │├└─") for line in lines)
    for each in view.sets:
        assert f"{each.set.name}:" in text
    assert text.count("cut off") == 8
    assert text.count("1,204,550") == 3


def test_businesses_are_drawn_one_below_the_other() -> None:
    lines = draw(
        TopologyView(
            (set_view("hq", Tier.CORE, 0, "", Hop(business="a", offset=5), Hop(business="long", offset=12_345)),)
        ),
        80,
    )
    assert lines[1:] == ["   a          5", "   long  12,345"]


def test_sets_with_an_unknown_upstream_and_loops_are_still_drawn() -> None:
    circle = (set_view("a", Tier.CORE, 0, "b"), set_view("b", Tier.CORE, 0, "a"))
    lines = draw(TopologyView((*circle, set_view("x", Tier.ACCESS, 2, "gone"))), 80)
    assert [line.strip(" │├└─").partition(":")[0] for line in lines] == ["x", "a", "b"]


def test_a_problem_for_an_operator_is_named_once() -> None:
    lost = set_view("b:1", Tier.ACCESS, 1, trouble="no answer: refused", asked=False)
    view = TopologyView((HQ, EUROPE, LYON, lost), ("a loop",))
    assert view.complaints == (
        "a loop",
        "set lyon: main is cut off: no answer from eu1:7400",
        "set b:1: no answer: refused",
    )
    assert TopologyView((HQ, EUROPE, NICE)).complaints == ()
    assert "not asked" in "".join(draw(view, 80))


def test_each_hop_has_its_own_mean_and_deviation_and_each_set_its_load() -> None:
    """The times since the home add up: 40 ms to europe, 50 more to nice."""
    europe = Hop(business="main", offset=9, behind=0, hop_s=0.04, home_mean_s=0.04, home_variance=0.0009)
    nice = Hop(business="main", offset=9, behind=0, hop_s=0.1, home_mean_s=0.09, home_variance=0.0025)
    sets = measure_hops(
        [
            replace(HQ, loads=(0.2, 0.4)),
            replace(EUROPE, businesses=(europe,), loads=(0.5,)),
            replace(NICE, businesses=(nice,)),
        ]
    )
    lines = draw(TopologyView(sets), 120)
    assert lines[0] == "hq: core · level 0 · hq:7400 · load 30% ± 10% of 2 brokers"
    assert lines[2].endswith(" · load 50%")
    assert lines[3].endswith("level, 40 ms from the home, this hop 40 ms ± 30 ms")
    assert lines[5].endswith("level, 100 ms from the home, this hop 50 ms ± 40 ms")
    earlier = replace(nice, home_mean_s=0.01, home_variance=0.0001)
    (*_, unclear) = measure_hops([replace(EUROPE, businesses=(europe,)), replace(NICE, businesses=(earlier,))])
    assert (unclear.businesses[0].mean_s, unclear.businesses[0].deviation_s) == (0.0, 0.0), "clocks differ"
