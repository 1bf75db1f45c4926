# remat on the CPU, for a user who is not root:  docker build -t remat .
#   docker run --rm -v "$PWD:/models" --user "$(id -u):$(id -g)" remat compile model.onnx --budget 80%
FROM python:3.12-slim AS built
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY remat_cli remat_cli
COPY sample_models sample_models
COPY examples examples
COPY configs configs
COPY bench/instances bench/instances
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY constraints.txt /tmp/constraints.txt
COPY --from=built /wheels /wheels
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt "$(ls /wheels/*.whl)[cpu,svg,html]" \
    && rm -r /wheels /tmp/constraints.txt \
    && useradd --create-home --uid 1000 remat \
    && install --directory --owner remat --mode 1777 /cache
ENV REMAT_CACHE_DIR=/cache/remat NUMBA_CACHE_DIR=/cache/kernels
VOLUME /cache
USER remat
WORKDIR /models
ENTRYPOINT ["remat"]
CMD ["--help"]
