#!/usr/bin/env bash
# Build grpc_rival into build/rivals, with Debian's gRPC. Nothing else of this project needs gRPC.
# Does nothing, in a moment, when all is there. Usage: bench/rivals/grpc/setup.sh
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../../ci/lib.sh"
home="$ROOT/bench/rivals/grpc"
out="$ROOT/build/rivals"
program="$out/grpc_rival"

missing_packages() {
    command -v protoc >/dev/null || echo protobuf-compiler
    command -v grpc_cpp_plugin >/dev/null || echo protobuf-compiler-grpc
    [[ -e /usr/include/grpcpp/grpcpp.h ]] || echo libgrpc++-dev
    [[ -e /usr/include/google/protobuf/port_def.inc ]] || echo libprotobuf-dev
    command -v g++ >/dev/null || echo g++
}

mkdir -p "$out"
mapfile -t packages < <(missing_packages)
if ((${#packages[@]} > 0)); then
    sudo=()
    ((EUID == 0)) || sudo=(sudo -n)
    say "installing Debian packages: ${packages[*]}"
    logged rivals-update "${sudo[@]}" apt-get -q update
    logged rivals-install "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
        --no-install-recommends install "${packages[@]}"
fi
if [[ -x "$program" && "$program" -nt "$home/grpc_rival.cpp" &&
    "$program" -nt "$home/transfer.proto" ]]; then
    exit 0
fi
say 'building grpc_rival'
logged rivals-protoc protoc -I "$home" --cpp_out="$out" --grpc_out="$out" \
    --plugin=protoc-gen-grpc="$(command -v grpc_cpp_plugin)" "$home/transfer.proto"
logged rivals-compile g++ -std=c++17 -O2 -Wall -Wextra -I "$out" -o "$program" \
    "$home/grpc_rival.cpp" "$out/transfer.pb.cc" "$out/transfer.grpc.pb.cc" \
    -Wl,--copy-dt-needed-entries -lgrpc++ -lgrpc -lgpr -lprotobuf -lpthread
