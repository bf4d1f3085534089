# A new machine needs only `make run` or `make test`. Each of them installs what is missing.
MODEL = .venv/smollm2-135m-instruct.gguf
KV = kvant-4bit
# PROMPT is the question. If it is empty, data/sample/question.txt has a page of text and a question about the page.
PROMPT =
TOKENS = 96
# DEVICE is cpu, or cuda for the model on the GPU.
DEVICE = cpu
# An exported PROMPT reaches the shell unchanged, whatever quotes it contains.
export PROMPT
export DEVICE

.PHONY: run test test-arm check asan setup format lint docs plots clean

run: setup ## answer a question with MODEL and the KV cache KV, on DEVICE
	@KVANT_KERNELS=here scripts/build.sh default kvant $(if $(filter cuda%,$(DEVICE)),kvant_cuda)
	build/default/kvant run -m $(MODEL) $(if $(PROMPT),-p "$$PROMPT",-f data/sample/question.txt) -n $(TOKENS) --kv $(KV) --device $(DEVICE)

test: ## build everything and run all tests
	@scripts/setup.sh test
	@scripts/build.sh default
	@scripts/test.sh default

test-arm: ## cross-compile for arm64 and run the unit tests under QEMU
	@scripts/setup.sh arm64
	@scripts/build.sh arm64 unit_tests
	@scripts/test.sh arm64 -L unit

check: ## build and run the unit tests alone: no model, no nvcc, no browser
	@scripts/setup.sh libraries
	@scripts/build.sh default unit_tests
	@scripts/test.sh default -L unit

asan: setup ## all tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/build.sh asan
	@scripts/test.sh asan

setup: ## install what is missing: system packages, llama.cpp's libraries, the default model
	@scripts/setup.sh

format: ## format all sources in place
	find src -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | xargs clang-format -i

lint: ## check formatting, run clang-tidy, count what prose could do better
	@scripts/setup.sh libraries
	@scripts/lint.sh

docs: ## build the site of the documentation into build/site; broken links and missing pages fail
	@scripts/docs.sh

plots: ## draw docs/pictures from docs/results
	@scripts/docs.sh plots

clean: ## remove what was built; the environment in .venv stays
	rm -rf build
