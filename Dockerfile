# kvant on a CPU: docker build -t kvant . && docker run --rm -p 8080:8080 -v /path/to/models:/models kvant serve -m /models/model.gguf --host 0.0.0.0
# Runs on any x86-64 processor with AVX2, FMA, F16C and BMI2. packaging/Dockerfile.cuda is for GPUs.
FROM debian:12 AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates make && rm -rf /var/lib/apt/lists/*
WORKDIR /source
# Set-up comes before the sources, which change more often.
COPY scripts scripts
COPY cmake/llama_unity.cmake cmake/llama_unity.cmake
RUN KVANT_GGML=avx2 KVANT_GPU=0 scripts/setup.sh libraries
COPY . .
RUN scripts/build.sh default kvant && cmake --install build/default --component program --prefix /opt/kvant --strip

FROM debian:12-slim
COPY --from=build /opt/kvant /opt/kvant
RUN ln -s /opt/kvant/bin/kvant /usr/local/bin/kvant && useradd --create-home --uid 10001 kvant
USER 10001
WORKDIR /home/kvant
EXPOSE 8080
ENTRYPOINT ["kvant"]
CMD ["--help"]
