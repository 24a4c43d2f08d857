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
// back is compared with what was sent before anything is timed, as is what is taken, by its
// receiver. row and row-each bring COUNT tensors in a row, ROUNDS times, with at most DEPTH
// unanswered, by unary calls of so many threads or by a stream; "both": as many come the other way
// at the same time, asked for DEPTH ahead.
//
// Whoever receives looks whether dtype, shape and bytes agree, and copies the bytes to where an
// application would need them: memory that is kept from one message to the next, as the messages
// are that an end has for itself, and what malloc() has freed. What an echo or a row has untimed
// comes first over the same stream. The limits on messages are lifted, frames are as large as those
// of HTTP/2 may be, nothing is compressed; both ends sleep in epoll while they wait, as gRPC does.
// The answer to a unary call is one that gRPC owns, so that Give copies there. raw_us: of each
// echo, at most RAW_MAX; of each round in a row the time for each message of one direction.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <malloc.h>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "rival.h"

namespace
{

constexpr size_t THREADS = 4;
constexpr size_t MAX_DEPTH = 256;
constexpr size_t WARM_UP_SHARE = 5; // as our programs have it
constexpr size_t WARM_UP_LEAST = 5;
constexpr size_t RAW_MAX = 1000;

using Began = std::function<void()>; // what is timed does

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
        std::vector<Tensor> answers(1);
        tensor_.set_is_compared(true);
        take(1, answers);
        take_all(1);
        Taking taking(*this, 1);
        taking.run(1);
        taking.finish();
        tensor_.set_is_compared(false);
    }

    // The same for what is given, by both ways.
    void verify_give()
    {
        grpc::ClientContext context;
        Tensor answer;
        check(stub_->Give(&context, wish_, &answer));
        compare(answer);
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

    // With a thread for each answer, which is kept.
    void take(size_t count, std::vector<Tensor> &answers)
    {
        in_threads(count, answers, [this](Tensor &answer) {
            grpc::ClientContext context;
            check(stub_->Take(&context, tensor_, &answer));
        });
    }

    void give(size_t count, std::vector<Tensor> &answers)
    {
        in_threads(count, answers, [this](Tensor &answer) {
            grpc::ClientContext context;
            check(stub_->Give(&context, wish_, &answer));
            need(answer);
        });
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

    void echo(size_t warm_up, const Began &began, std::vector<double> &trips_s)
    {
        std::unique_ptr<grpc::ClientContext> context;
        Tensor answer;
        const auto prepare = [&] { context = std::make_unique<grpc::ClientContext>(); };
        each(warm_up, began, trips_s, prepare, [&] {
            check(stub_->Echo(context.get(), tensor_, &answer));
            need(answer);
        });
    }

    void echo_all(size_t warm_up, const Began &began, std::vector<double> &trips_s)
    {
        grpc::ClientContext context;
        const auto stream = stub_->EchoAll(&context);
        Tensor answer;
        each(
            warm_up, began, trips_s, [] {},
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
    // Untimed trips, BEGAN, and timed ones; PREPARE, which is not timed, before each.
    template <class Prepare, class Trip>
    static void each(size_t warm_up, const Began &began, std::vector<double> &trips_s,
                     Prepare prepare, Trip trip)
    {
        for (size_t n = 0; n < warm_up; n++) {
            prepare();
            trip();
        }
        began();
        for (double &trip_s : trips_s) {
            prepare();
            const double begun_s = now_s();
            trip();
            trip_s = now_s() - begun_s;
        }
    }

    static void in_threads(size_t count, std::vector<Tensor> &answers,
                           const std::function<void(Tensor &)> &call)
    {
        std::vector<std::thread> threads;
        for (size_t i = 0; i < answers.size(); i++)
            threads.emplace_back([&call, &answers, i, count] {
                for (size_t n = i; n < count; n += answers.size())
                    call(answers[i]);
            });
        for (std::thread &thread : threads)
            thread.join();
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

void
run(Client &client, const std::string &kind, size_t warm_up, const Began &began,
    std::vector<double> &trips_s)
{
    if (kind == "echo")
        return client.echo(warm_up, began, trips_s);
    if (kind == "echo-all")
        return client.echo_all(warm_up, began, trips_s);
    std::vector<Tensor> answers(THREADS);
    const auto take = [&](size_t count) {
        kind == "take" ? client.take(count, answers) : client.take_all(count);
    };
    take(warm_up);
    began();
    take(trips_s.size());
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

// Messages one way, and the other at the same time, over streams that live as long as it does.
class Ways
{
  public:
    Ways(Client &client, bool is_unary, bool is_both, size_t depth)
        : client_(client), is_unary_(is_unary), is_both_(is_both), taken_(depth), given_(depth)
    {
        if (!is_unary)
            taking_ = std::make_unique<Client::Taking>(client, depth);
        if (!is_unary && is_both)
            giving_ = std::make_unique<Client::Giving>(client, depth);
    }

    // Seconds for each of COUNT messages of one direction.
    double run(size_t count)
    {
        const double begun_s = now_s();
        std::thread other;
        if (is_both_)
            other =
                std::thread([&] { is_unary_ ? client_.give(count, given_) : giving_->run(count); });
        is_unary_ ? client_.take(count, taken_) : taking_->run(count);
        if (is_both_)
            other.join();
        return (now_s() - begun_s) / static_cast<double>(count);
    }

    void finish()
    {
        if (taking_ != nullptr)
            taking_->finish();
        if (giving_ != nullptr)
            giving_->finish();
    }

  private:
    Client &client_;
    const bool is_unary_, is_both_;
    std::vector<Tensor> taken_, given_; // answers to unary calls
    std::unique_ptr<Client::Taking> taking_;
    std::unique_ptr<Client::Giving> giving_;
};

int
run_row(Client &client, size_t bytes, size_t count, char **words)
{
    const std::string kind = words[0], ways = words[6];
    const size_t rounds = std::strtoull(words[5], nullptr, 10);
    const size_t depth = std::strtoull(words[4], nullptr, 10);
    const bool is_both = ways == "both";
    if (depth == 0 || depth > MAX_DEPTH || rounds == 0 || (ways != "one" && !is_both))
        fail("depths from 1 to 256, rounds from 1, one or both");
    client.verify_take();
    if (is_both)
        client.verify_give();
    Ways row(client, kind == "row", is_both, depth);
    row.run(std::max(depth, count / WARM_UP_SHARE));
    const double cpu_s[] = {process_s(), client.peer_busy().process_s()};
    std::vector<double> each_s(rounds);
    for (double &one_s : each_s)
        one_s = row.run(count);
    const double used_s[] = {process_s() - cpu_s[0], client.peer_busy().process_s() - cpu_s[1]};
    row.finish();
    const double gb = 1e-9 * static_cast<double>(bytes * count * rounds) * (is_both ? 2.0 : 1.0);
    std::printf("{\"kind\": \"%s\", \"size\": %zu, \"count\": %zu, \"depth\": %zu, "
                "\"both\": %s, \"first_cpu_s_per_gb\": %.6f, \"second_cpu_s_per_gb\": %.6f, "
                "\"raw_us\": [%s]}\n",
                kind.c_str(), bytes, count, depth, is_both ? "true" : "false", used_s[0] / gb,
                used_s[1] / gb, raw_us(each_s).c_str());
    return 0;
}

int
run_trips(Client &client, const std::string &kind, size_t bytes, size_t count)
{
    const size_t warm_up = std::max(WARM_UP_LEAST, count / WARM_UP_SHARE);
    std::vector<double> trips_s(count);
    double cpu_s[2] = {}, begun_s = 0;
    if (kind != "take" && kind != "take-all" && kind != "echo" && kind != "echo-all")
        fail("no kind is called " + kind);
    kind.rfind("echo", 0) == 0 ? client.verify() : client.verify_take();
    run(
        client, kind, warm_up,
        [&] {
            cpu_s[0] = busy_s();
            cpu_s[1] = client.peer_busy().cpu_s();
            begun_s = now_s();
        },
        trips_s);
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
