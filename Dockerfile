# docker build -t vit-train .                                              for processors
# docker build -t vit-train --build-arg TORCH=cu130 .                      for NVIDIA GPUs; then: docker run --gpus all --shm-size=8g ...
# docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" vit-train      the main job; results in ./runs
# docker run --rm -v "$PWD:/work" -p 6006:6006 --entrypoint tensorboard vit-train --logdir runs --bind_all
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

# Which build of the matched pair, by the name of PyTorch's index: cpu, cu130, ...
ARG TORCH=cpu
# Extras of the package: onnx, clean, slurm, hub, all; several by commas.
ARG EXTRAS=onnx
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1

# `--compile` calls a compiler, for a GPU one of C.
RUN if [ "$TORCH" != cpu ]; then apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*; fi

COPY requirements.txt requirements-extras.txt /src/
RUN grep -E "^(torch|torchvision)==" /src/requirements.txt > /src/pair.txt \
    && pip install -r /src/pair.txt --index-url "https://download.pytorch.org/whl/${TORCH}" \
    && pip install -r /src/requirements.txt

COPY . /src
RUN pip install --constraint /src/requirements.txt --constraint /src/requirements-extras.txt "/src[${EXTRAS}]" && rm -rf /src

RUN useradd --create-home user && mkdir /work && chown user /work
USER user
# Whoever `--user` names, who has no home here.
ENV HOME=/tmp
WORKDIR /work
ENTRYPOINT ["vit-train"]
