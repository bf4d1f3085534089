"""Decides which rival a cache is compared with: the fastest rival in the same measurement that stores at least as many
bits."""

# RIVAL_BITS has the bits per value of rivals, for results that do not give them.
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
    """Returns the fastest rival among `rows` that stores at least `bits`, or None. The rule is the rule of
    src/bench/contender.h: 1 % fewer bits count as enough, and a rival never needs more bits than an unquantized cache.
    """
    able = [row for row in rows if is_rival(row["recipe"]) and 1.01 * bits_of(row) >= min(bits, 16) and speed(row)]
    return max(able, key=speed, default=None)
