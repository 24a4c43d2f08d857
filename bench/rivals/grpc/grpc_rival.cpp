// SPDX-License-Identifier: Apache-2.0
//
// grpc_rival - gRPC C++ as a rival of our writes: tensors as dtype, shape and bytes, over TCP.
//
//   grpc_rival serve ADDRESS:PORT             until killed
//   grpc_rival KIND ADDRESS:PORT SIZE COUNT   one line of JSON
//   grpc_rival row|row-each ADDRESS:PORT SIZE COUNT DEPTH ROUNDS one|both
//
// KIND: take and take-all bring COUNT tensors of SIZE bytes one way, by unary calls of THREADS
// threads or by one stream; echo and echo-all bring each there and back, one by one, and what came
// back is compared with what was sent before anything is timed. row and row-each bring COUNT
// tensors in a row, ROUNDS times, with at most DEPTH unanswered, by unary calls of so many threads
// or by a stream; "both": as many come the other way at the same time, asked for DEPTH ahead.
// Whoever receives looks whether dtype, shape and bytes agree, and copies the bytes to where an
// application would need them. The limits on messages are lifted, nothing is compressed; both ends
// sleep in epoll while they wait, as gRPC does. raw_us: of each echo, at most RAW_MAX; of each
// round in a row the time for each message of one direction.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "transfer.grpc.pb.h"

namespace
{

using rival::Busy;
using rival::Tensor;
using rival::Transfer;
using rival::Wish;

constexpr size_t THREADS = 4;
constexpr size_t MAX_DEPTH = 256;
constexpr size_t MAX_BYTES = size_t{256} << 20;
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

double
process_s()
{
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
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

// Rows of two floats where the bytes allow that.
Tensor
tensor_of(size_t bytes)
{
    Tensor tensor;
    std::string payload(bytes, '\0');
    for (size_t i = 0; i < bytes; i++)
        payload[i] = static_cast<char>(i * 31 + (i >> 8) * 7);
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

// Whether the bytes are those of a tensor of this dtype and shape.
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

// Where an application needs what it receives: one for each thread that receives. nullptr: dtype,
// shape and bytes do not agree.
const char *
place(const Tensor &tensor)
{
    thread_local std::vector<char> buffer;
    if (!is_whole(tensor))
        return nullptr;
    if (buffer.size() < tensor.data().size())
        buffer.resize(tensor.data().size());
    std::memcpy(buffer.data(), tensor.data().data(), tensor.data().size());
    return buffer.data();
}

grpc::Status
status_of(bool is_placed)
{
    if (is_placed)
        return grpc::Status::OK;
    return {grpc::StatusCode::INVALID_ARGUMENT, "dtype, shape and bytes do not agree"};
}

class Service final : public Transfer::Service
{
    grpc::Status Take(grpc::ServerContext *, const Tensor *in, Tensor *) override
    {
        return status_of(place(*in) != nullptr);
    }
    grpc::Status TakeAll(grpc::ServerContext *, grpc::ServerReader<Tensor> *reader,
                         Tensor *) override
    {
        Tensor in;
        bool is_placed = true;
        while (is_placed && reader->Read(&in))
            is_placed = place(in) != nullptr;
        return status_of(is_placed);
    }
    grpc::Status TakeEach(grpc::ServerContext *,
                          grpc::ServerReaderWriter<Tensor, Tensor> *stream) override
    {
        Tensor in;
        bool is_placed = true;
        while (is_placed && stream->Read(&in)) {
            is_placed = place(in) != nullptr;
            if (!is_placed || !stream->Write(Tensor()))
                break;
        }
        return status_of(is_placed);
    }
    grpc::Status Echo(grpc::ServerContext *, const Tensor *in, Tensor *out) override
    {
        if (place(*in) == nullptr)
            return status_of(false);
        *out = *in;
        return grpc::Status::OK;
    }
    grpc::Status EchoAll(grpc::ServerContext *,
                         grpc::ServerReaderWriter<Tensor, Tensor> *stream) override
    {
        Tensor in;
        bool is_placed = true;
        while (is_placed && stream->Read(&in)) {
            is_placed = place(in) != nullptr;
            if (!is_placed || !stream->Write(in))
                break;
        }
        return status_of(is_placed);
    }
    grpc::Status Give(grpc::ServerContext *, const Wish *wish, Tensor *out) override
    {
        if (wish->len_bytes() > MAX_BYTES)
            return status_of(false);
        *out = *kept(wish->len_bytes());
        return grpc::Status::OK;
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

    // The tensor of this size, made once; one at a time, as sizes are measured one after another.
    std::shared_ptr<const Tensor> kept(size_t bytes)
    {
        const std::lock_guard<std::mutex> hold(mutex_);
        if (kept_ == nullptr || kept_->data().size() != bytes)
            kept_ = std::make_shared<const Tensor>(tensor_of(bytes));
        return kept_;
    }

    std::mutex mutex_;
    std::shared_ptr<const Tensor> kept_;
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
        tensor_ = tensor_of(bytes);
        wish_.set_len_bytes(bytes);
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
            broken(*stream);
        compare(answer);
        stream->WritesDone();
        check(stream->Finish());
    }

    // The same for what a row is made of: taken, and given by both ways.
    void verify_row()
    {
        grpc::ClientContext context;
        grpc::ClientContext streamed;
        Tensor answer;
        take(1, 1);
        take_each(1, 1);
        check(stub_->Give(&context, wish_, &answer));
        compare(answer);
        const auto stream = stub_->GiveEach(&streamed);
        if (!stream->Write(wish_) || !stream->Read(&answer))
            broken(*stream);
        compare(answer);
        stream->WritesDone();
        check(stream->Finish());
    }

    Busy peer_busy()
    {
        grpc::ClientContext context;
        Busy busy;
        check(stub_->Cpu(&context, Wish(), &busy));
        return busy;
    }

    void take(size_t count, size_t depth)
    {
        in_threads(count, depth, [this] {
            grpc::ClientContext context;
            Tensor answer;
            check(stub_->Take(&context, tensor_, &answer));
        });
    }

    void give(size_t count, size_t depth)
    {
        in_threads(count, depth, [this] {
            grpc::ClientContext context;
            Tensor answer;
            check(stub_->Give(&context, wish_, &answer));
            need(place(answer));
        });
    }

    void take_each(size_t count, size_t depth)
    {
        grpc::ClientContext context;
        ahead(*stub_->TakeEach(&context), tensor_, count, depth, [](const Tensor &) {});
    }

    void give_each(size_t count, size_t depth)
    {
        grpc::ClientContext context;
        ahead(*stub_->GiveEach(&context), wish_, count, depth,
              [](const Tensor &answer) { need(place(answer)); });
    }

    void take_all(size_t count)
    {
        grpc::ClientContext context;
        Tensor answer;
        const auto writer = stub_->TakeAll(&context, &answer);
        for (size_t n = 0; n < count; n++)
            if (!writer->Write(tensor_))
                broken(*writer);
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
            need(place(answer));
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
                broken(*stream);
            need(place(answer));
            trip_s = now_s() - begun_s;
        }
        stream->WritesDone();
        check(stream->Finish());
    }

  private:
    // COUNT calls by DEPTH threads.
    static void in_threads(size_t count, size_t depth, const std::function<void()> &call)
    {
        std::vector<std::thread> threads;
        for (size_t i = 0; i < depth; i++)
            threads.emplace_back([&call, i, count, depth] {
                for (size_t n = i; n < count; n += depth)
                    call();
            });
        for (std::thread &thread : threads)
            thread.join();
    }

    // COUNT messages of a stream, each of which is answered; at most DEPTH are not yet.
    template <class Stream, class Message, class Take>
    static void ahead(Stream &stream, const Message &message, size_t count, size_t depth, Take take)
    {
        Tensor answer;
        for (size_t sent = 0, done = 0; done < count; done++) {
            for (; sent < count && sent - done < depth; sent++)
                if (!stream.Write(message))
                    broken(stream);
            if (!stream.Read(&answer))
                broken(stream);
            take(answer);
        }
        stream.WritesDone();
        check(stream.Finish());
    }

    // Why a stream ended before its time.
    template <class Stream> [[noreturn]] static void broken(Stream &stream)
    {
        check(stream.Finish());
        fail("the stream broke");
    }

    static const char *need(const char *placed)
    {
        if (placed == nullptr)
            fail("dtype, shape and bytes of what came do not agree");
        return placed;
    }

    void compare(const Tensor &answer)
    {
        const std::string &sent = tensor_.data();
        const char *placed = need(place(answer));
        if (answer.dtype() != tensor_.dtype() || answer.shape_size() != tensor_.shape_size() ||
            !std::equal(answer.shape().begin(), answer.shape().end(), tensor_.shape().begin()) ||
            std::memcmp(placed, sent.data(), sent.size()) != 0)
            fail("what came back is not what was sent");
    }

    std::unique_ptr<Transfer::Stub> stub_;
    Tensor tensor_;
    Wish wish_;
};

void
run(Client &client, const std::string &kind, std::vector<double> &trips_s)
{
    if (kind == "take")
        client.take(trips_s.size(), THREADS);
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

struct Row {
    bool is_unary;
    bool is_both;
    size_t depth;
};

// Seconds for each of COUNT messages of one direction.
double
row(Client &client, const Row &how, size_t count)
{
    const double begun_s = now_s();
    std::thread other;
    if (how.is_both)
        other = std::thread([&] {
            how.is_unary ? client.give(count, how.depth) : client.give_each(count, how.depth);
        });
    how.is_unary ? client.take(count, how.depth) : client.take_each(count, how.depth);
    if (how.is_both)
        other.join();
    return (now_s() - begun_s) / static_cast<double>(count);
}

int
run_row(Client &client, size_t bytes, size_t count, char **words)
{
    const std::string kind = words[0], ways = words[6];
    const size_t rounds = std::strtoull(words[5], nullptr, 10);
    const Row how{kind == "row", ways == "both", std::strtoull(words[4], nullptr, 10)};
    if (how.depth == 0 || how.depth > MAX_DEPTH || rounds == 0 || (ways != "one" && !how.is_both))
        fail("depths from 1 to 256, rounds from 1, one or both");
    client.verify_row();
    row(client, how, std::max(how.depth, count / WARM_UP_SHARE));
    const double cpu_s[] = {process_s(), client.peer_busy().process_s()};
    std::vector<double> each_s(rounds);
    for (double &one_s : each_s)
        one_s = row(client, how, count);
    const double used_s[] = {process_s() - cpu_s[0], client.peer_busy().process_s() - cpu_s[1]};
    const double gb =
        1e-9 * static_cast<double>(bytes * count * rounds) * (how.is_both ? 2.0 : 1.0);
    std::printf("{\"kind\": \"%s\", \"size\": %zu, \"count\": %zu, \"depth\": %zu, "
                "\"both\": %s, \"first_cpu_s_per_gb\": %.6f, \"second_cpu_s_per_gb\": %.6f, "
                "\"raw_us\": [%s]}\n",
                kind.c_str(), bytes, count, how.depth, how.is_both ? "true" : "false",
                used_s[0] / gb, used_s[1] / gb, raw_us(each_s).c_str());
    return 0;
}

int
run_trips(Client &client, const std::string &kind, size_t bytes, size_t count)
{
    std::vector<double> warm_up(std::max(WARM_UP_LEAST, count / WARM_UP_SHARE));
    std::vector<double> trips_s(count);
    if (kind.rfind("echo", 0) == 0)
        client.verify();
    run(client, kind, warm_up);
    const double cpu_s[] = {busy_s(), client.peer_busy().cpu_s()};
    const double begun_s = now_s();
    run(client, kind, trips_s);
    const double took_s = now_s() - begun_s;
    const double used_s[] = {busy_s() - cpu_s[0], client.peer_busy().cpu_s() - cpu_s[1]};
    const std::string raw = raw_us(trips_s);
    std::sort(trips_s.begin(), trips_s.end());
    std::printf("{\"kind\": \"%s\", \"size\": %zu, \"count\": %zu, \"seconds\": %.6f, "
                "\"round_trip_us\": %.3f, \"cpu_s\": [%.3f, %.3f], \"raw_us\": [%s]}\n",
                kind.c_str(), bytes, count, took_s, trips_s[count / 2] * 1e6, used_s[0], used_s[1],
                raw.c_str());
    return 0;
}

} // namespace

int
main(int argc, char **argv)
{
    const std::string kind = argc > 2 ? argv[1] : "";
    if (argc == 3 && kind == "serve")
        return serve(argv[2]);
    const bool is_row = kind == "row" || kind == "row-each";
    if (argc != (is_row ? 8 : 5))
        fail("usage: serve ADDRESS:PORT, or KIND ADDRESS:PORT SIZE COUNT, or "
             "row|row-each ADDRESS:PORT SIZE COUNT DEPTH ROUNDS one|both");
    const size_t bytes = std::strtoull(argv[3], nullptr, 10);
    const size_t count = std::strtoull(argv[4], nullptr, 10);
    if (bytes == 0 || bytes > MAX_BYTES || count == 0)
        fail("sizes from 1 to 256 MiB, counts from 1");
    Client client(argv[2], bytes);
    return is_row ? run_row(client, bytes, count, argv + 1) : run_trips(client, kind, bytes, count);
}
