# DARE with all that a GPU needs. Not built where this project was written (no container tool
# there): treat it as a starting point, and say what had to change.
#
#   docker build -t dare .
#   docker run --gpus all --ipc host --security-opt seccomp=unconfined \
#       -v "$PWD/runs:/work/runs" -v "$HOME/.cache/huggingface:/home/dare/.cache/huggingface" \
#       dare train qwen2.5-1.5b-gsm8k-lora
#
# bubblewrap makes user namespaces, which Docker's default seccomp profile forbids: without the
# option above `dare doctor` shows Landlock, or no sandbox at all, and the code reward refuses to run.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends \
        bubblewrap build-essential ca-certificates git python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home dare && mkdir /work && chown dare /work
USER dare
WORKDIR /work

ENV VIRTUAL_ENV=/home/dare/venv PATH=/home/dare/venv/bin:$PATH
RUN python3 -m venv "$VIRTUAL_ENV"

COPY --chown=dare pyproject.toml README.md LICENSE constraints.txt /home/dare/source/
COPY --chown=dare src /home/dare/source/src
RUN pip install --no-cache-dir --disable-pip-version-check \
        -c /home/dare/source/constraints.txt '/home/dare/source[gpu]'

# Reserved memory beyond the peak: 2 GB instead of 8 to 15 (docs/lab/gpu.md).
ENV PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
ENTRYPOINT ["dare"]
CMD ["doctor"]
