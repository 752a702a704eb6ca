# Headlight in a container:
#   docker build -t headlight .
#   docker run -it --rm -v "$PWD/runs:/headlight/runs" headlight demo
#   docker run -it --rm -p 8000:8000 -v "$PWD/runs:/headlight/runs" headlight serve runs --host 0.0.0.0
# torch is the CUDA build: add `--gpus all` to use it. A smaller image for the CPU, with the address that pytorch.org shows:
#   docker build -t headlight --build-arg TORCH="--index-url ADDRESS" .

# What the system must have. .devcontainer uses this stage alone.
FROM python:3.11-slim AS system
# g++ is for torch.compile, the font for Chinese in pictures; any version will do
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends make git g++ fonts-noto-cjk \
    && rm -rf /var/lib/apt/lists/*

FROM system AS headlight
WORKDIR /headlight
COPY . .
ARG TORCH=""
RUN make .venv/installed TORCH="${TORCH}" && rm -rf /root/.cache
ENV PATH="/headlight/.venv/bin:${PATH}"
EXPOSE 8000
ENTRYPOINT ["headlight"]
