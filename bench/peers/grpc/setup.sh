#!/usr/bin/env bash
# Build grpc_transfer and libparameters.so into build/peers, with Debian's gRPC. Nothing else of
# this project needs gRPC.
# Does nothing, in a moment, when all is there. Usage: bench/peers/grpc/setup.sh
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../../ci/lib.sh"
home="$ROOT/bench/peers/grpc"
out="$ROOT/build/peers"
program="$out/grpc_transfer"
library="$out/libparameters.so"

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
    logged peers-update "${sudo[@]}" apt-get -q update
    logged peers-install "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
        --no-install-recommends install "${packages[@]}"
fi
is_new() { # PROGRAM SOURCE...
    local program="$1" source
    shift
    for source in "$home/setup.sh" "$@"; do
        [[ "$program" -nt "$source" ]] || return 1
    done
}
# Contract: what parameters.cpp says of it.
flags=(-std=c++17 -O3 -ffp-contract=fast -Wall -Wextra)
libraries=(-Wl,--copy-dt-needed-entries -lgrpc++ -lgrpc -lgpr -lprotobuf -lpthread)
if ! is_new "$program" "$home/transfer.cpp" "$home/transfer.proto"; then
    say 'building grpc_transfer'
    logged peers-protoc protoc -I "$home" --cpp_out="$out" --grpc_out="$out" \
        --plugin=protoc-gen-grpc="$(command -v grpc_cpp_plugin)" "$home/transfer.proto"
    logged peers-compile g++ "${flags[@]}" -I "$out" -o "$program" \
        "$home/transfer.cpp" "$out/transfer.pb.cc" "$out/transfer.grpc.pb.cc" "${libraries[@]}"
fi
if ! is_new "$library" "$home/parameters.cpp"; then
    say 'building libparameters.so'
    logged peers-parameters g++ "${flags[@]}" -fPIC -shared -o "$library" \
        "$home/parameters.cpp" "${libraries[@]}"
fi
