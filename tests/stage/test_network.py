"""When a stage counts its network as changed, and what it does then."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wavepp.stage.network import (
    Device,
    Network,
    NetworkChangedError,
    addresses_of,
    local_addresses,
    sources_toward,
    watch_network,
)
from wavepp.stage.worker import StageWorker

LO = {"127.0.0.1": Device(1, "lo")}
BEGAN = {**LO, "10.0.0.2": Device(2, "eth0"), "10.1.0.2": Device(3, "eth9")}
LIMIT_S = 5.0


class Machine:
    """A machine whose addresses the test changes."""

    def __init__(self, own: str = "10.0.0.2", *, devices_fixed: bool = True) -> None:
        self.addresses: Mapping[str, Device] = BEGAN
        self.looks = 0
        self.network = Network([own], devices_fixed=devices_fixed, look=self._look)

    def _look(self) -> Mapping[str, Device]:
        self.looks += 1
        return self.addresses


def test_this_machine_has_a_loopback_device() -> None:
    assert local_addresses()["127.0.0.1"] == Device(socket.if_nametoindex("lo"), "lo")


@pytest.mark.parametrize("device", [Device(7, "eth1"), Device(7, "eth0")])
def test_no_link_comes_up_over_a_device_that_was_made_again(device: Device) -> None:
    machine = Machine()
    machine.addresses = {**BEGAN, "10.0.0.2": device}
    assert str(device) in machine.network.unlinkable(())
    assert not machine.network.gone(), "it is found where it was"


def test_links_over_sockets_do_not_depend_on_devices() -> None:
    machine = Machine(devices_fixed=False)
    machine.addresses = {**BEGAN, "10.0.0.2": Device(7, "eth1")}
    assert not machine.network.unlinkable(())


def test_an_address_that_moves_to_a_device_that_was_there_is_still_linkable() -> None:
    machine = Machine()
    machine.addresses = {**BEGAN, "10.0.0.2": Device(3, "eth9")}
    assert not machine.network.unlinkable(())


def test_what_the_next_stage_is_reached_over_counts_as_well() -> None:
    machine = Machine()
    machine.addresses = {**BEGAN, "10.1.0.2": Device(8, "eth10")}
    assert not machine.network.unlinkable(["10.0.0.2"])
    assert "10.1.0.2 is on eth10 (index 8)" in machine.network.unlinkable(["10.1.0.2"])


@pytest.mark.parametrize("devices_fixed", [True, False])
def test_an_address_that_became_another_one_is_gone(devices_fixed: bool) -> None:
    machine = Machine(devices_fixed=devices_fixed)
    machine.addresses = {**LO, "10.0.0.7": Device(7, "eth1")}
    assert machine.network.gone() == (
        "the address 10.0.0.2 is gone from this machine, which has 10.0.0.7 on eth1 (index 7) now"
    )


@pytest.mark.parametrize("left", [LO, {**LO, "fe80::1": Device(7, "eth1")}, {**LO, "10.1.0.2": Device(3, "eth9")}])
def test_while_the_network_is_away_nothing_is_known(left: Mapping[str, Device]) -> None:
    machine = Machine()
    machine.addresses = left
    assert not machine.network.gone()
    assert not machine.network.unlinkable(())


def test_a_translated_address_is_never_gone() -> None:
    machine = Machine("203.0.113.5")
    assert not machine.network.reachable
    machine.addresses = {**LO, "10.0.0.7": Device(7, "eth1")}
    assert not machine.network.gone()


async def test_the_own_address_toward_a_neighbour_is_that_of_the_route() -> None:
    assert sources_toward(await addresses_of("ucx://127.0.0.1:5")) == ["127.0.0.1"]


@pytest.mark.parametrize("address", ["", "ucx://", "ucx://[::1"])
async def test_what_is_no_address_leads_nowhere(address: str) -> None:
    assert await addresses_of(address) == []


class Watched:
    """The watch of a stage, whose links are down and whose router is here unless the test says otherwise."""

    def __init__(self, machine: Machine) -> None:
        self.neighbours = SimpleNamespace(up=False, trouble="", next_address="")
        self.control = SimpleNamespace(closed=False)
        self.said: asyncio.Queue[bool] = asyncio.Queue()
        worker: Any = SimpleNamespace(neighbours=self.neighbours, control=self.control)
        self.task = asyncio.ensure_future(
            watch_network(machine.network, cast(StageWorker, worker), self._say, look_s=0.0)
        )
        self.when_said: Callable[[], None] = lambda: None

    async def _say(self, ready: bool) -> None:
        self.said.put_nowait(ready)
        self.when_said()

    async def turns(self) -> None:
        """So many that the watch has looked more than twice."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def end(self) -> None:
        assert not self.task.done()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


CHANGES = [{**BEGAN, "10.0.0.2": Device(7, "eth1")}, {**LO, "10.0.0.7": Device(7, "eth1")}]


@pytest.mark.parametrize("addresses", CHANGES)
async def test_a_stage_without_links_ends_when_the_network_changed(addresses: Mapping[str, Device]) -> None:
    machine = Machine()
    watched = Watched(machine)
    await watched.turns()
    assert machine.looks > 4
    assert watched.said.empty(), "links that are not there yet say nothing"
    machine.addresses = addresses
    with pytest.raises(NetworkChangedError, match=r"must be started again: .* on eth1 \(index 7\) now"):
        await asyncio.wait_for(watched.task, LIMIT_S)
    assert watched.said.get_nowait() is False, "not ready before it ends"


async def test_a_stage_ends_when_what_it_reaches_the_next_one_over_changed() -> None:
    machine = Machine()
    watched = Watched(machine)
    watched.neighbours.next_address = "ucx://127.0.0.1:5"
    machine.addresses = {**BEGAN, "127.0.0.1": Device(7, "eth1")}
    with pytest.raises(NetworkChangedError, match=r"127\.0\.0\.1 is on eth1"):
        await asyncio.wait_for(watched.task, LIMIT_S)


@pytest.mark.parametrize("addresses", CHANGES)
async def test_as_long_as_all_works_a_changed_network_ends_nothing(addresses: Mapping[str, Device]) -> None:
    machine = Machine()
    watched = Watched(machine)
    watched.neighbours.up = True
    machine.addresses = addresses
    await watched.turns()
    assert watched.said.empty()
    await watched.end()


async def test_a_stage_without_its_router_ends_when_its_address_is_gone_and_not_for_its_devices() -> None:
    machine = Machine()
    watched = Watched(machine)
    watched.neighbours.up, watched.control.closed = True, True
    machine.addresses = CHANGES[0]
    await watched.turns()
    assert not watched.task.done()
    machine.addresses = CHANGES[1]
    with pytest.raises(NetworkChangedError):
        await asyncio.wait_for(watched.task, LIMIT_S)


async def test_a_change_that_was_seen_once_is_none() -> None:
    machine = Machine()
    watched = Watched(machine)
    await watched.turns()

    def back() -> None:
        machine.addresses = BEGAN

    watched.when_said = back
    machine.addresses = CHANGES[1]
    assert await asyncio.wait_for(watched.said.get(), LIMIT_S) is False
    assert await asyncio.wait_for(watched.said.get(), LIMIT_S) is True
    await watched.turns()
    await watched.end()


async def test_links_that_a_neighbour_does_not_take_make_the_stage_not_ready_and_end_nothing() -> None:
    machine = Machine()
    watched = Watched(machine)
    watched.neighbours.trouble = "no link to the next stage after 5 tries: refused"
    assert await asyncio.wait_for(watched.said.get(), LIMIT_S) is False
    await watched.turns()
    assert watched.said.empty(), "said once"
    watched.neighbours.trouble, watched.neighbours.up = "", True
    assert await asyncio.wait_for(watched.said.get(), LIMIT_S) is True
    await watched.end()
