#!/usr/bin/env python3
"""Tests the grammars of JSON schemas. The jsonschema package, which knows nothing of grammars, judges the generated
texts.

src/serve/held_schema_test.py SAMPLES [--schemas N] [--seed N]

SAMPLES is the program schema_samples. kvant accepts or refuses a schema; every text of an accepted schema must be
valid. The test composes 600 schemas at random, or N with --schemas. The test runs with the Python of .venv, where
`scripts/setup.sh test` puts the package. Without the package the test is skipped.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import unittest

try:
    import jsonschema
except ImportError:
    python = pathlib.Path(__file__).resolve().parents[2] / ".venv/bin/python"
    if python.exists() and pathlib.Path(sys.prefix).resolve() != python.parents[1].resolve() and "KVANT_AGAIN" not in os.environ:
        os.execve(python, [str(python), *sys.argv], {**os.environ, "KVANT_AGAIN": "1"})
    print(f"{__file__}:1: Skipped\nthe jsonschema package is missing: scripts/setup.sh test\n\n[  SKIPPED ] Serve.HoldsSchemas (0 ms)")
    sys.exit(0)

SAMPLES = None
N_SCHEMAS, SEED = 600, 1


def ask(requests):
    """Returns the output of SAMPLES for each schema."""
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([SAMPLES], input=lines, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def fault(validator, text):
    """Returns what is wrong with a text, or an empty text if nothing is wrong."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"is no JSON: {error}"
    return "" if validator.is_valid(value) else next(validator.iter_errors(value)).message


class Composer:
    """Composes schemas of all keywords at random."""
    NAMES = ["a", "b", "ab", "id", "a/b", "x~y", "ü", "string", ""]
    PATTERNS = ["^[a-z]+$", "^\\d{3}$", "\\d", "^a", "b$", "^(foo|bar)+$", "^[^\"]*$", "^.$", "^\\S+@\\S+\\.[a-z]{2,}$", "^[\\w.-]{2,5}$", "[\\s\"]",
                "^(?:a|b)?c*$", "^\\W\\D$", "^[\\\\/\"]{1,3}$", "^$", "x{2,3}|^y", "^[^a-c\\d]{2}$", "^(a(b(c)?)?)$", "^\\u00e9\\x41$", "^[A-Z][^\\s]*$"]
    VALUES = [None, True, False, 0, 1, 2, 3, -1, 7, 12, 2.5, "", "a", "b", "ab", "foo", "x\"y", [], [1], ["a", "a"], {}, {"a": 1}, {"a": 1, "b": "x"}, {"b": 2}]

    def __init__(self, seed):
        self.random = random.Random(seed)

    def some(self, items, most=3):
        return self.random.sample(items, self.random.randint(1, min(most, len(items))))

    def count(self):
        return self.random.choice([0, 0, 1, 1, 2, 3, 5])

    def number(self):
        return self.random.choice([-3, -1, 0, 1, 2, 5, 10, 99, 1000, 2.5, -0.5])

    def keywords_of(self, kind, depth):
        chance, schema = self.random.random, {}
        if kind in ("integer", "number"):
            for key in self.some(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], 2) if chance() < 0.7 else []:
                schema[key] = self.number()
            if chance() < 0.15:
                schema["multipleOf"] = self.random.choice([1, 2, 3, 0.5, 5])
        elif kind == "string":
            if chance() < 0.4:
                schema["pattern"] = self.random.choice(self.PATTERNS)
            if chance() < 0.4:
                schema["minLength"] = self.count()
            if chance() < 0.4:
                schema["maxLength"] = self.count() + self.count()
            if chance() < 0.1:
                schema["format"] = self.random.choice(["date", "uuid", "date-time", "time", "email"])
        elif kind == "array":
            if chance() < 0.6:
                schema["items"] = self.schema(depth - 1)
            if chance() < 0.3:
                schema["prefixItems"] = [self.schema(depth - 1) for _ in range(self.random.randint(1, 2))]
            if chance() < 0.3:
                schema["minItems"] = self.count()
            if chance() < 0.4:
                schema["maxItems"] = self.count() + self.count()
            if chance() < 0.1:
                schema["uniqueItems"] = chance() < 0.7
            if chance() < 0.05:
                schema["contains"] = self.schema(depth - 1)
            if chance() < 0.05:
                schema["unevaluatedItems"] = False
        else:
            names = self.some(self.NAMES, 4)
            if chance() < 0.8:
                schema["properties"] = {name: self.schema(depth - 1) for name in names}
            if chance() < 0.5:
                schema["required"] = self.some(names + (["other"] if chance() < 0.1 else []))
            if chance() < 0.4:
                schema["additionalProperties"] = self.random.choice([False, False, True, self.schema(depth - 1)])
            if chance() < 0.1:
                schema["patternProperties"] = {self.random.choice(self.PATTERNS): self.schema(depth - 1)}
            if chance() < 0.1:
                schema["propertyNames"] = self.random.choice([{"type": "string"}, {"maxLength": 1}, {"enum": ["a", "b"]}, {"pattern": "^a"}])
            if chance() < 0.15:
                schema["minProperties"] = self.count()
            if chance() < 0.15:
                schema["maxProperties"] = self.count() + 1
            if chance() < 0.08:
                schema["dependentRequired"] = {self.random.choice(names): self.some(names)}
            if chance() < 0.05:
                schema["unevaluatedProperties"] = False
        return schema

    def schema(self, depth):
        chance = self.random.random
        if depth <= 0 and chance() < 0.5 or chance() < 0.05:
            return self.random.choice([{}, True, {"type": "null"}, {"const": self.random.choice(self.VALUES)}, {"type": "boolean"}, {"type": "integer"}, False])
        kinds = self.some(["integer", "number", "string", "array", "object"], 2 if chance() < 0.25 else 1)
        schema = {}
        if chance() < 0.85:
            kind = kinds + (["null"] if chance() < 0.2 else [])
            schema["type"] = kind[0] if len(kind) == 1 else kind
        for kind in kinds:
            if kind not in ("array", "object") or depth > 0:
                schema.update(self.keywords_of(kind, depth))
        if chance() < 0.12:
            schema["enum"] = self.some(self.VALUES, 6)
        if chance() < 0.04:
            schema["const"] = self.random.choice(self.VALUES)
        if depth > 0:
            for key in ("anyOf", "oneOf", "allOf"):
                if chance() < 0.1:
                    schema[key] = [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]
            if chance() < 0.03:
                schema["not"] = self.schema(depth - 1)
            if chance() < 0.02:
                schema["if"], schema["then"] = self.schema(depth - 1), self.schema(depth - 1)
        if chance() < 0.15:
            schema["$ref"] = self.random.choice(["#/$defs/a", "#/$defs/a", "#/$defs/b~1c", "#/definitions/d", "#", "#/$defs/%61", "#/$defs/none"])
        return schema

    def whole(self):
        schema = self.schema(3)
        if not isinstance(schema, dict):
            return {"allOf": [schema]}
        schema["$defs"] = {"a": self.schema(1), "b/c": self.schema(2)}
        schema["definitions"] = {"d": self.schema(1)}
        return schema


class HoldsSchemas(unittest.TestCase):
    def check(self, schemas, texts, advice=False):
        """Checks all texts of all schemas. Returns the number of accepted schemas and the number of texts."""
        requests = [{"schema": schema, "texts": texts, "seed": SEED + i, "advice": advice} for i, schema in enumerate(schemas)]
        n_accepted = n_texts = 0
        for request, said in zip(requests, ask(requests), strict=True):
            self.assertNotIn("grammar", said, f"a schema is accepted whose grammar can't be read: {json.dumps(request['schema'])}: {said.get('error')}")
            n_accepted += "texts" in said
            validator = jsonschema.Draft202012Validator({} if said.get("loosened") else request["schema"])
            for text in said.get("texts", []):
                n_texts += 1
                self.assertEqual(fault(validator, text), "", f"{json.dumps(request['schema'])}\n{text}")
        return n_accepted, n_texts

    def test_every_text_holds_a_schema_composed_at_random(self):
        composer = Composer(SEED)
        accepted, texts = self.check([composer.whole() for _ in range(N_SCHEMAS)], 12)
        print(f"{accepted} of {N_SCHEMAS} schemas accepted, {texts} texts")
        self.assertGreater(accepted, N_SCHEMAS / 8)

    def test_advice_is_never_refused_and_its_texts_are_json(self):
        composer = Composer(SEED + 1)
        schemas = [composer.whole() for _ in range(N_SCHEMAS // 2)]
        accepted, _ = self.check(schemas, 4, advice=True)
        self.assertEqual(accepted, len(schemas))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("samples")
    parser.add_argument("--schemas", type=int, default=N_SCHEMAS)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    SAMPLES, N_SCHEMAS, SEED = arguments.samples, arguments.schemas, arguments.seed
    unittest.main(argv=sys.argv[:1])
