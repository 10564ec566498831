"""Addressed chance: any difference in an address is another number, and an address means the same number for ever."""

import hashlib
import itertools
import subprocess
import sys

from smope.chance import derive


def test_an_address_gives_the_number_it_gave_when_the_first_records_were_made():
    # sha256 of type, length and value of each part, its first eight bytes, the lowest bit dropped
    digest = hashlib.sha256(b"int:1:0;str:4:head;int:1:3;").hexdigest()
    assert digest.startswith("90903036e1b112e6")
    assert derive(0, "head", 3) == int(digest[:16], 16) // 2 == 5208439475190401395


def test_addresses_that_differ_in_value_type_order_or_grouping_are_other_addresses():
    addresses = [
        (),
        ("",),
        ("", ""),
        (0,),
        ("0",),
        (False,),
        ("a",),
        ("a", ""),
        ("", "a"),
        ("a", 1),
        ("a", "1"),
        ("a1",),
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        ("a", "b", "c"),
        ("c", "b", "a"),
        (1, 12),
        (11, 2),
        (112,),
        ("a int:1",),
        (-1,),
    ]
    for one, two in itertools.combinations(addresses, 2):
        assert derive(0, *one) != derive(0, *two), (one, two)


def test_the_seed_is_no_part_of_the_address():
    assert derive(0, 1) != derive(1, 0)
    assert len({derive(seed, "x") for seed in range(1000)}) == 1000


def test_numbers_fit_a_generator_and_use_its_whole_range():
    numbers = [derive(0, index) for index in range(2000)]
    assert all(0 <= number < 2**63 for number in numbers)
    assert max(numbers) > 0.99 * 2**63 and min(numbers) < 0.01 * 2**63


def test_another_process_with_another_hash_seed_gives_the_same_number():
    source = "from smope.chance import derive; print(derive(5, 'noise', 2))"
    environment = {"PYTHONHASHSEED": "123", "PYTHONPATH": ":".join(sys.path)}
    answer = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    assert int(answer.stdout) == derive(5, "noise", 2)
