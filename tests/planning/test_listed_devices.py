"""One device under a driver's name and an engine's own: what is left of it, and who has it, counts once."""

from __future__ import annotations

import msgspec

from backend.contract.reports import HostReport
from backend.planning.fleet import available_memory, device_users
from tests.planning.worlds import GIB, a_plan, a_reservation, a_shard, holding, ids
from tests.refusals.rows import CARD, listed_device, listing

TWIN = listed_device(total=24 * GIB, free=20 * GIB, same_as="CUDA0")


def first(*devices: object, **changes: object) -> HostReport:
    return listing(*devices, **changes).reports[0]  # type: ignore[arg-type]


def test_what_is_reserved_under_one_name_is_not_left_under_the_other() -> None:
    held = holding(reservation=a_reservation(memory={"CUDA0": 5 * GIB}))
    for name in ("CUDA0", "Vulkan0"):
        assert available_memory(first(CARD, TWIN, entities=held), name) == 15 * GIB
    apart = first(CARD, msgspec.structs.replace(TWIN, same_as=""), entities=held)
    assert available_memory(apart, "Vulkan0") == 20 * GIB


def test_who_has_it_under_one_name_has_it_under_the_other() -> None:
    report = first(CARD, TWIN, entities=holding(a_shard("host-a", node="glm-1/1", device="Vulkan0")))
    assert device_users(report) == dict.fromkeys(("CUDA0", "Vulkan0"), "used by glm-1/1 (ready)")


def test_a_listed_device_is_planned_without_a_warning() -> None:
    made = a_plan(listing(listed_device()), profile={"device": "Vulkan*"})
    assert [shard.device for shard in made.shards] == ["CPU", "Vulkan0", "Vulkan0"]
    assert not made.is_refused
    assert "device.unmeasured" not in ids(made)


def test_a_driver_whose_device_the_engine_has_under_its_own_name_is_not_called_unseen() -> None:
    wanted = {"device": "CUDA*, Vulkan*"}
    assert "device.unseen" not in ids(a_plan(listing(CARD, TWIN), profile=wanted))
    apart = msgspec.structs.replace(TWIN, same_as="")
    assert "device.unseen" in ids(a_plan(listing(CARD, apart), profile=wanted))
