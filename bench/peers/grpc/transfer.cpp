// SPDX-License-Identifier: Apache-2.0
//
// grpc_transfer - gRPC C++ in place of rdmatensor: tensors as dtype, shape and bytes, over TCP.
//
//   grpc_transfer serve ADDRESS:PORT             until killed
//   grpc_transfer KIND ADDRESS:PORT SIZE COUNT   one line of JSON
//   grpc_transfer row ADDRESS:PORT SIZE COUNT DEPTH ROUNDS one|both
//
// KIND: echo and echo-all bring COUNT tensors of SIZE bytes there and back, one by one, by unary
// calls or by a stream; each side compares the bytes that it receives before the clock
// starts. row brings COUNT tensors in a row over a stream, ROUNDS times,
// with at most DEPTH unanswered; "both": as many come the other way at the same time, asked for
// DEPTH ahead.
//
// A receiver checks that dtype, shape and bytes agree, and copies the bytes to where an application
// would need them: memory that is kept from one message to the next, as the messages are that an
// end has for itself, and what malloc() has freed. What an echo or a row has untimed comes first
// over the same stream. The limits on messages are lifted, frames are as large as those of HTTP/2
// may be, nothing is compressed; both ends sleep in epoll while they wait, as gRPC does. raw_us: of
// each echo, at most RAW_MAX; of each round in a row the time for each message of one direction.
// cpu_s: busy seconds of both machines in a row's rounds, which is for two hosts.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <malloc.h>
#include <memory>
#include <mutex>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

#include "transfer.grpc.pb.h"

using peer::Busy;
using peer::Tensor;
using peer::Transfer;
using peer::Wish;

namespace
{

constexpr size_t MAX_BYTES = size_t{256} << 20;
constexpr int FRAME_BYTES = (1 << 24) - 1; // the most that HTTP/2 has
constexpr size_t MAX_DEPTH = 256;
constexpr size_t WARM_UP_SHARE = 5; // as rdtperf has it
constexpr size_t WARM_UP_LEAST = 5;
constexpr size_t RAW_MAX = 1000;

[[noreturn]] void
fail(const std::string &why)
{
    std::fprintf(stderr, "grpc_transfer: %s\n", why.c_str());
    std::exit(1);
}

// Seconds that the whole machine was busy, and those of this process with all its threads: the
// kernel's work for a network's packets is charged to no process.
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

// Rows of two floats where the bytes allow that; the same bytes for the same size.
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

// Where an application needs what it receives. gRPC's threads come and go, and borrow it.
class Places
{
  public:
    // Whether dtype, shape and bytes agree, and, unless WANTED is nullptr, whether the bytes are
    // its, too, where they were placed.
    bool place(const Tensor &tensor, const Tensor *wanted = nullptr)
    {
        if (!is_whole(tensor))
            return false;
        const std::string &data = tensor.data();
        std::vector<char> place = borrow(data.size());
        std::memcpy(place.data(), data.data(), data.size());
        const bool is_same = wanted == nullptr ||
                             (wanted->data().size() == data.size() &&
                              std::memcmp(place.data(), wanted->data().data(), data.size()) == 0);
        const std::lock_guard<std::mutex> hold(mutex_);
        free_.push_back(std::move(place));
        return is_same;
    }

  private:
    std::vector<char> borrow(size_t bytes)
    {
        const std::lock_guard<std::mutex> hold(mutex_);
        if (!free_.empty() && free_.back().size() != bytes)
            free_.clear(); // sizes come one after another
        if (free_.empty())
            return std::vector<char>(bytes);
        std::vector<char> place = std::move(free_.back());
        free_.pop_back();
        return place;
    }

    std::mutex mutex_;
    std::vector<std::vector<char>> free_;
};

// ---- Server -----------------------------------------------------------------------------------

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

// ---- Client -----------------------------------------------------------------------------------

double
now_s()
{
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

void
check(const grpc::Status &status)
{
    if (!status.ok())
        fail(status.error_message());
}

class Client
{
  public:
    Client(const std::string &address, size_t bytes)
    {
        grpc::ChannelArguments arguments;
        arguments.SetMaxReceiveMessageSize(-1);
        arguments.SetMaxSendMessageSize(-1);
        arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, FRAME_BYTES);
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

    // The same for what is taken, which the receiver compares.
    void verify_take()
    {
        tensor_.set_is_compared(true);
        Taking taking(*this, 1);
        taking.run(1);
        taking.finish();
        tensor_.set_is_compared(false);
    }

    // The same for what is given.
    void verify_give()
    {
        Giving giving(*this, 1);
        giving.run(1);
        compare(giving.answer());
        giving.finish();
    }

    Busy peer_busy()
    {
        grpc::ClientContext context;
        Busy busy;
        check(stub_->Cpu(&context, Wish(), &busy));
        return busy;
    }

    void echo(size_t warm_up, std::vector<double> &trips_s)
    {
        std::unique_ptr<grpc::ClientContext> context;
        Tensor answer;
        const auto prepare = [&] { context = std::make_unique<grpc::ClientContext>(); };
        each(warm_up, trips_s, prepare, [&] {
            check(stub_->Echo(context.get(), tensor_, &answer));
            need(answer);
        });
    }

    void echo_all(size_t warm_up, std::vector<double> &trips_s)
    {
        grpc::ClientContext context;
        const auto stream = stub_->EchoAll(&context);
        Tensor answer;
        each(
            warm_up, trips_s, [] {},
            [&] {
                if (!stream->Write(tensor_) || !stream->Read(&answer))
                    broken(*stream);
                need(answer);
            });
        stream->WritesDone();
        check(stream->Finish());
    }

    // A stream whose messages are answered each; at most DEPTH are not yet.
    template <class Message> class Row
    {
      public:
        Row(Client &client, size_t depth) : client_(client), depth_(depth)
        {
            if constexpr (IS_TAKEN) {
                stream_ = client.stub_->TakeEach(&context_);
                message_ = &client.tensor_;
            } else {
                stream_ = client.stub_->GiveEach(&context_);
                message_ = &client.wish_;
            }
        }

        void run(size_t count)
        {
            for (size_t sent = 0, done = 0; done < count; done++) {
                for (; sent < count && sent - done < depth_; sent++)
                    if (!stream_->Write(*message_))
                        broken(*stream_);
                if (!stream_->Read(&answer_))
                    broken(*stream_);
                if (!IS_TAKEN)
                    client_.need(answer_);
            }
        }

        void finish()
        {
            stream_->WritesDone();
            check(stream_->Finish());
        }

        const Tensor &answer() const
        {
            return answer_;
        }

      private:
        static constexpr bool IS_TAKEN = std::is_same_v<Message, Tensor>; // with empty answers

        Client &client_;
        const size_t depth_;
        grpc::ClientContext context_;
        std::unique_ptr<grpc::ClientReaderWriter<Message, Tensor>> stream_;
        const Message *message_ = nullptr;
        Tensor answer_;
    };
    using Taking = Row<Tensor>;
    using Giving = Row<Wish>;

  private:
    // Untimed trips, and timed ones; PREPARE, which is not timed, before each.
    template <class Prepare, class Trip>
    static void each(size_t warm_up, std::vector<double> &trips_s, Prepare prepare, Trip trip)
    {
        for (size_t n = 0; n < warm_up; n++) {
            prepare();
            trip();
        }
        for (double &trip_s : trips_s) {
            prepare();
            const double begun_s = now_s();
            trip();
            trip_s = now_s() - begun_s;
        }
    }

    // Why a stream ended before its time.
    template <class Stream> [[noreturn]] static void broken(Stream &stream)
    {
        check(stream.Finish());
        fail("the stream broke");
    }

    void need(const Tensor &answer)
    {
        if (!places_.place(answer))
            fail("dtype, shape and bytes of what came do not agree");
    }

    void compare(const Tensor &answer)
    {
        if (answer.dtype() != tensor_.dtype() || answer.shape_size() != tensor_.shape_size() ||
            !std::equal(answer.shape().begin(), answer.shape().end(), tensor_.shape().begin()) ||
            !places_.place(answer, &tensor_))
            fail("what came back is not what was sent");
    }

    std::unique_ptr<Transfer::Stub> stub_;
    Places places_;
    Tensor tensor_;
    Wish wish_;
};

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

// Seconds for each of COUNT messages of one direction; GIVING may be none.
double
run_round(Client::Taking &taking, Client::Giving *giving, size_t count)
{
    const double begun_s = now_s();
    std::thread other;
    if (giving != nullptr)
        other = std::thread([&] { giving->run(count); });
    taking.run(count);
    if (giving != nullptr)
        other.join();
    return (now_s() - begun_s) / static_cast<double>(count);
}

int
run_row(Client &client, size_t bytes, size_t count, char **words)
{
    const std::string ways = words[6];
    const size_t rounds = std::strtoull(words[5], nullptr, 10);
    const size_t depth = std::strtoull(words[4], nullptr, 10);
    const bool is_both = ways == "both";
    if (depth == 0 || depth > MAX_DEPTH || rounds == 0 || (ways != "one" && !is_both))
        fail("depths from 1 to 256, rounds from 1, one or both");
    client.verify_take();
    if (is_both)
        client.verify_give();
    Client::Taking taking(client, depth);
    std::unique_ptr<Client::Giving> giving;
    if (is_both)
        giving = std::make_unique<Client::Giving>(client, depth);
    run_round(taking, giving.get(), std::max(depth, count / WARM_UP_SHARE));
    const Busy before = client.peer_busy();
    const double own_s = process_s(), machine_s = busy_s();
    std::vector<double> each_s(rounds);
    for (double &one_s : each_s)
        one_s = run_round(taking, giving.get(), count);
    const Busy after = client.peer_busy();
    const double used_s[] = {process_s() - own_s, after.process_s() - before.process_s()};
    const double busy[] = {busy_s() - machine_s, after.cpu_s() - before.cpu_s()};
    taking.finish();
    if (giving != nullptr)
        giving->finish();
    const double gb = 1e-9 * static_cast<double>(bytes * count * rounds) * (is_both ? 2.0 : 1.0);
    std::printf("{\"kind\": \"row\", \"size\": %zu, \"count\": %zu, \"depth\": %zu, "
                "\"both\": %s, \"first_cpu_s_per_gb\": %.6f, \"second_cpu_s_per_gb\": %.6f, "
                "\"cpu_s\": [%.3f, %.3f], \"raw_us\": [%s]}\n",
                bytes, count, depth, is_both ? "true" : "false", used_s[0] / gb, used_s[1] / gb,
                busy[0], busy[1], raw_us(each_s).c_str());
    return 0;
}

int
run_trips(Client &client, const std::string &kind, size_t bytes, size_t count)
{
    const size_t warm_up = std::max(WARM_UP_LEAST, count / WARM_UP_SHARE);
    std::vector<double> trips_s(count);
    if (kind != "echo" && kind != "echo-all")
        fail("no kind is called " + kind);
    client.verify();
    kind == "echo" ? client.echo(warm_up, trips_s) : client.echo_all(warm_up, trips_s);
    std::printf("{\"kind\": \"%s\", \"size\": %zu, \"count\": %zu, \"raw_us\": [%s]}\n",
                kind.c_str(), bytes, count, raw_us(trips_s).c_str());
    return 0;
}

// Large messages would be new pages each time. One arena for all threads would keep those of 64 MiB
// in gRPC's own, too: unary calls took 62 ms in place of 82 for half a trip, streams 58 and 60, but
// 8 B took 30 us in place of 20 (no samples kept).
void
keep_what_is_freed()
{
    if (mallopt(M_MMAP_MAX, 0) != 1 || mallopt(M_TRIM_THRESHOLD, INT_MAX) != 1)
        fail("mallopt() refuses");
}

} // namespace

int
main(int argc, char **argv)
{
    keep_what_is_freed();
    const std::string kind = argc > 2 ? argv[1] : "";
    if (argc == 3 && kind == "serve")
        return serve(argv[2]);
    const bool is_row = kind == "row";
    if (argc != (is_row ? 8 : 5))
        fail("usage: serve ADDRESS:PORT, or KIND ADDRESS:PORT SIZE COUNT, or "
             "row ADDRESS:PORT SIZE COUNT DEPTH ROUNDS one|both");
    const size_t bytes = std::strtoull(argv[3], nullptr, 10);
    const size_t count = std::strtoull(argv[4], nullptr, 10);
    if (bytes == 0 || bytes > MAX_BYTES || count == 0)
        fail("sizes from 1 to 256 MiB, counts from 1");
    Client client(argv[2], bytes);
    return is_row ? run_row(client, bytes, count, argv + 1) : run_trips(client, kind, bytes, count);
}
