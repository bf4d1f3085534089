"""Calibrates a checkpoint: python -m kvant.hf MODEL [RECIPE]. Prints the path of the file of constants."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kvant.hf", description=__doc__)
    parser.add_argument("model", help="a folder, or a name on Hugging Face")
    parser.add_argument("recipe", nargs="?", default="kvant-4bit")
    parser.add_argument("--path", help="the file to write (default: a file in kvant's cache folder, where vLLM finds it)")
    parser.add_argument("--device", default=None, help="cuda, cuda:1 or cpu (default: a GPU if there is one)")
    args = parser.parse_args()
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from kvant.hf import calibrate

        device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype="bfloat16", attn_implementation="kvant").to(device)
        print(calibrate(model, AutoTokenizer.from_pretrained(args.model), args.recipe, path=args.path))
    # vLLM's plug-in shows the last line of the output to its users, whatever failed.
    except Exception as failure:
        print(f"{type(failure).__name__}: {failure}" if not str(failure).startswith("kvant") else failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
