"""Which records the ledger keeps, and that none is left."""

from __future__ import annotations

import random

import pytest

from wavepp.core.directory.events import SetRecord
from wavepp.core.directory.ledger import Ledger
from wavepp.core.ids import DirectoryEpoch, GrantId, PipelineEpoch, RoundId, grant_id

EPOCH = PipelineEpoch(1)


def g(counter: int, epoch: int = 1) -> GrantId:
    return grant_id(PipelineEpoch(epoch), counter)


def opened(*grants: GrantId, written: bool = True) -> tuple[Ledger, SetRecord]:
    ledger = Ledger(DirectoryEpoch(5))
    record = ledger.open(RoundId(1), EPOCH, tuple((grant, 8, 12) for grant in grants))
    if written:
        assert ledger.written(RoundId(1)) == []
    return ledger, record


def deleted(name: str) -> SetRecord:
    return SetRecord(name, EPOCH, ())


def test_a_round_writes_one_record_that_names_its_grants() -> None:
    _, record = opened(g(1), g(2))
    assert record.grants == ((g(1), 8, 12), (g(2), 8, 12))
    assert record.round == RoundId(1)
    assert record.name == "0000000000000005-0000000000000001"


def test_a_record_is_deleted_with_its_last_grant_and_not_written_before() -> None:
    ledger, record = opened(g(1), g(2))
    assert ledger.remove((g(1),)) == []
    assert ledger.remove((g(2),)) == [deleted(record.name)]
    assert ledger.remove((g(1), g(2))) == []


def test_what_ends_during_the_first_write_is_mended_after_it() -> None:
    ledger, record = opened(g(1), g(2), written=False)
    assert ledger.remove((g(1),)) == []
    assert ledger.written(RoundId(1)) == [SetRecord(record.name, EPOCH, ((g(2), 8, 12),))]
    assert ledger.remove((g(2),)) == [deleted(record.name)]


def test_a_record_that_emptied_during_its_first_write_is_deleted_after_it() -> None:
    ledger, record = opened(g(1), written=False)
    assert ledger.remove((g(1),)) == []
    assert ledger.written(RoundId(1)) == [deleted(record.name)]
    assert ledger.written(RoundId(1)) == []


def test_an_epoch_deletes_older_records_but_for_those_that_are_being_written() -> None:
    ledger, first = opened(g(1))
    second = ledger.open(RoundId(2), EPOCH, ((g(2), 0, 4),))
    ledger.granted((g(1), g(3, epoch=2)))
    assert ledger.fence(PipelineEpoch(2)) == [deleted(first.name)]
    assert ledger.grants == {g(3, epoch=2)}
    assert ledger.written(RoundId(2)) == [deleted(second.name)]


def test_a_new_writer_deletes_what_emptied_during_a_first_write_that_nobody_reports() -> None:
    ledger, record = opened(g(1), written=False)
    other = ledger.open(RoundId(2), EPOCH, ((g(2), 0, 4),))
    ledger.remove((g(1),))
    assert ledger.writer_changed() == [deleted(record.name)]
    assert ledger.remove((g(2),)) == [deleted(other.name)], "its write is not waited for any more"


def test_what_an_earlier_directory_left_counts_as_granted_until_it_ends() -> None:
    ledger = Ledger(DirectoryEpoch(6))
    ledger.load((("old", EPOCH, (g(1), g(2))),))
    assert ledger.grants == {g(1), g(2)}
    assert len(ledger) == 2
    ledger.adopt(frozenset((g(3),)))
    assert ledger.remove((g(1), g(2), g(3))) == [deleted("old")]
    assert ledger.grants == set()


@pytest.mark.parametrize("seed", range(20))
def test_in_the_end_etcd_holds_nothing(seed: int) -> None:
    """Random rounds, outcomes, ends, epochs and writers, against an etcd that may lose a first write."""
    rng = random.Random(seed)
    ledger = Ledger(DirectoryEpoch(7))
    etcd: dict[str, SetRecord] = {}
    writing: dict[RoundId, SetRecord] = {}
    alive: set[GrantId] = set()

    def put(records: list[SetRecord]) -> None:
        for record in records:
            assert record.name not in {w.name for w in writing.values()}, "never two writes of one record at a time"
            etcd[record.name] = record
            if not record.grants:
                del etcd[record.name]

    epoch, counter, rounds = 1, 0, 0
    for _ in range(200):
        match rng.randrange(6):
            case 0 | 1:
                rounds += 1
                entries = []
                for _ in range(rng.randrange(1, 4)):
                    counter += 1
                    entries.append((g(counter, epoch), 0, 4))
                alive.update(e[0] for e in entries)
                writing[RoundId(rounds)] = ledger.open(RoundId(rounds), PipelineEpoch(epoch), tuple(entries))
            case 2 if writing:
                number, record = writing.popitem()
                if rng.random() < 0.7:
                    etcd[record.name] = record
                put(ledger.written(number))
            case 3 if rng.random() < 0.1:
                epoch += 1
                alive.clear()
                put(ledger.fence(PipelineEpoch(epoch)))
            case 4 if rng.random() < 0.1:
                etcd.update({r.name: r for r in writing.values() if rng.random() < 0.5})
                writing.clear()
                put(ledger.writer_changed())
            case _ if alive:
                gone = rng.sample(sorted(alive), min(len(alive), rng.randrange(1, 4)))
                alive.difference_update(gone)
                put(ledger.remove(tuple(gone)))
    put(ledger.remove(tuple(alive)))
    while writing:
        number, record = writing.popitem()
        etcd[record.name] = record
        put(ledger.written(number))
    assert etcd == {}
    assert ledger.fence(PipelineEpoch(epoch + 1)) == [], "nothing is remembered"
