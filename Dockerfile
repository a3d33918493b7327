# blockgtq serve in a container: built on Debian 12, run there with the libraries it needs and no compiler.
#   docker build -t blockgtq .
#   docker run --rm -p 127.0.0.1:8080:8080 -v "$PWD/models:/models:ro" blockgtq -m /models/MODEL.gguf
FROM debian:12-slim AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# Debian 12 receives fixes of these versions only, so that a pinned number would keep the fixes out.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends \
      g++ cmake ninja-build pkg-config libhwy-dev libfmt-dev nlohmann-json3-dev libpcre2-dev libxxhash-dev \
      libcli11-dev libboost-dev \
    && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt /src/
COPY cmake /src/cmake
COPY include /src/include
COPY src /src/src
COPY apps /src/apps
COPY data /src/data
RUN cmake -S /src -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DBGTQ_BUILD_TESTS=OFF \
    && cmake --build /build --target blockgtq \
    && cmake --install /build --prefix /usr/local --strip

FROM debian:12-slim
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends \
      curl libfmt9 libhwy1 libpcre2-8-0 libxxhash0 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin blockgtq \
    && install -d -o blockgtq -m 0700 /slots
COPY --from=build /usr/local/bin/blockgtq /usr/local/bin/blockgtq
USER 10001
VOLUME /slots
EXPOSE 8080
# Opening a large model and measuring a plan take their time.
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s CMD ["curl", "-fsS", "http://127.0.0.1:8080/health"]
# Answers that run get 30 seconds to end: docker stop -t 40.
STOPSIGNAL SIGTERM
ENTRYPOINT ["blockgtq", "serve", "--host", "0.0.0.0", "--port", "8080", "--slot-save-path", "/slots"]
CMD ["-m", "/models/model.gguf"]
