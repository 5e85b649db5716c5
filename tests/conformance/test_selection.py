"""`selection` leaves no test out everywhere, and no method out of any pairing."""

from __future__ import annotations

from tests.conformance import selection


def test_every_test_speaks_to_a_server_and_every_method_in_every_pairing():
    chosen = selection.chosen_pairings()
    assert all(chosen[test] for test in selection.TESTS)
    called: dict[str, set[selection.Pairing]] = {}
    for test, code in selection.TESTS.items():
        for method in selection.METHODS & selection.names_in(code.__code__):
            called.setdefault(method, set()).update(chosen[test])
    assert len(called) > 50
    assert {method for method, pairings in called.items() if pairings != selection.PAIRINGS} == set()


def test_a_theme_that_each_server_does_in_its_own_way_speaks_to_both():
    for test, pairings in selection.chosen_pairings().items():
        if selection.theme_of(test) in selection.BY_SERVER:
            assert {server for server, _ in pairings} == set(selection.SERVERS), test
