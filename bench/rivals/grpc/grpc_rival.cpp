// SPDX-License-Identifier: Apache-2.0
//
// grpc_rival - gRPC C++ as a rival of our writes: tensors as bytes in messages, over TCP.
//
//   grpc_rival serve ADDRESS:PORT             until killed
//   grpc_rival KIND ADDRESS:PORT SIZE COUNT   one line of JSON
//
// KIND: take and take-all bring COUNT tensors of SIZE bytes one way, by unary calls of DEPTH
// threads or by one stream; echo and echo-all bring each there and back, one by one, and what came
// back is compared with what was sent before anything is timed. Whoever receives copies the
// bytes to where an application would need them. The limits on messages are lifted, nothing is
// compressed; both ends sleep in epoll while they wait, as gRPC does. raw_us: of each echo, at
// most RAW_MAX.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "transfer.grpc.pb.h"

namespace
{

using rival::Busy;
using rival::Tensor;
using rival::Transfer;

constexpr size_t DEPTH = 4;
constexpr size_t MAX_BYTES = size_t{64} << 20;
constexpr size_t WARM_UP_SHARE = 5; // as our programs have it
constexpr size_t WARM_UP_LEAST = 5;
constexpr size_t RAW_MAX = 1000;

double
now_s()
{
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

// Of the whole machine: what the kernel does for a network's packets is charged to no process.
double
busy_s()
{
    std::ifstream file("/proc/stat");
    std::string word;
    double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0;
    file >> word >> user >> nice >> system >> idle >> iowait >> irq >> softirq;
    return (user + nice + system + irq + softirq) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

[[noreturn]] void
fail(const std::string &why)
{
    std::fprintf(stderr, "grpc_rival: %s\n", why.c_str());
    std::exit(1);
}

void
check(const grpc::Status &status)
{
    if (!status.ok())
        fail(status.error_message());
}

// Where an application needs what it receives. One for each thread that receives.
const char *
place(const Tensor &tensor)
{
    thread_local std::vector<char> buffer(MAX_BYTES);
    std::memcpy(buffer.data(), tensor.data().data(), tensor.data().size());
    return buffer.data();
}

class Service final : public Transfer::Service
{
    grpc::Status Take(grpc::ServerContext *, const Tensor *in, Tensor *) override
    {
        place(*in);
        return grpc::Status::OK;
    }
    grpc::Status TakeAll(grpc::ServerContext *, grpc::ServerReader<Tensor> *reader,
                         Tensor *) override
    {
        Tensor in;
        while (reader->Read(&in))
            place(in);
        return grpc::Status::OK;
    }
    grpc::Status Echo(grpc::ServerContext *, const Tensor *in, Tensor *out) override
    {
        place(*in);
        out->set_data(in->data());
        return grpc::Status::OK;
    }
    grpc::Status EchoAll(grpc::ServerContext *,
                         grpc::ServerReaderWriter<Tensor, Tensor> *stream) override
    {
        Tensor in;
        while (stream->Read(&in)) {
            place(in);
            if (!stream->Write(in))
                break;
        }
        return grpc::Status::OK;
    }
    grpc::Status Cpu(grpc::ServerContext *, const Tensor *, Busy *out) override
    {
        out->set_cpu_s(busy_s());
        return grpc::Status::OK;
    }
};

int
serve(const std::string &address)
{
    Service service;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
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

class Client
{
  public:
    Client(const std::string &address, size_t bytes)
    {
        grpc::ChannelArguments arguments;
        arguments.SetMaxReceiveMessageSize(-1);
        arguments.SetMaxSendMessageSize(-1);
        stub_ = Transfer::NewStub(
            grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
        std::string payload(bytes, '\0');
        for (size_t i = 0; i < bytes; i++)
            payload[i] = static_cast<char>(i * 31 + (i >> 8) * 7);
        tensor_.set_data(payload);
    }

    // A pass of its own: there and back by both ways, compared where it was placed.
    void verify()
    {
        grpc::ClientContext context;
        grpc::ClientContext streamed;
        Tensor answer;
        check(stub_->Echo(&context, tensor_, &answer));
        compare(answer);
        const auto stream = stub_->EchoAll(&streamed);
        if (!stream->Write(tensor_) || !stream->Read(&answer))
            fail("the stream broke");
        compare(answer);
        stream->WritesDone();
        check(stream->Finish());
    }

    double peer_busy_s()
    {
        grpc::ClientContext context;
        Busy busy;
        check(stub_->Cpu(&context, Tensor(), &busy));
        return busy.cpu_s();
    }

    void take(size_t count)
    {
        std::vector<std::thread> threads;
        for (size_t i = 0; i < DEPTH; i++)
            threads.emplace_back([this, i, count] {
                for (size_t n = i; n < count; n += DEPTH) {
                    grpc::ClientContext context;
                    Tensor answer;
                    check(stub_->Take(&context, tensor_, &answer));
                }
            });
        for (std::thread &thread : threads)
            thread.join();
    }

    void take_all(size_t count)
    {
        grpc::ClientContext context;
        Tensor answer;
        const auto writer = stub_->TakeAll(&context, &answer);
        for (size_t n = 0; n < count; n++)
            if (!writer->Write(tensor_))
                fail("the stream broke");
        writer->WritesDone();
        check(writer->Finish());
    }

    void echo(std::vector<double> &trips_s)
    {
        for (double &trip_s : trips_s) {
            grpc::ClientContext context;
            Tensor answer;
            const double begun_s = now_s();
            check(stub_->Echo(&context, tensor_, &answer));
            place(answer);
            trip_s = now_s() - begun_s;
        }
    }

    void echo_all(std::vector<double> &trips_s)
    {
        grpc::ClientContext context;
        const auto stream = stub_->EchoAll(&context);
        Tensor answer;
        for (double &trip_s : trips_s) {
            const double begun_s = now_s();
            if (!stream->Write(tensor_) || !stream->Read(&answer))
                fail("the stream broke");
            place(answer);
            trip_s = now_s() - begun_s;
        }
        stream->WritesDone();
        check(stream->Finish());
    }

  private:
    void compare(const Tensor &answer)
    {
        const std::string &sent = tensor_.data();
        if (answer.data().size() != sent.size() ||
            std::memcmp(place(answer), sent.data(), sent.size()) != 0)
            fail("what came back is not what was sent");
    }

    std::unique_ptr<Transfer::Stub> stub_;
    Tensor tensor_;
};

void
run(Client &client, const std::string &kind, std::vector<double> &trips_s)
{
    if (kind == "take")
        client.take(trips_s.size());
    else if (kind == "take-all")
        client.take_all(trips_s.size());
    else if (kind == "echo")
        client.echo(trips_s);
    else if (kind == "echo-all")
        client.echo_all(trips_s);
    else
        fail("no kind is called " + kind);
}

// In the order of the run, evenly spread over it.
std::string
raw_us(const std::vector<double> &trips_s)
{
    const size_t shown = std::min(trips_s.size(), RAW_MAX);
    std::string text;
    for (size_t i = 0; i < shown; i++)
        text += (i > 0 ? ", " : "") + std::to_string(trips_s[i * trips_s.size() / shown] * 1e6);
    return text;
}

} // namespace

int
main(int argc, char **argv)
{
    const std::string kind = argc > 2 ? argv[1] : "";
    if (argc == 3 && kind == "serve")
        return serve(argv[2]);
    if (argc != 5)
        fail("usage: serve ADDRESS:PORT, or KIND ADDRESS:PORT SIZE COUNT");
    const size_t bytes = std::strtoull(argv[3], nullptr, 10);
    const size_t count = std::strtoull(argv[4], nullptr, 10);
    if (bytes == 0 || bytes > MAX_BYTES || count == 0)
        fail("sizes from 1 to 64 MiB, counts from 1");
    Client client(argv[2], bytes);
    std::vector<double> warm_up(std::max(WARM_UP_LEAST, count / WARM_UP_SHARE));
    std::vector<double> trips_s(count);
    if (kind.rfind("echo", 0) == 0)
        client.verify();
    run(client, kind, warm_up);
    const double cpu_s[] = {busy_s(), client.peer_busy_s()};
    const double begun_s = now_s();
    run(client, kind, trips_s);
    const double took_s = now_s() - begun_s;
    const double used_s[] = {busy_s() - cpu_s[0], client.peer_busy_s() - cpu_s[1]};
    const std::string raw = raw_us(trips_s);
    std::sort(trips_s.begin(), trips_s.end());
    std::printf("{\"kind\": \"%s\", \"size\": %zu, \"count\": %zu, \"seconds\": %.6f, "
                "\"round_trip_us\": %.3f, \"cpu_s\": [%.3f, %.3f], \"raw_us\": [%s]}\n",
                kind.c_str(), bytes, count, took_s, trips_s[count / 2] * 1e6, used_s[0], used_s[1],
                raw.c_str());
    return 0;
}
