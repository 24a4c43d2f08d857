// SPDX-License-Identifier: Apache-2.0
//
// The server of grpc_rival: takes, echoes and gives tensors; see grpc_rival.cpp.
#include "rival.h"

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sys/resource.h>
#include <unistd.h>

void
fail(const std::string &why)
{
    std::fprintf(stderr, "grpc_rival: %s\n", why.c_str());
    std::exit(1);
}

double
busy_s()
{
    std::ifstream file("/proc/stat");
    std::string word;
    double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0;
    file >> word >> user >> nice >> system >> idle >> iowait >> irq >> softirq;
    return (user + nice + system + irq + softirq) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double
process_s()
{
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

Tensor
tensor_of(size_t bytes)
{
    Tensor tensor;
    std::string payload(bytes, '\0');
    for (size_t i = 0; i < bytes; i++)
        payload[i] = static_cast<char>(i * 31 + (i >> 8) * 7 + (i >> 16) * 13 + (i >> 24) * 29);
    tensor.set_data(std::move(payload));
    if (bytes % 8 == 0) {
        tensor.set_dtype("<f4");
        tensor.add_shape(bytes / 8);
        tensor.add_shape(2);
    } else {
        tensor.set_dtype("|u1");
        tensor.add_shape(bytes);
    }
    return tensor;
}

bool
is_whole(const Tensor &tensor)
{
    const std::string &dtype = tensor.dtype();
    size_t bytes = dtype == "<f4" ? 4 : dtype == "|u1" ? 1 : 0;
    if (bytes == 0 || tensor.shape().empty())
        return false;
    for (const uint64_t extent : tensor.shape())
        if (__builtin_mul_overflow(bytes, extent, &bytes))
            return false;
    return bytes == tensor.data().size();
}

namespace
{

grpc::Status
status_of(bool is_placed)
{
    if (is_placed)
        return grpc::Status::OK;
    return {grpc::StatusCode::INVALID_ARGUMENT,
            "dtype, shape and bytes do not agree, or the bytes are others"};
}

class Service final : public Transfer::Service
{
    grpc::Status TakeEach(grpc::ServerContext *,
                          grpc::ServerReaderWriter<Tensor, Tensor> *stream) override
    {
        Tensor in;
        bool is_placed = true;
        while (is_placed && stream->Read(&in)) {
            is_placed = take(in);
            if (!is_placed || !stream->Write(Tensor()))
                break;
        }
        return status_of(is_placed);
    }
    grpc::Status Echo(grpc::ServerContext *, const Tensor *in, Tensor *out) override
    {
        if (!take(*in))
            return status_of(false);
        out->Swap(const_cast<Tensor *>(in)); // gRPC made it for this call, and drops it after it
        return grpc::Status::OK;
    }
    grpc::Status EchoAll(grpc::ServerContext *,
                         grpc::ServerReaderWriter<Tensor, Tensor> *stream) override
    {
        Tensor in;
        bool is_placed = true;
        while (is_placed && stream->Read(&in)) {
            is_placed = take(in);
            if (!is_placed || !stream->Write(in))
                break;
        }
        return status_of(is_placed);
    }
    grpc::Status GiveEach(grpc::ServerContext *,
                          grpc::ServerReaderWriter<Tensor, Wish> *stream) override
    {
        Wish wish;
        while (stream->Read(&wish)) {
            if (wish.len_bytes() > MAX_BYTES)
                return status_of(false);
            if (!stream->Write(*kept(wish.len_bytes())))
                break;
        }
        return grpc::Status::OK;
    }
    grpc::Status Cpu(grpc::ServerContext *, const Wish *, Busy *out) override
    {
        out->set_cpu_s(busy_s());
        out->set_process_s(process_s());
        return grpc::Status::OK;
    }

    bool take(const Tensor &in)
    {
        return places_.place(in, in.is_compared() ? kept(in.data().size()).get() : nullptr);
    }

    // The tensor of this size, made once; one at a time, as sizes are measured one after another.
    std::shared_ptr<const Tensor> kept(size_t bytes)
    {
        const std::lock_guard<std::mutex> hold(mutex_);
        if (kept_ == nullptr || kept_->data().size() != bytes)
            kept_ = std::make_shared<const Tensor>(tensor_of(bytes));
        return kept_;
    }

    Places places_;
    std::mutex mutex_;
    std::shared_ptr<const Tensor> kept_;
};

} // namespace

int
serve(const std::string &address)
{
    Service service;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, FRAME_BYTES);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (server == nullptr)
        fail("cannot listen on " + address);
    std::printf("ready\n");
    std::fflush(stdout);
    server->Wait();
    return 0;
}
