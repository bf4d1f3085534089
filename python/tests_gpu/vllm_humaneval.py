#!/usr/bin/env python3
"""Completes HumanEval in vLLM with one cache type, so that kvant can judge the completions:

    vllm_humaneval.py prompts MODEL.gguf HumanEval.jsonl prompts.json
    vllm_humaneval.py complete --model CHECKPOINT --kv kvant_4bit prompts.json 4bit.json
    vllm_humaneval.py join MODEL.gguf ENGINE.json joined.json auto.json 4bit.json
    kvant eval -m MODEL.gguf --tasks humaneval --task-data FOLDER --judge ENGINE.json,joined.json

The prompts and the end of a completion are those of `kvant eval --tasks humaneval`. ENGINE.json is a result of that
command with the same model, which `join` takes the settings from. Completions are greedy."""

import argparse
import json
import pathlib
import time

import engine

MAX_TOKENS = 512
END = "\n```"
QUESTION = ("Please provide a self-contained Python script that solves the following problem in a markdown code block:\n"
            "```\n{}\n```\n")
BEGINNING = ("Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:\n"
             "```python\n")


def tokenizer_of(model):
    import kvant

    return kvant.Model(model, "bf16", context=256).tokenizer


def write_prompts(args):
    import gguf
    import jinja2

    fields = gguf.GGUFReader(args.gguf).fields
    template = jinja2.Environment().from_string(fields["tokenizer.chat_template"].contents())
    tokenizer = tokenizer_of(args.gguf)
    ends = [token for token in range(tokenizer.n_vocab) if tokenizer.ends_generation(token)]
    prompts = {}
    for line in pathlib.Path(args.problems).read_text().splitlines():
        problem = json.loads(line)
        history = [dict(role="user", content=QUESTION.format(problem["prompt"].rstrip(" \t\n")))]
        text = template.render(messages=history, add_generation_prompt=True) + BEGINNING
        prompts[problem["task_id"]] = tokenizer.encode(text, parse_special=True).tolist()
    pathlib.Path(args.out).write_text(json.dumps(dict(ends=ends, prompts=prompts)))


def complete(args):
    from vllm import SamplingParams

    asked = json.loads(pathlib.Path(args.prompts).read_text())
    prompts = asked["prompts"]
    args.max_seqs = len(prompts)
    llm = engine.start(args, max_model_len=max(map(len, prompts.values())) + MAX_TOKENS + 8)
    sampling = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, stop_token_ids=asked["ends"], detokenize=False)
    begin = time.perf_counter()
    results = llm.generate(engine.prompts(prompts.values()), sampling, use_tqdm=False)
    seconds = time.perf_counter() - begin
    completions = {name: list(result.outputs[0].token_ids) for name, result in zip(prompts, results)}
    pathlib.Path(args.out).write_text(json.dumps(dict(kv=args.recipe or args.kv, seconds=seconds, completions=completions)))
    print("RESULT", json.dumps(dict(kv=args.recipe or args.kv, seconds=round(seconds, 2), compiled=args.compile,
                                    tokens=sum(map(len, completions.values())))), flush=True)


def join(args):
    """Writes completions as results of `kvant eval --tasks`. What judging finds out is left at 0."""
    result = json.loads(pathlib.Path(args.engine).read_text())
    tokenizer = tokenizer_of(args.gguf)
    like = next(row for row in result["results"] if row["task"] == "humaneval")
    result["results"] = []
    for path in args.completions:
        found, answers = json.loads(pathlib.Path(path).read_text()), []
        for name, tokens in found["completions"].items():
            text = tokenizer.decode(tokens)
            is_cut = len(tokens) == MAX_TOKENS and END not in text
            answers.append(dict(id=name, right=False, tokens=len(tokens), cut=is_cut, completion=text.split(END)[0]))
        result["results"].append({**like, "recipe": f"vLLM {found['kv']}", "seconds": found["seconds"], "answers": answers})
    pathlib.Path(args.out).write_text(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    def command(name, run, *arguments):
        added = commands.add_parser(name)
        added.set_defaults(run=run)
        for argument in arguments:
            added.add_argument(argument, nargs="+" if argument == "completions" else None)
        return added

    command("prompts", write_prompts, "gguf", "problems", "out")
    engine.add_arguments(command("complete", complete, "prompts", "out"))
    command("join", join, "gguf", "engine", "out", "completions")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
