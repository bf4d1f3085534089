"""Who is compared with whom: a cache with the fastest rival of the same measurement that stores at least as many bits."""

# Bits of an element that rivals store, where a result doesn't say.
RIVAL_BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5, "int8": 8, "int4": 4}


def is_rival(name):
    return ":" in name and "=" not in name


def bits_of(row):
    if row.get("bits"):
        return row["bits"]
    if not is_rival(row["recipe"]):
        return 16.0
    sides = [side for side in row["recipe"].split(":", 1)[1].replace("-plain", "").split("/")]
    return sum(RIVAL_BITS[side] for side in sides) / len(sides)


def fastest(rows, bits, speed):
    """The fastest of the rivals among `rows` that store at least `bits`, by the rule of src/bench/contender.h (1 % less
    counts as much, and nothing needs more than unquantized); None where there is none."""
    able = [row for row in rows if is_rival(row["recipe"]) and 1.01 * bits_of(row) >= min(bits, 16) and speed(row)]
    return max(able, key=speed, default=None)
