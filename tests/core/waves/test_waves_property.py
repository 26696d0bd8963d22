"""The wave planner under arbitrary use: its promises, and a naive planner that must give the same waves."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from wavepp.core.ids import GrantId, StageIndex
from wavepp.core.waves.cost import StageCost
from wavepp.core.waves.cost_policy import CostPolicy
from wavepp.core.waves.planner import WavePlanner
from wavepp.core.waves.policies import MpuPolicy, QueueView, StaticPolicy, WavePolicy
from wavepp.core.waves.target import Cutting, WaveSize
from wavepp.core.waves.time_packing import TimeBudget
from wavepp.core.waves.types import PlannedWave, PlannerConfig, StepTime

A = 4  # alignment, so that small numbers reach all cases


class Sequence(WavePolicy):
    """A policy that goes through a list of budgets, again and again."""

    def __init__(self, budgets: list[int]) -> None:
        self.budgets = budgets
        self.calls = 0

    def budget(self, view: QueueView) -> int:
        self.calls += 1
        return self.budgets[(self.calls - 1) % len(self.budgets)]


@st.composite
def configs(draw: st.DrawFn) -> PlannerConfig:
    return PlannerConfig(
        stages=draw(st.integers(1, 4)),
        wave_tokens_max=A * draw(st.integers(1, 12)),
        wave_tokens_min=draw(st.integers(1, 30)),
        block_tokens=draw(st.sampled_from([1, 2, 4])),
        alignment_tokens=A,
        wave_requests_max=draw(st.integers(1, 6)),
        ring=draw(st.integers(0, 8)),
        fixed_grid=draw(st.booleans()),
        chunk_share_max=draw(st.sampled_from([1.0, 1.0, 0.5, 0.1])),
        snapshot_interval_tokens=draw(st.sampled_from([0, 0, 1, 8, 30])),
        fill_ahead_max=draw(st.integers(0, 4)),
    )


@st.composite
def policies(draw: st.DrawFn, config: PlannerConfig) -> tuple[WavePolicy, WavePolicy]:
    """Two equal policies: the planner and the naive one must not share state."""
    kind = draw(st.sampled_from(["static", "mpu", "sequence"]))
    if kind == "static":
        return StaticPolicy(config.wave_tokens_max), StaticPolicy(config.wave_tokens_max)
    if kind == "mpu":
        first, second = (
            MpuPolicy(
                stages=config.stages,
                wave_tokens_max=config.wave_tokens_max,
                wave_tokens_min=config.wave_tokens_min,
                block_tokens=config.block_tokens,
            )
            for _ in range(2)
        )
        return first, second
    budgets = draw(st.lists(st.integers(-1, 60), min_size=1, max_size=5))
    return Sequence(budgets), Sequence(budgets)


# ---- a naive planner ---------------------------------------------------------------------------------------


@dataclass
class NaiveRequest:
    grant: int
    reused: int
    position: int
    end: int
    cuts: set[int]

    @property
    def remaining(self) -> int:
        return self.end - self.position


@dataclass
class NaivePlanner:
    """The rules of packing written down again, in lists and one token at a time, as slowly as it takes."""

    config: PlannerConfig
    policy: WavePolicy
    prefill: list[NaiveRequest] = field(default_factory=list)
    decode: list[tuple[int, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    decode_went: bool = False

    def add(self, grant: int, start: int, end: int) -> None:
        cuts = {end}
        if self.config.snapshot_interval_tokens:
            cuts |= {p for p in range(start + 1, end + 1) if p % A == 0 and p + A > end}
        if self.config.fixed_grid:
            cuts |= {p for p in range(start + 1, end + 1) if p % self.config.wave_tokens_max == 0}
        self.prefill.append(NaiveRequest(grant, start, start, end, cuts))

    def drop(self, grant: int) -> None:
        self.prefill = [request for request in self.prefill if request.grant != grant]
        self.decode = [(other, position) for other, position in self.decode if other != grant]

    def plan(self, in_flight: int, in_stage0: int) -> tuple[list[tuple[int, int, int]], list[int]] | None:
        if in_flight >= self.config.ring or not (self.prefill or self.decode or self.ends):
            return None
        if (self.prefill or self.decode) and in_stage0 > 1:
            return None
        slots = self.config.wave_requests_max
        decode_slots = slots
        if self.prefill and slots > 1:
            decode_slots = slots - 1
        elif self.prefill and self.decode_went:
            decode_slots = 0
        chunks = []
        if self.prefill or self.decode:
            chunks = [(grant, position, 1) for grant, position in self.decode[:decode_slots]]
            self.decode_went = bool(chunks)
            self.decode = self.decode[len(chunks) :]
            if self.prefill and len(chunks) < slots:
                chunks += self.pack(in_flight, slots - len(chunks))
        ends, self.ends = self.ends, []
        return chunks, ends

    def pack(self, in_flight: int, slots: int) -> list[tuple[int, int, int]]:
        config = self.config
        needed = config.stages - in_flight
        if needed > 0:
            slots = min(slots, (len(self.prefill) + needed - 1) // needed)
        sizes = sorted(request.remaining for request in self.prefill)
        budget = self.policy.budget(QueueView(sizes, sum(sizes), in_flight))
        budget = max(A, min(budget, config.wave_tokens_max))
        share = budget
        if config.chunk_share_max < 1 and len(self.prefill) > 1:
            share = max(A, int(budget * config.chunk_share_max))
        smallest_fragment = min(max(min(config.wave_tokens_min, config.wave_tokens_max // 2), budget / 2), share)
        chunks: list[tuple[int, int, int]] = []
        left = budget
        passed = 0
        for request in list(self.prefill):
            if len(chunks) == slots or left <= 0 or passed > config.fill_ahead_max:
                break
            forced = min(p for p in request.cuts if p > request.position)
            room = min(left, share)
            if config.fixed_grid:
                ends_at = forced if not chunks or forced - request.position <= left else None
            elif forced - request.position <= room:
                ends_at = forced
            elif chunks and left < smallest_fragment:
                ends_at = None
            else:
                ends_at = max(
                    (p for p in range(request.position + 1, request.position + room + 1) if p % A == 0),
                    default=None,
                )
            if ends_at is None:
                passed += 1
                continue
            chunks.append((request.grant, request.position, ends_at - request.position))
            left -= ends_at - request.position
            request.position = ends_at
        self.prefill = [request for request in self.prefill if request.remaining]
        return chunks


# ---- the promises ------------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """What happened to each grant, as told by the waves."""

    config: PlannerConfig
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    decodes_due: dict[int, int] = field(default_factory=dict)
    snapshot_at: dict[int, int] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    end_asked: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)

    def check(self, wave: PlannedWave, waiting_before: int) -> None:
        config = self.config
        grants = [chunk.grant for chunk in wave.chunks]
        assert len(set(grants)) == len(grants) <= config.wave_requests_max
        assert len(set(wave.ended)) == len(wave.ended)
        assert not set(wave.ended) & (set(grants) | self.ended)
        assert set(wave.ended) <= self.end_asked
        self.ended |= set(wave.ended)
        kinds = [chunk.decode for chunk in wave.chunks]
        assert kinds == sorted(kinds, reverse=True)
        prefill = [chunk for chunk in wave.chunks if not chunk.decode]
        assert sum(chunk.length for chunk in prefill) <= config.wave_tokens_max
        if waiting_before and config.wave_requests_max > 1:
            assert prefill, "prefill waits, so it makes progress"
        for chunk in wave.chunks:
            grant = chunk.grant
            assert chunk.length >= 1
            assert grant not in self.ended | self.cancelled | self.end_asked
            if chunk.decode:
                assert (chunk.start, chunk.length, chunk.last, chunk.snapshot) == (
                    self.decodes_due.pop(grant),
                    1,
                    True,
                    False,
                )
                continue
            _, end = self.spans[grant]
            assert chunk.start == self.at[grant]
            stops_at = chunk.start + chunk.length
            self.at[grant] = stops_at
            assert stops_at <= end
            assert chunk.last == (stops_at == end)
            assert chunk.last or stops_at % A == 0
            grid = config.wave_tokens_max
            tail = end // A * A
            if config.fixed_grid:
                assert chunk.start // grid == (stops_at - 1) // grid
                assert chunk.last or stops_at % grid == 0 or (config.snapshot_interval_tokens and stops_at == tail)
            if not config.snapshot_interval_tokens:
                assert not chunk.snapshot
            else:
                assert chunk.start >= tail or stops_at <= tail, "the tail is cut where the snapshot is"
                far = stops_at - self.snapshot_at[grant] >= config.snapshot_interval_tokens
                assert chunk.snapshot == (stops_at % A == 0 and (far or stops_at == tail))
                if chunk.snapshot:
                    self.snapshot_at[grant] = stops_at


OPERATIONS = ["add", "add", "plan", "plan", "plan", "decode", "cancel", "end"]


def tell_a_story(
    data: st.DataObject,
    planner: WavePlanner,
    config: PlannerConfig,
    plan: Callable[[int, int], PlannedWave | None],
    ledger: Ledger,
    naive: NaivePlanner | None,
) -> None:
    """Requests come, decode, are cancelled and end while waves are planned; then all that waits goes out."""
    keep_alive: dict[int, bool] = {}
    for _ in range(data.draw(st.integers(1, 40))):
        operation = data.draw(st.sampled_from(OPERATIONS))
        if operation == "add":
            grant = len(keep_alive)
            start = data.draw(st.integers(0, 10)) * A + data.draw(st.sampled_from([0, 0, 0, 1]))
            end = start + data.draw(st.integers(1, 150))
            keep_alive[grant] = data.draw(st.booleans())
            planner.add(GrantId(grant), start, end, keep_alive[grant])
            if naive:
                naive.add(grant, start, end)
            ledger.spans[grant] = (start, end)
            ledger.at[grant] = ledger.snapshot_at[grant] = start
        elif operation == "plan":
            in_flight = data.draw(st.integers(0, config.ring))
            plan(in_flight, data.draw(st.integers(0, min(2, in_flight))))
        elif operation == "decode":
            idle = [
                grant
                for grant, alive in keep_alive.items()
                if alive and ledger.at[grant] == ledger.spans[grant][1]
                if grant not in ledger.decodes_due and grant not in ledger.end_asked | ledger.cancelled
            ]
            for grant in idle[: data.draw(st.integers(1, 4))]:
                position = ledger.spans[grant][1] + data.draw(st.integers(0, 5))
                planner.add_decode(GrantId(grant), position)
                if naive:
                    naive.decode.append((grant, position))
                ledger.decodes_due[grant] = position
        elif keep_alive:
            grant = data.draw(st.sampled_from(sorted(keep_alive)))
            if naive:
                naive.drop(grant)
            ledger.decodes_due.pop(grant, None)
            if operation == "cancel":
                planner.cancel(GrantId(grant))
                ledger.cancelled.add(grant)
            else:
                first = grant not in ledger.end_asked
                assert planner.end(GrantId(grant)) is first
                if naive:
                    naive.ends += [grant] * first
                ledger.end_asked.add(grant)

    # Then everything that waits goes out, in a bounded number of waves.
    tokens_left = planner.waiting_tokens
    decodes_left = len(ledger.decodes_due)
    waves = 0
    while planner.has_work():
        assert plan(0, 0) is not None
        waves += 1
        assert waves <= tokens_left + decodes_left + 1
    event(f"waves to drain: {min(waves, 10)}")
    assert plan(0, 0) is None
    assert ledger.ended == ledger.end_asked
    assert not ledger.decodes_due
    for grant, (_, end) in ledger.spans.items():
        assert ledger.at[grant] == end or grant in ledger.cancelled | ledger.end_asked


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_planner_keeps_its_promises_and_plans_as_the_naive_one(data: st.DataObject) -> None:
    config = data.draw(configs())
    policy, same_policy = data.draw(policies(config))
    planner, naive, ledger = WavePlanner(config, policy), NaivePlanner(config, same_policy), Ledger(config)

    def plan(in_flight: int, in_stage0: int) -> PlannedWave | None:
        waiting = planner.waiting_requests
        wave = planner.plan(in_flight, in_stage0)
        planner.validate()
        expected = naive.plan(in_flight, in_stage0)
        if wave is None:
            assert expected is None
            return None
        assert ([(c.grant, c.start, c.length) for c in wave.chunks], list(wave.ended)) == expected
        ledger.check(wave, waiting)
        return wave

    tell_a_story(data, planner, config, plan, ledger, naive)


class Times(WavePolicy):
    """Goes through a list of targets of time, cut anywhere or not, again and again."""

    def __init__(self, sizes: list[WaveSize], cost: StageCost) -> None:
        self.sizes = sizes
        self.cost = cost
        self.calls = 0

    def budget(self, view: QueueView) -> TimeBudget:
        self.calls += 1
        return TimeBudget(self.sizes[(self.calls - 1) % len(self.sizes)], self.cost)


@st.composite
def time_policies(draw: st.DrawFn, config: PlannerConfig) -> WavePolicy:
    cost = StageCost(
        draw(st.sampled_from([0.0, 1.0, 30.0])), draw(st.sampled_from([1e-3, 1.0])), draw(st.sampled_from([0.0, 0.02]))
    )
    if draw(st.booleans()):
        priors = draw(st.sampled_from([None, [cost] * config.stages]))
        return CostPolicy(stages=config.stages, wave_tokens_max=config.wave_tokens_max, priors=priors, hop_ms=1.0)
    sizes = st.builds(WaveSize, st.floats(1e-3, 200.0), st.sampled_from(Cutting))
    return Times(draw(st.lists(sizes, min_size=1, max_size=5)), cost)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_the_planner_keeps_its_promises_with_budgets_of_time(data: st.DataObject) -> None:
    config = data.draw(configs())
    planner, ledger = WavePlanner(config, data.draw(time_policies(config))), Ledger(config)
    durations = random.Random(data.draw(st.integers(0, 5)))

    def plan(in_flight: int, in_stage0: int) -> PlannedWave | None:
        waiting = planner.waiting_requests
        wave = planner.plan(in_flight, in_stage0)
        planner.validate()
        if wave is not None:
            ledger.check(wave, waiting)
            rows = sum(chunk.length for chunk in wave.chunks)
            steps = [
                StepTime(StageIndex(stage), 0, durations.randrange(10**9), 0, rows)
                for stage in range(config.stages + 1)
            ]
            planner.measured(wave.chunks, steps)
        return wave

    tell_a_story(data, planner, config, plan, ledger, None)


@given(st.data())
def test_on_a_fixed_grid_the_cuts_of_a_request_do_not_depend_on_its_company(data: st.DataObject) -> None:
    grid = A * data.draw(st.integers(1, 12))
    interval = data.draw(st.sampled_from([0, 8]))
    config = PlannerConfig(2, grid, A, A, A, fixed_grid=True, snapshot_interval_tokens=interval)
    start, length = A * data.draw(st.integers(0, 20)), data.draw(st.integers(1, 200))

    def cuts(others: list[int], budget: int) -> list[tuple[int, int]]:
        planner = WavePlanner(config, StaticPolicy(budget))
        for grant, tokens in enumerate(others, start=1):
            planner.add(GrantId(grant), 0, tokens, keep_alive=False)
        planner.add(GrantId(0), start, start + length, keep_alive=False)
        found = []
        while planner.has_work():
            wave = planner.plan(2, 0)
            assert wave is not None
            found += [(chunk.start, chunk.length) for chunk in wave.chunks if chunk.grant == 0]
        return found

    others = data.draw(st.lists(st.integers(1, 100), max_size=5))
    assert cuts(others, data.draw(st.integers(1, grid))) == cuts([], grid)
